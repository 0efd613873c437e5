"""What a request may ask of decoding, beside its prompt and its length: one checked record."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Literal, NamedTuple, get_args

from drafthead.errors import RequestError

Accept = Literal["exact", "rejection"]
StructureKind = Literal["json_schema", "regex", "grammar"]

# Of each number its limits, and whether the lower one is allowed itself.
_LIMITS: dict[str, tuple[float, float, bool]] = {
    "top_p": (0, 1, False),
    "min_p": (0, 1, True),
    "typical_p": (0, 1, False),
    "repetition_penalty": (0.01, 100, True),
    "frequency_penalty": (-2, 2, True),
    "presence_penalty": (-2, 2, True),
}
LARGEST_ID = 2**31 - 1
_WHOLE: dict[str, tuple[int, int]] = {
    "top_k": (0, LARGEST_ID),
    "seed": (0, 2**64 - 1),
    "logprobs": (0, 1000),
}


class Structure(NamedTuple):
    """Which texts an answer may be: all those of a JSON schema, a regular expression, a grammar."""

    kind: StructureKind
    text: str


@dataclass(frozen=True)
class DecodeOptions:
    """How tokens are chosen, where the text ends, and what is told about it.

    The defaults are greedy decoding. docs/decoding.md defines each option.

    temperature: what logits are divided by before a token is drawn; 0 takes the likeliest.
    top_k: draw among this many likeliest tokens; 0: among all.
    top_p: among the fewest likeliest tokens that have this probability together.
    min_p: among those at least this many times as likely as the likeliest.
    typical_p: among the fewest tokens of the most expected surprise with this probability together.
    seed: decides, with the position, every random number; a fresh one where None.
    accept: how a draft is accepted where tokens are drawn. "exact" gives the text that the seed
        gives without drafts, "rejection" another one of the same distribution.
    repetition_penalty: divides positive logits of tokens in prompt and answer, multiplies others.
    frequency_penalty: is taken from a token's logit for each time the answer has it.
    presence_penalty: is taken once from the logits of the tokens that the answer has.
    logit_bias: is added to the logits of these token ids.
    stop: texts that end the answer and are no part of it.
    stop_ids: tokens that end the answer like an end-of-sequence token.
    logprobs: give log-probabilities, with this many of the likeliest tokens of each place.
    prompt_logprobs: give those of the prompt's tokens too.
    json_schema: the answer is JSON of this schema, given as a mapping or as JSON text; {} is any.
    regex: the whole answer matches this regular expression.
    grammar: the answer is a text of this grammar, in llguidance's variant of Lark.

    Raises:
        RequestError: a value that makes no sense, by its name.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    seed: int | None = None
    accept: Accept = "exact"
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: str | Collection[str] = ()
    stop_ids: Collection[int] = ()
    logprobs: int | None = None
    prompt_logprobs: bool = False
    json_schema: Mapping[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        if self.temperature != 0 or isinstance(self.temperature, bool):
            _check_number("temperature, where it is not 0,", self.temperature, 1e-6, 100)
        for name, (low, high, including) in _LIMITS.items():
            _check_number(name, getattr(self, name), low, high, including)
        for name, (least, most) in _WHOLE.items():
            if getattr(self, name) is not getattr(DecodeOptions, name):
                _check_whole(name, getattr(self, name), least, most)
        if self.accept not in get_args(Accept):
            raise RequestError(f"accept must be exact or rejection, not {self.accept!r}.")
        # A generator would be used up by the check, and stop nothing.
        if not isinstance(self.stop, Collection) or not all(
            isinstance(text, str) and text for text in self.stops
        ):
            raise RequestError(f"stop must be texts of at least one character, not {self.stop!r}.")
        if not isinstance(self.stop_ids, Collection):
            raise RequestError(f"stop_ids must be a list of token ids, not {self.stop_ids!r}.")
        for token in self.stop_ids:
            _check_whole("a token id of stop_ids", token, 0, LARGEST_ID)
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError("logit_bias must give a number for each token id.")
        for token, bias in self.logit_bias.items():
            _check_whole("a token id of logit_bias", token, 0, LARGEST_ID)
            _check_number(f"logit_bias of {token}", bias, -100, 100)
        _ = self.structure

    @classmethod
    def of(cls, named: Mapping[str, Any]) -> DecodeOptions:
        """The options of these names and values; RequestError where there is no such option."""
        known = [one.name for one in fields(cls)]
        for name in named:
            if name not in known:
                raise RequestError(f"There is no option {name!r}; choose from {', '.join(known)}.")
        return cls(**named)

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop texts, where one alone was given too."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def structure(self) -> Structure | None:
        """Which texts the answer may be; None where any.

        Raises:
            RequestError: more than one is given, or one that is no text or no JSON.
        """
        given = [kind for kind in get_args(StructureKind) if getattr(self, kind) is not None]
        if len(given) > 1:
            raise RequestError(f"Give one of {' and '.join(given)}, not both.")
        if not given:
            return None
        value = getattr(self, given[0])
        if given[0] == "json_schema":
            return Structure("json_schema", _json_text(value))
        return Structure(given[0], _sound_text(given[0], value))

    @property
    def draws(self) -> bool:
        """Whether random numbers are needed."""
        return self.temperature > 0

    def seeded(self) -> DecodeOptions:
        """The options with a seed, a fresh one where none was given and one is needed."""
        if self.seed is not None or not self.draws:
            return self
        return replace(self, seed=secrets.randbits(53))  # a whole number in JavaScript too


def _check_number(
    name: str, value: object, low: float, high: float, including: bool = True
) -> None:
    number = math.nan if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    if not low <= number <= high or (number == low and not including):
        limits = f"from {low:g}" if including else f"above {low:g} and up"
        raise RequestError(f"{name} must be a number {limits} to {high:g}, not {value!r}.")


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not low <= int(value) <= high:  # type: ignore[call-overload]
        raise RequestError(f"{name} must be a whole number from {low} to {high}, not {value!r}.")


def _sound_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text, not {value!r}.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise RequestError(
            f"{name} holds half of a surrogate pair, which is no character: remove it."
        ) from None
    return value


def _json_text(schema: object) -> str:
    """A schema as compact JSON text; the order of its keys is that of the answer's."""
    try:
        value = json.loads(schema) if isinstance(schema, str) else schema
        text = json.dumps(value, allow_nan=False)
    except RecursionError:
        raise RequestError("json_schema is nested too deeply.") from None
    except (TypeError, ValueError) as error:
        raise RequestError(f"json_schema must be JSON: {error}.") from None
    if not isinstance(value, Mapping):
        raise RequestError(f"json_schema must be a JSON object, not {text[:80]}.")
    return text
