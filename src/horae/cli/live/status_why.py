"""`horae status` and `horae why`: details of one job, and why it waits."""

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
from horae.core.counted import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

#: What a job in each active state does.
_ACTIVITY = {
    "launching": "is starting",
    "running": "is running",
    "stopping": "is being stopped, and will run again later",
    "holding": "is being stopped, and will be held",
    "cancelling": "is being stopped, for good",
}
#: By reason code: the command that shows more, and what it shows.
_NEXT_COMMAND = {
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
    "AtRung": ("horae queue --app {app}", "which trials have yet to come"),
}
_QUEUE = ("horae queue", "how many are ahead of it")
#: Fields of a job in `horae status`, in order.
_FACTS = ("name", "user", "queue", "app", "attempt", "preemptions", "failures", "loss")


def status(job: JobArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show everything about a job."""
    with service(url) as client:
        record = find_job(client, job)
        answer(output, record, [record], lambda: _everything(client, record))


def why(job: JobArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Say why a job waits: the reason and numbers of the last decision, and the next step."""
    with service(url) as client:
        record = find_job(client, job)
        why = _why(record)
        answer(output, why, [why], lambda: [*_reason(record, why), *_next_step(client, record, why)])


def _why(record: Mapping[str, Any]) -> dict[str, Any]:
    explanation = record.get("why")
    return dict(explanation) if isinstance(explanation, Mapping) else {}


def _reason(record: Mapping[str, Any], explanation: Mapping[str, Any]) -> list[str]:
    """Why the job waits; or what it does instead."""
    job, state = str(record["id"]), str(record["state"])
    if state in _ACTIVITY:
        return [f"{job} does not wait: it {_ACTIVITY[state]}{_where(record)}."]
    if state in ENDED:
        given_up = [visible(explanation["sentence"])] if explanation.get("reason") == "GivenUp" else []
        return [f"{job} does not wait: it {_ended(record, state)}.", *given_up]
    decided = f" (decided {ago(explanation['decided'])})" if explanation.get("decided") else ""
    return [f"{job} waits: {explanation.get('reason')}{decided}", visible(explanation.get("sentence", ""))]


def _where(record: Mapping[str, Any]) -> str:
    places = ", ".join(record.get("on") or ())
    began = f", first started {ago(record['started'])}" if record.get("started") else ""
    return f"{' on ' + places if places else ''}{began}"


def _ended(record: Mapping[str, Any], state: str) -> str:
    verbs = {"cancelled": "was cancelled", "timeout": "reached its time limit"}
    verb = verbs.get(state, state)
    return f"{verb} {ago(record.get('ended'))}, after running for {short(float(record.get('ran_s') or 0))}"


def _next_step(client: ServiceClient, record: Mapping[str, Any], explanation: Mapping[str, Any]) -> list[str]:
    """The next command to suggest; never one about a job that the user may not see."""
    job, state = str(record["id"]), str(record["state"])
    if state == "failed":
        return next_steps((f"horae logs {job}", "what it printed"), (f"horae events {job}", "what happened to it"))
    if state in ENDED:
        return next_steps((f"horae events {job}", "what happened to it"))
    if state in _ACTIVITY:
        return next_steps((f"horae logs -f {job}", "what it prints"))
    line, what = _NEXT_COMMAND.get(str(explanation.get("reason")), _QUEUE)
    numbers = explanation.get("numbers") or {}
    head, app = (visible(numbers.get(name) or "") for name in ("head", "app"))
    if ("{head}" in line and not _is_visible(client, head)) or ("{app}" in line and not app):
        line, what = _QUEUE
    return next_steps((line.format(job=job, head=head, app=app), what))


def _is_visible(client: ServiceClient, job: str) -> bool:
    try:
        return bool(job_state(client, job))
    except NotThere:
        return False


def _everything(client: ServiceClient, record: Mapping[str, Any]) -> list[RenderableType]:
    task = record.get("task") if isinstance(record.get("task"), Mapping) else {}
    assert isinstance(task, Mapping)
    shown: list[RenderableType] = [table((str(record["id"]), str(record["state"])), list(_facts(record, task)))]
    attempts = [attempt for attempt in record.get("attempts") or () if isinstance(attempt, Mapping)]
    if attempts:
        shown.append(_attempts(attempts))
    explanation = _why(record)
    return [*shown, *_reason(record, explanation), *_next_step(client, record, explanation)]


def _facts(record: Mapping[str, Any], task: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if task.get("run"):
        yield "run", command_line(task["run"])
    if task.get("workdir"):
        yield "in", visible(task["workdir"])
    yield "gpus", gpus_text(record)
    if task.get("cpus_per_gpu"):
        yield "CPUs per GPU", visible(task["cpus_per_gpu"])
    if task.get("memory_mb_per_gpu"):
        yield "memory per GPU", f"{int(task['memory_mb_per_gpu']):,} MiB"
    if task.get("image"):
        yield "image", visible(task["image"])
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
    """GPU count of a job, occupied or requested, its accepted GPU types, and the number of nodes it asks for."""
    types, nodes = " or ".join(record.get("gpu_types") or ()), record.get("nodes")
    on = f"on {counted(int(nodes), 'node')}" if nodes else ""
    return " ".join(filter(None, (str(record.get("gpus")), types, on)))


def _attempts(attempts: list[Mapping[str, Any]]) -> RenderableType:
    """One line per attempt; empty columns are left out."""
    keys = dict.fromkeys(key for attempt in attempts for key in attempt)
    columns = [key for key in keys if any(attempt.get(key) not in (None, "", []) for attempt in attempts)]
    names = [key.replace("_", " ") for key in columns]
    return table(names, [[_cell(attempt.get(key)) for key in columns] for attempt in attempts])


def _cell(value: object) -> str:
    """A value of an attempt as text; timestamps relative to now."""
    if value is None:
        return ""
    if isinstance(value, list):
        return ", ".join(map(visible, value))
    if isinstance(value, str) and len(value) > 19 and value[4:5] == "-" and value[10:11] == "T":
        return ago(value)
    return visible(value)
