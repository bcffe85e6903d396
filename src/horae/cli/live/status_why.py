"""`horae status` and `horae why`: one job."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from horae.cli.live.exit_codes import ENDED
from horae.cli.live.relative_time import ago, short
from horae.cli.live.rendering import JobArgument, UrlOption, answer, command_line, next_steps, visible
from horae.cli.live.share_bars import bar
from horae.cli.options import OutputOption
from horae.cli.output import Output, table
from horae.client.job_records import find_job, job_state
from horae.client.service_client import NotThere, ServiceClient, service

if TYPE_CHECKING:
    from rich.console import RenderableType

#: What a job does that neither waits nor has ended.
_DOING = {
    "launching": "is starting",
    "running": "is running",
    "stopping": "is being stopped, and will run again later",
    "holding": "is being stopped, and will be held",
    "cancelling": "is being stopped, for good",
}
#: Which command shows more about a reason, and what it shows.
_MORE = {
    "NotYetConsidered": ("horae why {job}", "again in a moment"),
    "Held": ("horae release {job}", "let it run"),
    "NoFreeGpus": ("horae nodes", "how many GPUs are taken, and where"),
    "Fragmented": ("horae nodes", "where GPUs are free"),
    "OverQuota": ("horae share", "what each queue has and may have"),
    "ReservedForLarger": ("horae why {head}", "about the job they are set aside for"),
    "BackingOff": ("horae events {job}", "what went wrong"),
    "ClusterTooSmall": ("horae nodes", "which nodes there are"),
    "BehindShare": ("horae share", "what each queue has and is entitled to"),
    "Leased": ("horae nodes", "how many GPUs are taken, and where"),
    "AwaitingBids": ("horae why {job}", "again in a moment"),
    "AtRung": ("horae queue --app {app}", "who has yet to come"),
}
_QUEUE = ("horae queue", "how many are ahead of it")
#: Facts of a job, in the order in which people ask for them.
_FACTS = ("name", "user", "queue", "app", "attempt", "preemptions", "failures", "loss")


def status(job: JobArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show everything about a job."""
    with service(url) as at:
        record = find_job(at, job)
        answer(output, record, [record], lambda: _everything(at, record))


def why(job: JobArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Say why a job waits: the one reason its last decision gave, the numbers behind it, and the next step."""
    with service(url) as at:
        record = find_job(at, job)
        told = _why(record)
        answer(output, told, [told], lambda: [*_reason(record, told), *_step(at, record, told)])


def _why(record: Mapping[str, Any]) -> dict[str, Any]:
    told = record.get("why")
    return dict(told) if isinstance(told, Mapping) else {}


def _reason(record: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    """Why it waits; or that it does not."""
    job, state = str(record["id"]), str(record["state"])
    if state in _DOING:
        return [f"{job} does not wait: it {_DOING[state]}{_where(record)}."]
    if state in ENDED:
        given_up = [visible(told["sentence"])] if told.get("reason") == "GivenUp" else []
        return [f"{job} does not wait: it {_ended(record, state)}.", *given_up]
    decided = f" (decided {ago(told['decided'])})" if told.get("decided") else ""
    return [f"{job} waits: {told.get('reason')}{decided}", visible(told.get("sentence", ""))]


def _where(record: Mapping[str, Any]) -> str:
    places = ", ".join(record.get("on") or ())
    began = f", first started {ago(record['started'])}" if record.get("started") else ""
    return f"{' on ' + places if places else ''}{began}"


def _ended(record: Mapping[str, Any], state: str) -> str:
    verb = {"finished": "finished", "failed": "failed", "cancelled": "was cancelled"}[state]
    return f"{verb} {ago(record.get('ended'))}, after running for {short(float(record.get('ran_s') or 0))}"


def _step(at: ServiceClient, record: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    """What to do next. Whoever asks may not see other people's jobs, and is not sent to them."""
    job, state = str(record["id"]), str(record["state"])
    if state == "failed":
        return next_steps((f"horae logs {job}", "what it printed"), (f"horae events {job}", "what befell it"))
    if state in ENDED:
        return next_steps((f"horae events {job}", "what befell it"))
    if state in _DOING:
        return next_steps((f"horae logs -f {job}", "what it prints"))
    line, what = _MORE.get(str(told.get("reason")), _QUEUE)
    numbers = told.get("numbers") or {}
    head, app = (visible(numbers.get(name) or "") for name in ("head", "app"))
    if ("{head}" in line and not _is_seen(at, head)) or ("{app}" in line and not app):
        line, what = _QUEUE
    return next_steps((line.format(job=job, head=head, app=app), what))


def _is_seen(at: ServiceClient, job: str) -> bool:
    try:
        return bool(job_state(at, job))
    except NotThere:
        return False


def _everything(at: ServiceClient, record: Mapping[str, Any]) -> list[RenderableType]:
    task = record.get("task") if isinstance(record.get("task"), Mapping) else {}
    assert isinstance(task, Mapping)
    shown: list[RenderableType] = [table((str(record["id"]), str(record["state"])), list(_facts(record, task)))]
    attempts = [one for one in record.get("attempts") or () if isinstance(one, Mapping)]
    if attempts:
        shown.append(_attempts(attempts))
    told = _why(record)
    return [*shown, *_reason(record, told), *_step(at, record, told)]


def _facts(record: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if task.get("run"):
        yield "run", command_line(task["run"])
    if task.get("workdir"):
        yield "in", visible(task["workdir"])
    yield "gpus", gpus_text(record)
    if record.get("on"):
        yield "on", ", ".join(record["on"])
    progress = float(record.get("progress") or 0)
    yield "progress", f"{bar(progress, 20)} {100 * progress:.0f}%"
    for key in ("submitted", "started", "ended"):
        if record.get(key):
            yield key, f"{ago(record[key])} ({record[key]})"
    yield "ran", short(float(record.get("ran_s") or 0))
    if record.get("left_s") is not None:
        yield "left", f"{short(float(record['left_s']))}, at its speed so far and if it keeps its GPUs"
    yield "GPU time", short(float(record.get("gpu_seconds") or 0))
    for key in _FACTS:
        if record.get(key) not in (None, ""):
            yield key, visible(record[key])


def gpus_text(record: Mapping[str, Any]) -> str:
    """How many GPUs a job has or wants, and which types it accepts."""
    types = " or ".join(record.get("gpu_types") or ())
    return f"{record.get('gpus')} {types}".rstrip()


def _attempts(attempts: list[Mapping[str, Any]]) -> RenderableType:
    """One line an attempt; columns in which nothing stands are left out."""
    keys = dict.fromkeys(key for one in attempts for key in one)
    columns = [key for key in keys if any(one.get(key) not in (None, "", []) for one in attempts)]
    names = [key.replace("_", " ") for key in columns]
    return table(names, [[_cell(one.get(key)) for key in columns] for one in attempts])


def _cell(value: object) -> str:
    """A value of an attempt; moments are told from now."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(visible, value))
    if isinstance(value, str) and len(value) > 19 and value[4:5] == "-" and value[10:11] == "T":
        return ago(value)
    return visible(value)
