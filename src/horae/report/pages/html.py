"""HTML from the templates beside this module: one skeleton for every page, and the parts that pages share.

Every value is escaped unless it is `Markup`, which is for drawings made here. Import this module late: jinja2 is not
needed before a page is written.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from horae.report.pages.palette import is_dashed, line_colour

_TEMPLATES = Path(__file__).with_name("templates")


class PageFigure(NamedTuple):
    """A drawing with its title and a note on how to read it."""

    title: str
    note: str
    svg: Markup


def render(template: str, **values: object) -> Markup:
    """The text of a template with these values. The same values give the same text."""
    return Markup(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    """The templates. A name that no caller gives is an error, not an empty text."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals.update(line_colour=line_colour, is_dashed=is_dashed)
    return environment
