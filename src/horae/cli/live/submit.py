"""`horae submit`: a job from a file, from flags, or from both; or many of them."""

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

#: Jobs of a plan that fit on a screen.
_SHOWN = 12
#: Jobs that a command line may name and still be read.
_NAMED = 5
_WORDS = "horae.words"


class CommandBehindDashes(PlainUsage):
    """A command whose words behind `--` are a program of the user's, whatever they look like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what stands behind the first `--` from being parsed; say so if a program stands before it."""
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[_WORDS] = args[end + 1 :] if end < len(args) else None
        ctx.allow_extra_args = True
        try:
            left = super().parse_args(ctx, args[:end])
        except typer.TyperException as error:
            if error.message.lower().startswith("no such option"):
                error.message = f"{error.message.rstrip('.')}; options of a program stand behind `--`"
            raise
        if left:
            program = command_line([word for word in (ctx.params.get("file"), *left) if word])
            ctx.fail(f"A program to run stands behind `--`: horae submit -- {program}")
        return left

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The usage line, with the place of the program."""
        return [*super().collect_usage_pieces(ctx)[:2], "[-- PROGRAM [WORD]...]"]


@dataclass(frozen=True)
class Flags:
    """What the command line says of a job. None is not said."""

    name: str | None
    gpus: str | None
    gpus_min: int | None
    gpus_max: int | None
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

    def said(self) -> Iterator[tuple[str, Any]]:
        """The keys of a job file that are set, and their values."""
        values = {
            "name": self.name,
            "resources.gpus": None if self.gpus is None else _gpus(self.gpus),
            "resources.gpus_min": self.gpus_min,
            "resources.gpus_max": self.gpus_max,
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
        Path | None, typer.Argument(metavar="FILE", help="A job file (YAML); flags override it.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("-n", "--name", metavar="NAME", help="Name of the job; its id is NAME-NUMBER.")
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option("--gpus", metavar="[TYPE:]N", help="4, v100:4, or v100:4,k80:4 for whichever serves best."),
    ] = None,
    gpus_min: Annotated[
        int | None, typer.Option("--gpus-min", metavar="N", min=1, help="It can do with so few.")
    ] = None,
    gpus_max: Annotated[int | None, typer.Option("--gpus-max", metavar="N", min=1, help="It can use so many.")] = None,
    queue: Annotated[str | None, typer.Option("--queue", metavar="PATH", help="Such as team/project.")] = None,
    app: Annotated[str | None, typer.Option("--app", metavar="NAME", help="The app whose trial the job is.")] = None,
    app_scheduler: Annotated[
        str | None, typer.Option("--app-scheduler", metavar="NAME", help="Who ends poor trials, such as halving:eta=3.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="TIME", help="Longest it may run, such as 90, 30m or 4h.")
    ] = None,
    steps: Annotated[
        float | None, typer.Option("--steps", metavar="N", help="Steps it has to do, for progress and estimates.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="KEY[=VALUE]", help="A variable; without a value, as it is here. Repeatable."),
    ] = None,
    max_restarts: Annotated[
        int | None, typer.Option("--max-restarts", metavar="N", help="Run it again so often when it fails.")
    ] = None,
    min_runtime: Annotated[
        str | None, typer.Option("--min-runtime", metavar="TIME", help="Once it runs, leave it alone for so long.")
    ] = None,
    not_preemptible: Annotated[
        bool, typer.Option("--not-preemptible", help="Once it runs, leave it alone until it ends.")
    ] = False,
    workdir: Annotated[
        str | None, typer.Option("--workdir", metavar="DIR", help="Where it runs; by default the current folder.")
    ] = None,
    job_class: Annotated[
        str | None, typer.Option("--class", metavar="NAME", help="Your jobs of a class are taken to be equally fast.")
    ] = None,
    array: Annotated[
        int | None,
        typer.Option("--array", metavar="N", min=1, max=MOST_JOBS, help="N jobs; {index} is 0 to N-1."),
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option("--grid", metavar="NAME=V,V,...", help="A job for each combination; {NAME} is the value."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say whether the service would take it.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Stay until it has ended; exit codes as of `horae wait`.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Submit a job: a file, a program behind `--`, or both. Its id and useful commands are the answer.

    The program is started as it stands, without a shell, with the variables of --env and no others
    of yours. In an array or a grid, {names} are filled in everywhere; {{name}} stands for {name}.
    """
    flags = Flags(
        name, gpus, gpus_min, gpus_max, queue, app, app_scheduler, time, steps, env or (), max_restarts, min_runtime,
        not_preemptible, workdir, job_class,
    )  # fmt: skip
    made = trials(array, grid or ())
    jobs = expand(described(file, flags, ctx.meta[_WORDS]), made)
    check(jobs, str(file) if file else "the job")
    with service(url) as at:
        if at.address.local:
            _check_folders(jobs)
        ids = _submit(at, jobs, dry_run)
        plan = SubmitPlan(at.address.url, jobs, made, ids, dry_run)
        answer(output, {"ids": ids, "dry_run": dry_run}, [{"id": one} for one in ids], plan.for_people)
        if wait and not dry_run:
            from horae.cli.live.wait import wait_for

            raise typer.Exit(wait_for(at, ids, None))


def described(file: Path | None, flags: Flags, words: Sequence[str] | None) -> dict[str, Any]:
    """A job as a file and the command line say it, the command line last. Folders begin from the current one."""
    from horae.service.job_file import load_job_file

    if file is not None and not file.exists() and words is None:
        raise UserError(f"There is no job file {file}; a program to run stands behind `--`: horae submit -- {file}")
    job = load_job_file(file) if file else {}
    for key, value in flags.said():
        _put(job, key, value)
    if words is not None:
        job["run"] = list(words)
    if not job.get("run"):
        raise UserError("There is nothing to run: name it behind `--`, such as horae submit -- python train.py.")
    for key, value in _variables(flags.env):
        _put(job, f"envs.{key}", value)
    _settle_folders(job)
    return job


def check(jobs: Sequence[Mapping[str, Any]], where: str) -> None:
    """Refuse what the service would refuse, with the name of the file it stands in."""
    from horae.service.job_file import read_job

    for job in jobs:
        read_job(dict(job), where)


def _put(job: dict[str, Any], path: str, value: Any) -> None:
    """Set a key, which may be in a section. A section that is no map is left for the check to find."""
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


def _settle_folders(job: dict[str, Any]) -> None:
    """Folders in full: the service has another current one. Checkpoints are seen from the working folder."""
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
        raise UserError(f"The folder {folder!r} cannot be found; write it in full.") from None


def _check_folders(jobs: Sequence[Mapping[str, Any]]) -> None:
    for folder in dict.fromkeys(job["workdir"] for job in jobs):
        if not Path(folder).is_dir():
            raise UserError(f"There is no folder {folder} to run in; name another with --workdir.")


def _submit(at: ServiceClient, jobs: Sequence[Mapping[str, Any]], dry_run: bool) -> list[str]:
    ids = at.post("/v1/jobs", list(jobs), {"dry_run": dry_run}).get("ids")
    if not isinstance(ids, list) or len(ids) != len(jobs):
        raise Strange("The service did not say which ids the jobs have: look for them with `horae queue`.")
    return [str(one) for one in ids]


@dataclass(frozen=True)
class SubmitPlan:
    """What was submitted, for people to look over."""

    url: str
    jobs: Sequence[Mapping[str, Any]]
    trials: Sequence[Trial]
    ids: Sequence[str]
    dry_run: bool

    def for_people(self) -> list[RenderableType]:
        """What each job is, what became of it, and what to do next."""
        what = count(len(self.jobs), "job")
        first = self.ids[0] if len(self.ids) == 1 else f"{self.ids[0]} to {self.ids[-1]}"
        if self.dry_run:
            return [self._about(), *self._list(), f"A dry run: {self.url} would take {what}. Nothing was submitted."]
        return [self._about(), *self._list(), f"Submitted {what}: {first}", *self._next()]

    def _about(self) -> RenderableType:
        from horae.cli.output import table

        return table(("job", self.jobs[0].get("name", "job")), list(_facts(self.jobs[0], len(self.jobs) == 1)))

    def _list(self) -> list[RenderableType]:
        from horae.cli.output import table

        if len(self.jobs) == 1:
            return []
        names = [name for name in self.trials[0] if name != "index"]
        some = list(zip(self.ids, self.jobs, self.trials, strict=True))[:_SHOWN]
        rows = [(one, *(trial[name] for name in names), _run(job)) for one, job, trial in some]
        more = [f"... and {len(self.jobs) - _SHOWN:,} more"] if len(self.jobs) > _SHOWN else []
        return [table(("id", *names, "run"), rows), *more]

    def _next(self) -> list[str]:
        one = self.ids[0]
        return next_steps(
            ("horae queue", "who runs, who waits"),
            (f"horae why {one}", "why it waits"),
            (f"horae logs -f {one}", "what it prints"),
            self._cancel(),
        )

    def _cancel(self) -> tuple[str, str]:
        app = self.jobs[0].get("app")
        if len(self.ids) > 1 and app:
            return f"horae cancel --app {app}", "end them"
        return f"horae cancel {' '.join(self.ids[:_NAMED])}", "end it" if len(self.ids) == 1 else "end them"


def _facts(job: Mapping[str, Any], single: bool) -> Iterator[tuple[str, str]]:
    """What a plan says of a job; values of variables may be secret."""
    if single:
        yield "run", _run(job)
    yield "gpus", _gpus_text(job)
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
