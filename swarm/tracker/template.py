"""What a chat template reads besides the messages.

Place in the flow: below codec.py. Knows nothing of tokens.
"""

from __future__ import annotations

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

_GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"})
"""Names that rendering itself provides."""


class _Generation(Extension):
    """The tag around replies that some templates have; here it only has to be understood."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def template_options(template: str) -> frozenset[str]:
    """The variables that a request may set; none of a template that cannot be read."""
    environment = ImmutableSandboxedEnvironment(extensions=[_Generation, loopcontrols])
    try:
        return frozenset(meta.find_undeclared_variables(environment.parse(template))) - _GIVEN
    except TemplateError:
        return frozenset()
