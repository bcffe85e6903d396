"""Slurm's accounting of jobs: the output of `sacct --parsable2`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from horae.core.job import DEFAULT_QUEUE, JobSpec
from horae.core.throughputs import Throughputs
from horae.workload.formats.table import BadCell, BadTrace, Cell, Format, LeftOut, RowReader, Table, read_csv, whole

#: The command whose output is read here. Job names are left out, because they may hold a bar.
COMMAND = (
    "sacct --parsable2 --allusers --duplicates --format=JobID,User,Account,Submit,Start,End,ElapsedRaw,State,"
    "AllocTRES,ReqTRES"
)

#: States, as `sacct` names them, of jobs that will do nothing more in this run.
OVER = frozenset(
    "BOOT_FAIL CANCELLED COMPLETED DEADLINE FAILED LAUNCH_FAILED NODE_FAIL OUT_OF_MEMORY PREEMPTED REQUEUED REVOKED "
    "TIMEOUT".split()
)
GOING_ON = frozenset("COMPLETING CONFIGURING PENDING RESIZING RUNNING STAGE_OUT SUSPENDED".split())

#: Texts that Slurm prints for a moment that has not come.
NO_TIMES = frozenset(("", "None", "Unknown"))

#: The name under which Slurm counts GPUs; those of a type are `gres/gpu:TYPE`.
GPUS = "gres/gpu"

Row = Sequence[Cell]


@dataclass(frozen=True)
class Accounting:
    """The rows of one table, read by the names of the columns."""

    place: dict[str, int]

    @staticmethod
    def of(table: Table) -> Accounting:
        """Refuse a table that lacks what no job can do without."""
        present = set(table.header)
        for alternatives in (
            ("JobID",),
            ("Submit",),
            ("ElapsedRaw", "Elapsed", "Start and End"),
            ("AllocTRES", "ReqTRES"),
        ):
            if not any(present.issuperset(columns.split(" and ")) for columns in alternatives):
                raise BadTrace(
                    f"{table.path} lacks the column {' or '.join(alternatives)} (it has {', '.join(table.header)}); "
                    f"get it with `{COMMAND}`."
                )
        return Accounting({name: number for number, name in enumerate(table.header)})

    def cell(self, row: Row, column: str) -> str:
        """What stands in a column; nothing where there is no such column."""
        return str(row[self.place[column]]).strip() if column in self.place else ""

    def moment(self, row: Row, column: str) -> datetime | None:
        """A time, if it has come."""
        text = self.cell(row, column)
        if text in NO_TIMES:
            return None
        moment = _parsed_moment(text)
        if moment is None:
            raise BadCell(f"{column} is {text!r}, not a date and time such as 2024-03-01T07:01:55")
        return moment

    def state(self, row: Row) -> str:
        """The state without who brought it about, as in `CANCELLED by 1000`; empty if the table does not say."""
        state = self.cell(row, "State").partition(" ")[0]
        if state and state not in OVER | GOING_ON:
            raise BadCell(f"State is {state!r}, which is none of {', '.join(sorted(OVER | GOING_ON))}")
        return state

    def over(self, row: Row) -> bool:
        """Whether a run has ended; where no state is given, its end tells."""
        if "State" in self.place or "End" not in self.place:
            return self.state(row) not in GOING_ON
        return self.moment(row, "End") is not None

    def elapsed_s(self, row: Row) -> float:
        """How long a run held its GPUs; 0 if it never began."""
        for column in ("ElapsedRaw", "Elapsed"):
            if column in self.place:
                return _seconds(self.cell(row, column), column)
        start, end = self.moment(row, "Start"), self.moment(row, "End")
        return (end - start).total_seconds() if start and end else 0.0

    def gpus(self, row: Row) -> tuple[int, tuple[str, ...]]:
        """How many GPUs a run had, and the types that its user asked for by name.

        What Slurm chose among several types is no wish: it counts only where nothing is known of the request.
        """
        had, had_types = _gpus(self.cell(row, "AllocTRES"), "AllocTRES")
        asked, asked_types = _gpus(self.cell(row, "ReqTRES"), "ReqTRES")
        return had or asked, asked_types if asked else had_types

    def queue(self, row: Row) -> str:
        """The account, and the user in it."""
        return "/".join(filter(None, (self.cell(row, "Account"), self.cell(row, "User")))) or DEFAULT_QUEUE


def read(path: Path) -> Table:
    """Read the jobs that sacct printed, without their steps; files may have been put together, headers and all."""
    table = read_csv(path, "|")
    # `--parsable` ends every line with a bar, and so with a column without a name.
    bare = table.header[-1] == ""
    header, cut = (table.header[:-1], slice(-1)) if bare else (table.header, slice(None))
    place = header.index("JobID") if "JobID" in header else 0
    kept = [
        (line, row[cut])
        for line, row in zip(table.lines, table.rows, strict=True)
        if tuple(row) != table.header and "." not in row[min(place, len(row) - 1)]
    ]
    return Table(path, header, [line for line, _ in kept], [row for _, row in kept], len(header))


def row_reader(table: Table, _: Throughputs | None) -> RowReader:
    """Read rows of which a job that was requeued has several; the last of them stands for the job.

    Time 0 is the earliest submission in the file. A job's work is the time that all its runs together took.
    """
    columns = Accounting.of(table)
    rows = [row for row in table.rows if len(row) == table.width]
    submissions = [columns.cell(row, "Submit") for row in rows]
    origin = min((moment for text in submissions if (moment := _parsed_moment(text))), default=None)
    runs: dict[str, list[Row]] = {}
    for row in rows:
        runs.setdefault(columns.cell(row, "JobID"), []).append(row)

    def job(_: int, row: Row) -> JobSpec:
        records = runs[columns.cell(row, "JobID")]
        if row is not records[-1]:
            raise LeftOut("earlier records of jobs that are told again")
        records = _runs_of_one_job(columns, records)
        work_s = sum(columns.elapsed_s(run) for run in records)
        gpus, gpu_types = columns.gpus(records[-1])
        if gpus == 0:
            raise LeftOut("jobs without GPUs")
        if work_s == 0:
            raise LeftOut("jobs that never ran")
        submitted = columns.moment(records[0], "Submit")
        if submitted is None or origin is None:
            raise BadCell("Submit is missing")
        return JobSpec(
            id=columns.cell(row, "JobID"),
            submit_s=(submitted - origin).total_seconds(),
            gpus=gpus,
            work=work_s,
            gpu_types=gpu_types,
            queue=columns.queue(records[-1]),
        )

    return job


def _runs_of_one_job(columns: Accounting, records: Sequence[Row]) -> list[Row]:
    """The runs of a job in order of time, each once, though accounting of overlapping times may tell it twice."""
    submit, start = (
        [str(_parsed_moment(columns.cell(row, name)) or "") for row in records] for name in ("Submit", "Start")
    )
    latest = max(submit)
    ended = {(came, began): row for came, began, row in zip(submit, start, records, strict=True) if columns.over(row)}
    # Requeued, a job is submitted anew: what was told while it still ran is void once that run has ended.
    if not any(came == latest for came, _ in ended):
        raise LeftOut("jobs that are running or pending")
    return [ended[moments] for moments in sorted(ended)]


def _parsed_moment(text: str) -> datetime | None:
    """The moment a text names, or None; whether that is a mistake is for its row to say.

    Slurm prints local times. Where it was told to add how far these are from UTC, all are made UTC.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment


def _seconds(text: str, column: str) -> float:
    """Seconds, plain or as [DAYS-]HOURS:MINUTES:SECONDS."""
    days, dash, clock = text.rpartition("-")
    try:
        values = [float(value) for value in clock.split(":")]
        seconds = sum(value * 60.0**place for place, value in enumerate(reversed(values)))
        return seconds + 86400 * float(days) if dash else seconds
    except ValueError:
        raise BadCell(f"{column} is {text!r}, not a time such as 5400 or 1-02:30:00") from None


def _gpus(tres: str, column: str) -> tuple[int, tuple[str, ...]]:
    """How many GPUs a list such as `cpu=8,gres/gpu:a100=4,gres/gpu=4` has, and their types if it names those of all."""
    total, typed = 0, {}
    for entry in tres.split(","):
        name, _, count = entry.partition("=")
        if name == GPUS:
            total = whole(count, f"{GPUS} in {column}")
        elif name.startswith(f"{GPUS}:"):
            typed[name.removeprefix(f"{GPUS}:")] = whole(count, f"{name} in {column}")
    named = sum(typed.values())
    total = total or named
    return total, tuple(sorted(name for name, count in typed.items() if count)) if named == total else ()


SLURM = Format(
    "slurm",
    "Slurm's accounting, as `sacct --parsable2` prints it: JobID|Submit|ElapsedRaw|AllocTRES|...",
    lambda line: "|" in line and "JobID" in (name.strip() for name in line.split("|")),
    read,
    row_reader,
)
