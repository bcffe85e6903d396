"""The tables of a store, and their version."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Index,
    LargeBinary,
    MetaData,
    Table,
    Text,
    inspect,
    select,
)

from horae.core.errors import UserError

#: Of the tables. A store of another one is refused, whichever is newer.
SCHEMA = 1

TABLES = MetaData()

#: The version, and the moment from which the journal counts its seconds.
facts = Table("facts", TABLES, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

#: Events and decisions; `body` is JSON with a version of its own.
journal = Table(
    "journal",
    TABLES,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
)

#: Which records name which jobs; or which apps, where an app bids for itself.
journal_jobs = Table(
    "journal_jobs",
    TABLES,
    Column("job", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Index("journal_jobs_by_seq", "seq"),
)

checkpoints = Table(
    "checkpoints",
    TABLES,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

tasks = Table("tasks", TABLES, Column("job", Text, primary_key=True), Column("body", Text, nullable=False))

tokens = Table(
    "tokens",
    TABLES,
    Column("id", Text, primary_key=True),
    Column("digest", Text, nullable=False, unique=True),
    Column("user", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("created_s", Double, nullable=False),
    Column("expires_s", Double),
    Column("revoked", Boolean, nullable=False),
    Column("job", Text, nullable=False, index=True),
)

acts = Table(
    "acts",
    TABLES,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("detail", Text, nullable=False),
)

#: The database itself refuses to change the audit trail.
_GUARDS = {
    "sqlite": [
        f"CREATE TRIGGER acts_no_{verb} BEFORE {verb} ON acts BEGIN SELECT RAISE(ABORT, 'acts are append-only'); END"
        for verb in ("update", "delete")
    ],
    "postgresql": [
        "CREATE FUNCTION acts_stay() RETURNS trigger AS $$ BEGIN RAISE 'acts are append-only'; END $$ LANGUAGE plpgsql",
        "CREATE TRIGGER acts_stay BEFORE UPDATE OR DELETE OR TRUNCATE ON acts EXECUTE FUNCTION acts_stay()",
    ],
}


class WrongSchema(UserError):
    """A store that another release of Horae made."""


def read_epoch(connection: Connection) -> float | None:
    """Unix time from which a store counts its seconds; None if it has no tables yet."""
    if not inspect(connection).has_table(facts.name):
        return None
    found = {row.name: row.value for row in connection.execute(select(facts))}
    if found.get("schema") != str(SCHEMA):
        raise WrongSchema(
            f"This store has tables of version {found.get('schema')} and this release of Horae works with version "
            f"{SCHEMA}: use the release that made it, or another store."
        )
    return float(found["epoch"])


def create(connection: Connection, epoch: float) -> None:
    """Make the tables."""
    TABLES.create_all(connection)
    for guard in _GUARDS[connection.dialect.name]:
        connection.exec_driver_sql(guard)
    known = {"schema": str(SCHEMA), "epoch": repr(epoch)}
    connection.execute(facts.insert(), [{"name": name, "value": value} for name, value in known.items()])
