"""The tables of the store and their version. Stored: change by addition."""

from __future__ import annotations

from collections.abc import Callable

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
    update,
)

from horae.core.errors import UserError
from horae.service.store.chain import JournalDamaged


def _add_chain(connection: Connection) -> None:
    """Version 2: identity, digests of all records, policy memory apart, checksums of checkpoints and facts."""
    from horae.service.store.chain_migration import add_chain

    add_chain(connection)


def _add_scopes(connection: Connection) -> None:
    """Version 3: tokens have a scope, and a checksum of them all."""
    from horae.service.store.verification import seal_tokens

    connection.exec_driver_sql("ALTER TABLE tokens ADD COLUMN scope TEXT NOT NULL DEFAULT ''")
    seal_tokens(connection)


#: Steps from each version of the tables to the next; the first makes version 2 of version 1. Each adds, and drops
#: nothing. All run in one transaction when the owner of an older store opens it.
MIGRATIONS: tuple[Callable[[Connection], None], ...] = (_add_chain, _add_scopes)
#: Version of the tables. A store of a later version is refused.
SCHEMA = 1 + len(MIGRATIONS)

TABLES = MetaData()

#: Names and values: schema version, identity, epoch (Unix time of second 0), initial settings, last options of
#: `serve`; see `facts.py`.
facts = Table("facts", TABLES, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

#: Events and decisions. `body` is JSON with its own version; `kind` is the class name of the record.
journal = Table(
    "journal",
    TABLES,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", Double, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
)

#: The chain: digest of each record, also of records that compaction dropped, and the head after it. `task` is the
#: digest of the task that was submitted with the record.
digests = Table(
    "digests",
    TABLES,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("digest", LargeBinary, nullable=False),
    Column("head", LargeBinary, nullable=False),
    Column("task", LargeBinary),
)

#: What decisions wrote to the policy's memory, until two checkpoints cover it. Its digest is in the record's body.
memories = Table(
    "memories",
    TABLES,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("body", LargeBinary, nullable=False),
)

#: Which records name which jobs, or which apps that bid for themselves (`app:NAME`).
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
    #: SHA-256 of number and body.
    Column("digest", LargeBinary),
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
    Column("scope", Text, nullable=False, server_default=""),
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

#: Triggers by which the database refuses changes of the audit trail.
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
    """The store was made by another release of Horae."""


def read_version(connection: Connection) -> int | None:
    """Version of the tables of a store; None if the store has no tables yet."""
    if not inspect(connection).has_table(facts.name):
        return None
    stored = str(connection.scalar(select(facts.c.value).where(facts.c.name == "schema")))
    if not stored.isdecimal():
        raise JournalDamaged("The journal is damaged: the version of its tables cannot be read.")
    version = int(stored)
    if version > SCHEMA:
        raise WrongSchema(
            f"This journal has tables of version {version} and this release of Horae knows versions up to {SCHEMA}: "
            "use the release that made the journal, or another journal."
        )
    return version


def create(connection: Connection) -> None:
    """Create the tables."""
    TABLES.create_all(connection)
    for guard in _GUARDS[connection.dialect.name]:
        connection.exec_driver_sql(guard)
    connection.execute(facts.insert(), {"name": "schema", "value": str(SCHEMA)})


def migrate(connection: Connection, version: int) -> None:
    """Bring the tables of an older version up to date."""
    for step in MIGRATIONS[version - 1 :]:
        step(connection)
    connection.execute(update(facts).where(facts.c.name == "schema").values(value=str(SCHEMA)))
