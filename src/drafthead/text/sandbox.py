"""A sandbox for chat templates that costs little, whatever the template says.

A template is a program that comes with a downloaded file. Jinja's sandbox keeps it from reaching
Python; here its loop steps, calls, filters and comparisons are also counted, each by the length of
what it works on, and no value may grow beyond what a chat needs. Filters outside FILTERS do not
exist. Counts and not times, so that what is refused is refused on every machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SOURCE_CHARACTERS = 1 << 16  # four times the longest template in use
MAX_INTEGER_BITS = 4096
MAX_INDENT = 64
CALL_STEPS = 8
STEP_SIZE = 64  # characters or elements that a call or filter works on in one step
STEP_NODES = 16  # nodes of a loop's body that count as one step
FILTERS = frozenset(
    {
        "abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first",
        "float", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower",
        "map", "max", "min", "reject", "rejectattr", "replace", "reverse", "round", "safe",
        "select", "selectattr", "sort", "string", "title", "tojson", "trim", "unique", "upper",
    }
)  # fmt: skip
_DENIED_METHODS = frozenset({"expandtabs", "translate"})  # one character may become any text
_WIDE = re.compile(r"%[^%a-zA-Z]*(\*|\d{4})|\{[^}]*\d{4}")  # a format that pads without limit


@dataclass
class _Limits:
    steps: int  # that are left
    size: int  # characters or elements of one value
    printable: int  # characters that may still be printed, by blocks and macros too


_limits: ContextVar[_Limits] = ContextVar("template limits")


@contextmanager
def template_limits(steps: int, size: int) -> Iterator[None]:
    """Let templates rendered inside take so many steps, and build values of at most `size`."""
    token = _limits.set(_Limits(steps, size, 4 * size))
    try:
        yield
    finally:
        _limits.reset(token)


class LimitedSandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment whose templates stay within template_limits.

    A template that breaks them raises a TemplateError, as one that is malformed does.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **options: Any) -> None:
        # Not optimized: what is constant is computed when rendered, under the limits.
        super().__init__(optimized=False, **options)
        del self.globals["lipsum"]

    def from_string(self, source: Any, *_: Any, **__: Any) -> Template:
        """Compile the one template of this environment, with the filters that it has now.

        Any way in which that fails is a TemplateError.
        """
        self.filters = {name: _bounded(name, self.filters[name]) for name in FILTERS}
        checks = (_within_limits, _stepping, _printed, _printed_characters)
        self.filters |= {_hidden_name(check): check for check in checks}
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise TemplateError(f"it has more than {MAX_SOURCE_CHARACTERS} characters")
        try:
            tree = _Limiting().visit(self.parse(source))
            code = self.compile(tree)
        except TemplateError:
            raise
        except Exception as error:  # Python compiles what Jinja writes, and may refuse it
            raise TemplateError(str(error)) from None
        return self.template_class.from_code(self, code, self.make_globals(None))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Deny a few methods of text more than Jinja does."""
        return attr not in _DENIED_METHODS and super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805
        """Call what a template calls, within the limits."""
        _step(count=CALL_STEPS)
        _check_arguments(_text_of(__obj), getattr(__obj, "__name__", ""), args, kwargs)
        return _within_limits(__context, super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Compute what may grow, if it will not grow too far."""
        numbers = isinstance(left, int) and isinstance(right, int)
        if numbers and operator in ("*", "**"):
            bits = left.bit_length()
            bits = bits * right if operator == "**" else bits + right.bit_length()
            if bits > MAX_INTEGER_BITS:
                raise SecurityError(f"a number has more than {MAX_INTEGER_BITS} bits")
        elif operator == "*":
            sizes = [len(x) if isinstance(x, Sized) else x for x in (left, right)]
            _check_size(sizes[0] * sizes[1])
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return _within_limits(context, super().call_binop(context, operator, left, right))


class _Limiting(NodeTransformer):
    """Puts the checks of steps and sizes into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.For:  # noqa: N802
        if node.recursive:
            raise TemplateError("it has a recursive loop")
        self.generic_visit(node)
        weight = nodes.Const(sum(1 for _ in node.find_all(nodes.Node)) // STEP_NODES)
        node.iter = _filtered(node.iter, _stepping, node.lineno)
        node.iter.args.append(weight)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:  # noqa: N802
        self.generic_visit(node)
        texts = [n for n in node.nodes if isinstance(n, nodes.TemplateData)]
        values = [n if n in texts else _filtered(n, _printed, node.lineno) for n in node.nodes]
        count = nodes.Const(sum(len(text.data) for text in texts))
        node.nodes = [_filtered(count, _printed_characters, node.lineno), *values]
        return node

    def visit_Concat(self, node: nodes.Expr) -> nodes.Filter:  # noqa: N802
        self.generic_visit(node)
        return _filtered(node, _within_limits, node.lineno)

    visit_Compare = visit_Concat

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.AssignBlock:  # noqa: N802
        self.generic_visit(node)
        node.filter = _filtered(node.filter, _within_limits, node.lineno)
        return node


def _hidden_name(check: Callable[..., Any]) -> str:
    return f"!{check.__name__}"  # which no template can write


def _filtered(node: nodes.Node | None, check: Callable[..., Any], line: int) -> nodes.Filter:
    return nodes.Filter(
        cast(nodes.Expr, node), _hidden_name(check), [], [], None, None, lineno=line
    )


def _step(value: Any = None, count: int = 1) -> None:
    limits = _limits.get()
    limits.steps -= count + (len(value) // STEP_SIZE if isinstance(value, Sized) else 0)
    if limits.steps < 0:
        raise SecurityError("it takes too many steps")


def _check_size(size: float) -> None:
    if size > _limits.get().size:
        raise SecurityError(f"it builds a value longer than {_limits.get().size}")


@pass_context
def _within_limits(_: Context, value: Any) -> Any:
    _step()
    if isinstance(value, str | list | tuple | dict):
        _check_size(len(value))
    return value


@pass_context
def _stepping(_: Context, values: Iterable[Any], weight: int) -> Iterator[Any]:
    for value in values:
        _step(count=1 + weight)
        yield value


@pass_context
def _printed_characters(_: Context, count: int) -> str:
    limits = _limits.get()
    limits.printable -= count
    if limits.printable < 0:
        raise SecurityError("it prints too much")
    return ""


@pass_context
def _printed(context: Context, value: Any) -> str:
    text = str(value)
    _printed_characters(context, len(text))
    return text


def _check_format(layout: str) -> None:
    if _WIDE.search(layout):
        raise SecurityError("it formats a very wide field")


def _text_of(method: Any) -> Any:
    """The text that a method belongs to; Jinja wraps str.format."""
    return getattr(getattr(method, "__wrapped__", method), "__self__", None)


def _check_arguments(owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Check what a call or a filter works on, and what it would build."""
    _step(owner)
    for value in (*args, *kwargs.values()):
        if isinstance(value, int):
            _check_size(abs(value))
    if name in ("indent", "tojson") and any(
        isinstance(value, str) or (isinstance(value, int) and abs(value) > MAX_INDENT)
        for value in (*args, *kwargs.values())
    ):
        raise SecurityError(f"it indents by more than {MAX_INDENT}")
    if name in ("format", "format_map") and isinstance(owner, str):
        _check_format(owner)
    if name == "replace" and isinstance(owner, str) and len(args) >= 2:
        old, new = str(args[0]), str(args[1])
        _check_size(len(owner) + owner.count(old) * max(0, len(new) - len(old)))
    if name == "join":
        parts, gap = (
            (args[0], owner) if isinstance(owner, str) else (owner, "".join(map(str, args)))
        )
        if isinstance(parts, list | tuple):
            _check_size(sum(len(str(part)) + len(gap) for part in parts))


def _bounded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter within the limits.

    It takes the context and hands on what the filter itself asks Jinja for. A filter that takes the
    context is never computed when the template is compiled.
    """
    asks_for = getattr(getattr(function, "jinja_pass_arg", None), "name", "nothing")

    @pass_context
    def bounded(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_arguments(value, name, args, kwargs)
        given: dict[str, list[Any]] = {
            "nothing": [],
            "context": [context],
            "eval_context": [context.eval_ctx],
            "environment": [context.environment],
        }
        first = given[asks_for]
        return _within_limits(context, function(*first, value, *args, **kwargs))

    return bounded
