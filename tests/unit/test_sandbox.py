"""The limited sandbox prints what Jinja's own sandbox prints, until a template goes too far."""

from __future__ import annotations

import pytest
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from drafthead.text.sandbox import LimitedSandbox, template_limits

MESSAGES = [{"role": "system", "content": " Be kind. "}, {"role": "user", "content": "a\nb"}]
HABITS = [
    "{% for m in messages %}{{ loop.index }}{% if not loop.last %},{% endif %}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ m.content | trim }}{% else %}x{% endfor %}",
    "{% for m in messages[1:] %}{% if m.role != 'a' %}{% continue %}{% endif %}x{% endfor %}",
    "{% set s = namespace(n=0) %}{% for m in messages %}{% set s.n = s.n + 1 %}{% endfor %}"
    "{{ s.n }}",
    "{% macro f(x, y=2) %}<{{ x ~ y }}>{% endmacro %}{{ f(1) }}{{ f('a', y=3) }}",
    "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}in{% endcall %}",
    "{% set x %}block {{ messages | length }}{% endset %}{{ x | title }}",
    "{% set x | upper %}block{% endset %}{{ x }}",
    "{% filter upper %}text {{ messages[0].role }}{% endfilter %}",
    "{{ messages | map(attribute='content') | map('trim') | join(', ') }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "{{ messages[-1]['content'].split('\n')[0].replace('a', 'bcd') }}{{ 'x'.join(['1', '2']) }}",
    "{{ '%s-%d' % ('a', 3) }}{{ '{}'.format(1) }}{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}",
    "{{ messages[0].content is defined and 'kind' in messages[0].content }}{{ nothing }}",
    "{{ [1] + [2] }}{{ {'a': 1}.items() | list }}{{ range(3) | list }}{{ 'a\nb' | indent(2) }}",
    "{{ messages | tojson }}{{ 1 < 2 < 3 }}{{ 'abc'[::-1] }}{{ 3 | string }}{{ none }}{{ 1.5 }}",
]


def rendered(environment: ImmutableSandboxedEnvironment, source: str) -> str:
    return environment.from_string(source).render(messages=MESSAGES)


@pytest.mark.parametrize("source", HABITS)
def test_the_limits_change_no_text(source: str) -> None:
    """What templates do every day prints the same, optimized or limited."""
    options = {"trim_blocks": True, "lstrip_blocks": True, "extensions": [loopcontrols]}
    with template_limits(steps=1000, size=1000):
        found = rendered(LimitedSandbox(**options), source)
    assert found == rendered(ImmutableSandboxedEnvironment(**options), source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (
            "{% for i in range(99) %}{% for j in range(99) %}{% endfor %}{% endfor %}",
            "too many steps",
        ),
        (
            "{% for i in range(990) if false %}" + "{% if 1 %}{% endif %}" * 99 + "{% endfor %}",
            "steps",
        ),
        ("{{ 'a' * 1001 }}", "longer than 1000"),
        ("{{ ('a' * 1000).replace('a', 'bb') }}", "longer than 1000"),
        ("{{ (['a' * 100] * 11) | join }}", "longer than 1000"),
        ("{{ ('a' * 100).join(['b'] * 11) }}", "longer than 1000"),
        ("{% set x %}{{ 'a' * 600 }}{{ 'a' * 600 }}{% endset %}", "longer than 1000"),
        ("{% for i in range(9) %}" + "x" * 999 + "{% endfor %}", "prints too much"),
        ("{{ 'a'.center(1001) }}", "longer than 1000"),
        ("{{ 'a' | indent(65) }}", "indents"),
        ("{{ 2 ** 4097 }}", "4096 bits"),
        ("{{ '%01000d' % 1 }}", "wide"),
        ("{{ -9 | _printed_characters }}", "_printed_characters"),
        ("{{ lipsum() }}", "lipsum"),
        ("{{ 'a' | center(9) }}", "center"),
        ("{% for i in range(3) recursive %}{% endfor %}", "recursive"),
        ("{% break %}", "break"),
        ("{{ ''.__class__.x }}", "unsafe"),
    ],
)
def test_what_goes_too_far_is_named(source: str, reason: str) -> None:
    """A template that takes too many steps or builds too much ends with the reason."""
    environment = LimitedSandbox(extensions=[loopcontrols])
    with template_limits(steps=1000, size=1000), pytest.raises(TemplateError, match=reason):
        rendered(environment, source)


def test_limits_end_where_they_were_set() -> None:
    """Each rendering has its own steps, and the ones around it are back afterwards."""
    template = LimitedSandbox().from_string("{% for i in range(40) %}{% endfor %}")
    with template_limits(steps=90, size=50):
        for _ in range(9):
            with template_limits(steps=90, size=50):
                template.render()
        template.render()
        with pytest.raises(TemplateError, match="steps"):
            template.render()
