"""JSON files: read, checked against a pydantic model, and refused in one sentence if they do not match it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from horae.core.errors import UserError, in_plain_words

Form = TypeVar("Form", bound=BaseModel)


class _DuplicateKey(Exception):
    """A key that occurs twice in one map. The JSON reader alone would silently keep the last."""


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise _DuplicateKey(name)
        content[name] = value
    return content


def whole_number(value: object) -> object:
    """For pydantic: refuse texts and booleans; 2.0 is a whole number, "2" and true are not."""
    if isinstance(value, bool | str):
        raise ValueError("it must be a whole number")
    return value


def read_document(path: Path, form: type[Form], file_kind: str, page: str, error_type: type[UserError]) -> Form:
    """The content of a JSON file as a `form`.

    Raises `error_type` with one sentence that names the `file_kind` (such as "problem file") and the `page` of the
    reference that describes it.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_duplicates)
    except (OSError, UnicodeDecodeError) as error:
        raise error_type(
            f"The {file_kind} {path} cannot be read ({error.__class__.__name__}): name a JSON file."
        ) from None
    except json.JSONDecodeError as error:
        raise error_type(f"{path} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from None
    except _DuplicateKey as error:
        raise error_type(f"{path} says {error.args[0]!r} twice in one place: keep one of them.") from None
    except (RecursionError, ValueError):
        raise error_type(f"{path} is nested too deeply, or has a number of too many digits; see {page}.") from None
    try:
        return form.model_validate(content)
    except ValidationError as error:
        first: Any = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or f"the {file_kind.split()[0]}"
        raise error_type(f"{path}: {where}: {in_plain_words(first['msg'])}; see {page}.") from None
