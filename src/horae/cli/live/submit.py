"""`horae submit`: one or many jobs from a job file, options and a command."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.live.job_arrays import MOST_JOBS, Trial, expand, trials
from horae.cli.live.rendering import UrlOption, answer, command_line, count, next_steps, visible
from horae.cli.options import OutputOption
from horae.cli.output import Output
from horae.cli.usage_errors import PlainUsage
from horae.client.service_client import ServiceClient, Strange, service
from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Most jobs listed after a submission.
_SHOWN = 12
#: Most jobs named in a suggested command.
_NAMED = 5
_WORDS = "horae.words"


class CommandBehindDashes(PlainUsage):
    """A command whose words after `--` are the user's program and are not parsed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse only the words before `--`; explain `--` if a program comes before it."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = args[end + 1 :] if end < len(args) else None
        ctx.allow_extra_args = True
        try:
            left = super().parse_args(ctx, args[:end])
        except typer.TyperException as error:
            if error.message.lower().startswith("no such option"):
                error.message = f"{error.message.rstrip('.')}; write the options of your program after `--`"
            raise
        if left:
            program = command_line([word for word in (ctx.params.get("file"), *left) if word])
            ctx.fail(f"Write the program after `--`: horae submit -- {program}")
        return left

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with the place of the program."""
        return [*super().collect_usage_pieces(ctx)[:2], "[-- PROGRAM [WORD]...]"]


@dataclass(frozen=True)
class Flags:
    """Options of the command line that set keys of the job file; None if not given."""

    name: str | None
    gpus: str | None
    gpus_min: int | None
    gpus_max: int | None
    nodes: int | None
    cpus_per_gpu: int | None
    memory_per_gpu: str | None
    image: str | None
    queue: str | None
    app: str | None
    app_scheduler: str | None
    time: str | None
    steps: float | None
    env: Sequence[str]
    max_restarts: int | None
    min_runtime: str | None
    not_preemptible: bool
    workdir: str | None
    job_class: str | None

    def job_keys(self) -> Iterator[tuple[str, Any]]:
        """Keys of the job file that are set, and their values."""
        values = {
            "name": self.name,
            "resources.gpus": None if self.gpus is None else _gpus(self.gpus),
            "resources.gpus_min": self.gpus_min,
            "resources.gpus_max": self.gpus_max,
            "resources.nodes": self.nodes,
            "resources.cpus_per_gpu": self.cpus_per_gpu,
            "resources.memory_per_gpu": self.memory_per_gpu,
            "resources.image": self.image,
            "queue": self.queue,
            "app": self.app,
            "app_scheduler": self.app_scheduler,
            "max_duration": self.time,
            "estimate.steps": self.steps,
            "recovery.max_restarts": self.max_restarts,
            "min_runtime": self.min_runtime,
            "preemptible": False if self.not_preemptible else None,
            "workdir": self.workdir,
            "class": self.job_class,
        }
        return ((key, value) for key, value in values.items() if value is not None)


def command(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A job file (YAML); options override it.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("-n", "--name", metavar="NAME", help="Name of the job; its id will be NAME-NUMBER.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="[TYPE:]N", help="GPUs, such as 4, v100:4, or v100:4,k80:4 for either type."),
    ] = None,
    gpus_min: Annotated[
        int | None, typer.Option("--gpus-min", metavar="N", min=1, help="Least GPUs with which the job can run.")
    ] = None,
    gpus_max: Annotated[
        int | None, typer.Option("--gpus-max", metavar="N", min=1, help="Most GPUs that the job can use.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", min=1, help="Exactly N nodes, with the same number of GPUs on each."),
    ] = None,
    cpus_per_gpu: Annotated[
        int | None,
        typer.Option("--cpus-per-gpu", metavar="N", min=1, help="CPUs for each GPU (default: the GPU's share)."),
    ] = None,
    memory_per_gpu: Annotated[
        str | None,
        typer.Option(
            "--memory-per-gpu", metavar="SIZE", help="Memory for each GPU, such as 16GiB (default: its share)."
        ),
    ] = None,
    image: Annotated[
        str | None, typer.Option("--image", metavar="NAME", help="Container image, where the backend has containers.")
    ] = None,
    queue: Annotated[
        str | None, typer.Option("--queue", metavar="PATH", help="Queue of the job, such as team/project.")
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", metavar="NAME", help="App of the job: a group of trials, such as a search.")
    ] = None,
    app_scheduler: Annotated[
        str | None,
        typer.Option("--app-scheduler", metavar="NAME", help="Scheduler that ends poor trials, such as halving:eta=3."),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="Cancel the job after running this long, such as 30m or 4h."),
    ] = None,
    steps: Annotated[
        float | None, typer.Option("--steps", metavar="N", help="Total steps of the job, for progress and estimates.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", metavar="KEY[=VALUE]", help="Set a variable; without VALUE, to its value here. Repeatable."
        ),
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option("--max-restarts", metavar="N", help="Restart a failed job up to N times.")
    ] = None,
    min_runtime: Annotated[
        str | None,
        typer.Option("--min-runtime", metavar="TIME", help="Do not preempt the job in this time after a start."),
    ] = None,
    not_preemptible: Annotated[
        bool, typer.Option("--not-preemptible", help="Never preempt the job once it runs.")
    ] = False,
    workdir: Annotated[
        str | None,
        typer.Option("--workdir", metavar="DIR", help="Working folder of the job (default: the current folder)."),
    ] = None,
    job_class: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="Job class: your jobs of one class share measured speeds."),
    ] = None,
    array: Annotated[
        int | None,
        typer.Option("--array", metavar="N", min=1, max=MOST_JOBS, help="Submit N jobs; {index} becomes 0 to N-1."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="NAME=V,V,...",
            help="Submit a job for each combination of values; {NAME} becomes the value. Repeatable.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only check whether the service would accept the job.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until the job has ended; exit codes as `horae wait`.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job: a job file, a program after `--`, or both. Prints the job's id and the next commands.

    The program is started without a shell. Of your environment it gets only the variables of --env. In an array or a
    grid, {name} is replaced by its value in command, variables, folders and image; {{name}} means a literal {name}.
    """
    flags = Flags(
        name, gpus, gpus_min, gpus_max, nodes, cpus_per_gpu, memory_per_gpu, image, queue, app, app_scheduler, time,
        steps, env or (), max_restarts, min_runtime, not_preemptible, workdir, job_class,
    )  # fmt: skip
    array_trials = trials(array, grid or ())
    jobs = expand(job_from(file, flags, ctx.meta[_WORDS]), array_trials)
    check(jobs, str(file) if file else "the job")
    with service(url) as client:
        if client.address.local:
            _check_folders(jobs)
        ids, notes = _submit(client, jobs, dry_run)
        plan = SubmitPlan(client.address.url, jobs, array_trials, ids, dry_run, notes)
        said = {"ids": ids, "dry_run": dry_run} | ({"notes": notes} if notes else {})
        answer(output, said, [{"id": job_id} for job_id in ids], plan.for_people)
        if wait and not dry_run:
            from horae.cli.live.wait import wait_for

            raise typer.Exit(wait_for(client, ids, None))


def job_from(file: Path | None, flags: Flags, words: Sequence[str] | None) -> dict[str, Any]:
    """The job of a job file and the command line, which overrides the file. Folders become absolute."""
    from horae.service.job_file import load_job_file, read_job

    if file is not None and not file.exists() and words is None:
        raise UserError(f"There is no job file {file}; write a program after `--`: horae submit -- {file}")
    job = load_job_file(file) if file else {}
    for key, value in flags.job_keys():
        _set_key(job, key, value)
    if words is not None:
        job["run"] = list(words)
    if not job.get("run"):
        if file:
            # A key that is not known, such as a misspelt `run`, is named first.
            read_job({**job, "run": "true"}, str(file))
        raise UserError("There is no program to run: write it after `--`, such as horae submit -- python train.py.")
    for key, value in _variables(flags.env):
        _set_key(job, f"envs.{key}", value)
    _make_folders_absolute(job)
    return job


def check(jobs: Sequence[Mapping[str, Any]], where: str) -> None:
    """Check jobs as the service will check them again. Only this check can name the job file in its errors."""
    from horae.service.job_file import read_job

    for job in jobs:
        read_job(dict(job), where)


def _set_key(job: dict[str, Any], path: str, value: Any) -> None:
    """Set a key such as `name` or `resources.gpus`. A section that is no map is left for `check` to report."""
    section, _, key = path.partition(".")
    if not key:
        job[section] = value
    elif isinstance(inner := job.get(section) or {}, Mapping):
        job[section] = {**inner, key: value}


def _gpus(text: str) -> str | dict[str, list[str]]:
    words = [word.strip() for word in text.split(",")]
    return {"any_of": words} if len(words) > 1 else words[0]


def _variables(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for word in words:
        key, equals, value = word.partition("=")
        if not equals and key not in os.environ:
            raise UserError(f"--env {key}: there is no such variable here; write {key}=VALUE.")
        yield key, value if equals else os.environ[key]


def _make_folders_absolute(job: dict[str, Any]) -> None:
    """Make folders absolute: the service has another current folder. checkpoint.dir is relative to workdir."""
    workdir = job.get("workdir") or "."
    if not isinstance(workdir, str):
        return
    job["workdir"] = _full(workdir)
    saves = job.get("checkpoint")
    if isinstance(saves, Mapping) and isinstance(saves.get("dir"), str) and saves["dir"]:
        job["checkpoint"] = {**saves, "dir": _full(saves["dir"], job["workdir"])}


def _full(folder: str, within: str = ".") -> str:
    try:
        return str((Path(within) / Path(folder).expanduser()).absolute().resolve())
    except (OSError, RuntimeError, ValueError):
        raise UserError(f"The folder {folder!r} cannot be found; write the full path.") from None


def _check_folders(jobs: Sequence[Mapping[str, Any]]) -> None:
    for folder in dict.fromkeys(job["workdir"] for job in jobs):
        if not Path(folder).is_dir():
            raise UserError(f"There is no folder {folder} to run in; name another with --workdir.")


def _submit(client: ServiceClient, jobs: Sequence[Mapping[str, Any]], dry_run: bool) -> tuple[list[str], list[str]]:
    """Ids of the jobs, and what the service says of them."""
    said = client.post("/v1/jobs", list(jobs), {"dry_run": dry_run})
    ids, notes = said.get("ids"), said.get("notes")
    if not isinstance(ids, list) or len(ids) != len(jobs):
        raise Strange("The service did not return the ids of the jobs: find them with `horae queue`.")
    return [str(job_id) for job_id in ids], [str(note) for note in notes] if isinstance(notes, list) else []


@dataclass(frozen=True)
class SubmitPlan:
    """The submitted jobs, for output."""

    url: str
    jobs: Sequence[Mapping[str, Any]]
    trials: Sequence[Trial]
    ids: Sequence[str]
    dry_run: bool
    notes: Sequence[str] = ()

    def for_people(self) -> list[RenderableType]:
        """The jobs, their ids, and the next commands."""
        what = count(len(self.jobs), "job")
        first = self.ids[0] if len(self.ids) == 1 else f"{self.ids[0]} to {self.ids[-1]}"
        notes = [visible(note) for note in self.notes]
        if self.dry_run:
            done = f"Dry run: {self.url} would accept {what}. Nothing was submitted."
            return [self._about(), *self._list(), done, *notes]
        return [self._about(), *self._list(), f"Submitted {what}: {first}", *notes, *self._next()]

    def _about(self) -> RenderableType:
        from horae.cli.output import table

        return table(("job", self.jobs[0].get("name", "job")), list(_facts(self.jobs[0], len(self.jobs) == 1)))

    def _list(self) -> list[RenderableType]:
        from horae.cli.output import table

        if len(self.jobs) == 1:
            return []
        names = [name for name in self.trials[0] if name != "index"]
        some = list(zip(self.ids, self.jobs, self.trials, strict=True))[:_SHOWN]
        rows = [(job_id, *(trial[name] for name in names), _run(job)) for job_id, job, trial in some]
        more = [f"... and {len(self.jobs) - _SHOWN:,} more"] if len(self.jobs) > _SHOWN else []
        return [table(("id", *names, "run"), rows), *more]

    def _next(self) -> list[str]:
        job_id = self.ids[0]
        return next_steps(
            ("horae queue", "which jobs run and wait"),
            (f"horae why {job_id}", "why it waits"),
            (f"horae logs -f {job_id}", "what it prints"),
            self._cancel(),
        )

    def _cancel(self) -> tuple[str, str]:
        app = self.jobs[0].get("app")
        if len(self.ids) > 1 and app:
            return f"horae cancel --app {app}", "end them"
        return f"horae cancel {' '.join(self.ids[:_NAMED])}", "end it" if len(self.ids) == 1 else "end them"


def _facts(job: Mapping[str, Any], single: bool) -> Iterator[tuple[str, str]]:
    """Facts of a job for output. Values of variables are not shown, since they may be secret."""
    if single:
        yield "run", _run(job)
    yield "gpus", _gpus_text(job)
    for key in ("nodes", "cpus_per_gpu", "memory_per_gpu", "image"):
        if (job.get("resources") or {}).get(key):
            yield key.replace("_", " "), visible(job["resources"][key])
    yield "queue", str(job.get("queue", "default"))
    for key in ("app", "app_scheduler", "max_duration", "min_runtime"):
        if job.get(key):
            yield key.replace("_", " "), visible(job[key])
    if job.get("preemptible") is False:
        yield "preemptible", "no"
    if job.get("envs"):
        yield "variables", visible(", ".join(job["envs"]))
    yield "in", visible(job["workdir"])


def _run(job: Mapping[str, Any]) -> str:
    run = job["run"]
    return command_line(run) if isinstance(run, list) else visible(run).strip()


def _gpus_text(job: Mapping[str, Any]) -> str:
    resources = job.get("resources") or {}
    gpus = resources.get("gpus", resources.get("gpus_min") or 1)
    if isinstance(gpus, Mapping):
        return " or ".join(map(str, gpus["any_of"]))
    return str(gpus)
