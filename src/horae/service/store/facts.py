"""Facts of a store, names and values, each with its checksum. Stored: change by addition."""

from __future__ import annotations

from sqlalchemy import Connection, delete, select

from horae.service.store import schema
from horae.service.store.chain import JournalDamaged, text_digest

#: Appended to the name of a fact for its checksum.
_SUM = ".sha256"


def read_fact(connection: Connection, name: str) -> str | None:
    """The value of a fact, checked; None if there is no such fact."""
    facts = schema.facts
    rows = connection.execute(select(facts.c.name, facts.c.value).where(facts.c.name.in_((name, name + _SUM))))
    found = {str(row.name): str(row.value) for row in rows}
    if name not in found:
        if name + _SUM in found:
            raise JournalDamaged(f"The journal is damaged: its {name} is missing.")
        return None
    # Facts of version 1 have no checksum until the store is migrated.
    if name + _SUM in found and text_digest(found[name]).hex() != found[name + _SUM]:
        raise JournalDamaged(f"The journal is damaged: its {name} is not what was written.")
    return found[name]


def write_fact(connection: Connection, name: str, value: str) -> None:
    """Set a fact."""
    facts = schema.facts
    connection.execute(delete(facts).where(facts.c.name.in_((name, name + _SUM))))
    rows = {name: value, name + _SUM: text_digest(value).hex()}
    connection.execute(facts.insert(), [{"name": key, "value": text} for key, text in rows.items()])
