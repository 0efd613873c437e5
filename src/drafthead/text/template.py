"""The chat template of a file, rendered in a sandbox; user text never becomes control tokens.

Each character of the messages is replaced by a private-use character before rendering, one for
one, so whatever the template does with the text, a control token's name in the result can only
come from the template itself. The text between control tokens is then encoded in one piece, as
the model was trained on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain, takewhile, zip_longest
from typing import Any, NamedTuple, NoReturn

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser

from drafthead.errors import RequestError
from drafthead.gguf.file import GgufFile, quoted
from drafthead.text.sandbox import LimitedSandbox, template_limits
from drafthead.text.tokenizer import Tokenizer
from drafthead.text.vocabulary import special_id

Message = Mapping[str, Any]  # a role and a content; checked when rendered

ROLES = ("system", "developer", "user", "assistant", "tool")
# What rendering may take, beside what the messages themselves need: far more than any chat does,
# little enough for a hostile template.
SPARE_CHARACTERS, CHARACTERS_PER_MESSAGE = 1 << 16, 1 << 10
SPARE_STEPS, STEPS_PER_MESSAGE = 20_000, 1000
MAX_REASON_CHARACTERS = 120
_MARKS = range(0xF0000, 0x10FFFE)  # the private-use planes 15 and 16


class Part(NamedTuple):
    """A stretch of the rendered chat: template text, or text of the messages (user=True)."""

    text: str
    user: bool


class ChatTemplate:
    """A chat template with the special tokens it may print.

    A file without a template, or with a broken one, still serves raw prompts: both are told when
    something is rendered, and no other template is ever used instead.
    """

    def __init__(
        self,
        source: str | None,
        special_tokens: Mapping[str, str],
        tokenizer: Tokenizer,
        origin: str,
    ) -> None:
        self._source = source
        self._special_tokens = dict(special_tokens)
        self._tokenizer = tokenizer
        self._origin = origin
        self._compiled: Template | None = None

    @classmethod
    def from_gguf(cls, gguf: GgufFile, tokenizer: Tokenizer) -> ChatTemplate:
        """Take tokenizer.chat_template and the texts of the special tokens out of a file."""
        key = "tokenizer.chat_template"
        source = gguf.string(key) if key in gguf.metadata else None
        tokens = gguf.strings("tokenizer.ggml.tokens")
        special_tokens = {}
        for name, short in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
            token_id = special_id(gguf, f"{short}_token_id", len(tokens))
            if token_id is not None:
                special_tokens[f"{name}_token"] = tokens[token_id]
        return cls(source, special_tokens, tokenizer, str(gguf.path))

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[Part]:
        """Render a chat.

        Args:
            messages: mappings with a role out of ROLES and a content, both strings.
            add_generation_prompt: end with the opening of the assistant's turn.

        Raises:
            RequestError: a message is malformed, the file has no template, or the template fails
                or refuses (the text of its raise_exception is in the message).
        """
        check_messages(messages)
        plain = self._render(messages, add_generation_prompt)
        marks = _marks(messages, plain)
        marked_messages = [{**m, "content": m["content"].translate(marks)} for m in messages]
        marked = self._render(marked_messages, add_generation_prompt)
        parts = _split_parts(marked, marks)
        if "".join(part.text for part in parts) == plain:
            return parts
        return self._parts_of_rewritten(plain, marked)

    def _parts_of_rewritten(self, plain: str, marked: str) -> list[Part]:
        """Split what a template printed that looks into the text, and so met the marks.

        It is trusted only where its control tokens are those printed around the marked text; then
        everything between them is safe to encode as user text.
        """
        names = self._tokenizer.control_pattern
        if names.findall(plain) != names.findall(marked):
            raise RequestError(
                "The chat template rewrites a message that holds the name of a control token: "
                "remove that name from the text."
            )
        control = [Part(name, user=False) for name in names.findall(plain)]
        between = [Part(text, user=True) for text in names.split(plain)]
        both = chain.from_iterable(zip_longest(between, control, fillvalue=Part("", user=False)))
        return [part for part in both if part.text]

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        template = self._template()
        characters = sum(len(m["content"]) for m in messages)
        size = SPARE_CHARACTERS + CHARACTERS_PER_MESSAGE * len(messages) + 4 * characters
        steps = SPARE_STEPS + STEPS_PER_MESSAGE * len(messages) + characters
        try:
            with template_limits(steps, size):
                return template.render(
                    messages=[dict(m) for m in messages],
                    add_generation_prompt=add_generation_prompt,
                    tools=None,
                    documents=None,
                    **self._special_tokens,
                )
        except Exception as error:  # template code can raise anything
            raise RequestError(
                f"The chat template refuses the messages: {_reason(error)}."
            ) from None

    @property
    def exists(self) -> bool:
        """Whether the file has a template; that of a base model has none."""
        return self._source is not None

    def _template(self) -> Template:
        if self._source is None:
            raise RequestError(
                f"{self._origin} has no chat template: write the whole prompt as raw "
                "text (raw=True, --raw)."
            )
        if self._compiled is None:
            try:
                self._compiled = _compile(self._source)
            except TemplateError as error:
                raise RequestError(
                    f"The chat template of {self._origin} cannot be used ({_reason(error)}): use "
                    "--raw and write the whole prompt."
                ) from None
        return self._compiled


def encode_chat(
    tokenizer: Tokenizer, template: ChatTemplate, messages: Sequence[Message]
) -> list[int]:
    """Encode a chat up to the opening of the assistant's turn.

    A begin token comes first exactly once where the file asks for one; no end token is appended.

    Raises:
        RequestError: as ChatTemplate.render and Tokenizer.encode.
    """
    return _encode(tokenizer, template.render(messages))


def encode_opened_turn(tokenizer: Tokenizer, template: ChatTemplate) -> list[int]:
    """Encode a chat up to where its first message, the user's, begins; errors as encode_chat."""
    parts = template.render([{"role": "user", "content": "text"}])
    return _encode(tokenizer, takewhile(lambda part: not part.user, parts))


def _encode(tokenizer: Tokenizer, parts: Iterable[Part]) -> list[int]:
    ids: list[int] = []
    for text, control in _runs(parts, tokenizer.control_pattern):
        ids += [tokenizer.control_tokens[text]] if control else tokenizer.encode(text)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ids


def check_messages(messages: Sequence[Message]) -> None:
    """Check that messages are what a template expects.

    Raises:
        RequestError: with the number of the first malformed message, counted from 1.
    """
    if isinstance(messages, str | Mapping) or not isinstance(messages, Sequence) or not messages:
        raise RequestError("The messages must be a non-empty list of role and content.")
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise RequestError(f"Message {number} must be an object with a role and a content.")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                found = type(message[key]).__name__ if key in message else "nothing"
                raise RequestError(f"Message {number}: the {key} must be a string, found {found}.")
        if message["role"] not in ROLES:
            raise RequestError(
                f"Message {number}: the role must be one of {', '.join(ROLES)}, found "
                f"{quoted(message['role'])}."
            )
        unknown = message.keys() - {"role", "content"}
        if unknown:
            raise RequestError(
                f"Message {number}: this version does not serve the key {quoted(min(unknown))}."
            )


def _marks(messages: Sequence[Message], rendered: str) -> dict[int, str]:
    """Map each character of the contents, white space apart, to a private-use one not in use.

    White space stays, so a template may trim; control tokens hold none of it.
    """
    contents = {character for m in messages for character in m["content"]}
    characters = sorted(c for c in contents if not c.isspace())
    taken = set(rendered)
    free = (mark for code in _MARKS if (mark := chr(code)) not in taken)
    marks = {ord(character): mark for character, mark in zip(characters, free, strict=False)}
    if len(marks) < len(characters):
        raise RequestError("The messages hold too many different characters for one chat.")
    return marks


def _split_parts(marked: str, marks: Mapping[int, str]) -> list[Part]:
    """Split where marked text starts or ends; white space at its edges counts as the template's."""
    if not marks:
        return [Part(marked, user=False)]
    unmark = {ord(mark): character for character, mark in marks.items()}
    mark = "".join(marks.values())
    user_text = re.compile(rf"([{mark}](?:[{mark}\s]*[{mark}])?)")
    pieces = user_text.split(marked)  # template, user, template, ..., template
    parts = [Part(piece.translate(unmark), user=n % 2 == 1) for n, piece in enumerate(pieces)]
    return [part for part in parts if part.text]


def _runs(parts: Iterable[Part], names: re.Pattern[str]) -> Iterator[tuple[str, bool]]:
    """Yield (text, is a control token); text between control tokens comes in one piece."""
    text = ""
    for part in parts:
        position = 0
        for match in () if part.user else names.finditer(part.text):
            if before := text + part.text[position : match.start()]:
                yield before, False
            yield match.group(), True
            text, position = "", match.end()
        text += part.text[position:]
    if text:
        yield text, False


def _compile(source: str) -> Template:
    """Compile as Hugging Face's apply_chat_template does, with the same helpers at hand."""
    environment = LimitedSandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation]
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


class _Generation(Extension):
    """{% generation %} marks answers for training; here its body is printed as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}…"
