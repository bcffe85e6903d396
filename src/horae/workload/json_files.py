"""Files that say one thing in JSON: read, compared with the form they should have, and refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from horae.core.errors import UserError, in_plain_words

Form = TypeVar("Form", bound=BaseModel)


class _Twins(Exception):
    """A key that comes twice: JSON would keep the last and lose the first without a word."""


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for name, value in pairs:
        if name in said:
            raise _Twins(name)
        said[name] = value
    return said


def whole_number(said: object) -> object:
    """Refuses what is no number; 2.0 is a whole one, but neither "2" nor true is."""
    if isinstance(said, bool | str):
        raise ValueError("it must be a whole number")
    return said


def read_document(path: Path, form: type[Form], called: str, page: str, bad: type[UserError]) -> Form:
    """The contents of a file `called` so; what does not have the form is refused, with the page that describes it."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_twins)
    except (OSError, UnicodeDecodeError) as error:
        raise bad(f"The {called} {path} cannot be read ({error.__class__.__name__}): name a JSON file.") from None
    except json.JSONDecodeError as error:
        raise bad(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except _Twins as error:
        raise bad(f"{path} says {error.args[0]!r} twice in one place: keep one of them.") from None
    except (RecursionError, ValueError):
        raise bad(f"{path} is nested too deeply, or has a number of too many digits; see {page}.") from None
    try:
        return form.model_validate(said)
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or f"the {called.split()[0]}"
        raise bad(f"{path}: {where}: {in_plain_words(first['msg'])}; see {page}.") from None
