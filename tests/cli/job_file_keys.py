"""The keys that a job file may have, for tests that compare them with documents and with keywords."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel


def keys(form: type[BaseModel], before: str = "") -> Iterator[str]:
    """The keys of a job file, those of its parts with a dot."""
    for name, field in form.model_fields.items():
        part = field.annotation
        if isinstance(part, type) and issubclass(part, BaseModel):
            yield from keys(part, f"{name}.")
        else:
            yield before + (field.alias or name)
