"""The `horae` command: what it offers, and what becomes of every way it can end."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, ClassVar

import typer

from horae import __version__
from horae.cli.lazy_commands import LazyCommand, LazyGroup
from horae.cli.usage_errors import is_help, usage_sentence
from horae.core.errors import UserError

INTERRUPTED = 130


class _Commands(LazyGroup):
    """All commands, as `horae --help` lists them."""

    late: ClassVar[Mapping[str, LazyCommand]] = {
        "simulate": LazyCommand("horae.cli.simulate:command", "One policy on one trace."),
        "compare": LazyCommand("horae.cli.compare:command", "Many policies on one workload, side by side."),
        "sweep": LazyCommand(
            "horae.cli.sweep:command", "Policies as load, cluster size or a setting changes, as curves."
        ),
        "audit": LazyCommand(
            "horae.cli.audit:command",
            "One policy on one workload, judged: fairness, waste, envy, and whether lies pay.",
        ),
        "trace": LazyCommand("horae.cli.trace:app", "Import, generate and inspect traces."),
        "solve": LazyCommand(
            "horae.cli.solve:command", "One allocation problem: who spends which share of its time on which GPU type."
        ),
        "auction": LazyCommand(
            "horae.cli.auction:command",
            "One auction of free GPUs: who wins, pays and keeps what, and who has the rest.",
        ),
        "policies": LazyCommand("horae.cli.policies:command", "What each policy does, its parameters, its paper."),
        "catalogue": LazyCommand(
            "horae.cli.catalogue:command", "GPU types and models, and how fast the one should train the other."
        ),
        "skew": LazyCommand("horae.cli.skew:command", "From observed speeds, whose GPUs should be close together."),
        "serve": LazyCommand(
            "horae.cli.serve:command", "Run real jobs on this machine's GPUs: the service that the live commands ask."
        ),
        "backup": LazyCommand("horae.cli.backup:backup", "Copy the journal of a service, also while it runs."),
        "restore": LazyCommand("horae.cli.backup:restore", "Put a backup back, with the service stopped."),
        "doctor": LazyCommand("horae.cli.doctor:command", "What is wrong with a service, and what to do."),
        "kubernetes": LazyCommand("horae.cli.kubernetes:app", "Prepare a Kubernetes cluster for Horae."),
        "submit": LazyCommand(
            "horae.cli.live.submit:command",
            "Have a job run, or many.",
            "horae.cli.live.submit:CommandBehindDashes",
        ),
        "queue": LazyCommand("horae.cli.live.queue:command", "Who runs, who waits, and why."),
        "status": LazyCommand("horae.cli.live.status_why:status", "Everything about a job."),
        "why": LazyCommand("horae.cli.live.status_why:why", "Why a job waits, and what to do."),
        "logs": LazyCommand("horae.cli.live.logs:command", "What a job printed."),
        "events": LazyCommand("horae.cli.live.events:command", "What befell a job: who preempted it, and why."),
        "wait": LazyCommand("horae.cli.live.wait:command", "Stay until jobs have ended."),
        "cancel": LazyCommand("horae.cli.live.cancel_hold_release:cancel", "End jobs."),
        "hold": LazyCommand("horae.cli.live.cancel_hold_release:hold", "Keep jobs from running."),
        "release": LazyCommand("horae.cli.live.cancel_hold_release:release", "Let jobs that are held run."),
        "share": LazyCommand("horae.cli.live.share:command", "What each queue is entitled to, and uses."),
        "nodes": LazyCommand("horae.cli.live.nodes:app", "List the nodes; take a node out of service and back."),
        "report": LazyCommand("horae.cli.live.report:app", "Reports on what a service has run: usage, fairness."),
        "replay": LazyCommand("horae.cli.live.replay:command", "What happened, run again under another policy."),
        "demo": LazyCommand(
            "horae.cli.live.demo:command", "A service, a dozen real training jobs, and how fair it was."
        ),
        "slurm": LazyCommand("horae.cli.slurm:app", "Let Horae order the jobs of a Slurm partition; give them back."),
        "settings": LazyCommand("horae.cli.live.settings:app", "Show or change the policy and the queues."),
        "limits": LazyCommand("horae.cli.live.limits:app", "Show or set the limits of users and queues."),
        "token": LazyCommand("horae.cli.live.token:app", "Make, list and revoke tokens (admins only)."),
    }


app = typer.Typer(
    help="Horae schedules shared GPUs: run jobs, simulate a policy, compare many, look into traces.",
    epilog="Start with: horae compare --generate plain --cluster 8x4, or with: horae serve",
    cls=_Commands,
    # Plain help: rich would double the time that `horae --help` takes.
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"horae {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the whole traceback of an error; may stand anywhere.")
    ] = False,
) -> None:
    """Options that every command understands; `main` acts on --debug before the commands are parsed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 ok, 1 failure, 2 usage, 130 interrupted."""
    if argv is None:
        signal.signal(signal.SIGTERM, _terminate)
        # Commands make many objects that stay and few that need the collector: by default it takes a tenth of the time.
        gc.set_threshold(50_000, 20, 20)
    words, debug = _take_debug(sys.argv[1:] if argv is None else argv)
    code = _run(words, debug)
    return _flush(code)


def _terminate(number: int, frame: object) -> None:
    """Leave in good order when told to: no half-written files, no worker processes left behind."""
    raise SystemExit(128 + number)


def _take_debug(words: Sequence[str]) -> tuple[list[str], bool]:
    """Split --debug from the rest, wherever it stands before a `--`."""
    end = words.index("--") if "--" in words else len(words)
    kept = [word for word in words[:end] if word != "--debug"]
    return [*kept, *words[end:]], len(kept) < end


def _run(words: list[str], debug: bool) -> int:
    """Run a command; every error becomes one line on stderr and an exit code."""
    try:
        code = typer.main.get_command(app).main(args=words, prog_name="horae", standalone_mode=False) or 0
    except typer.TyperException as error:
        _complain(error.message if is_help(error) else f"error: {usage_sentence(error)}")
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        _complain("interrupted; files named for output were left as they were")
        return INTERRUPTED
    except UserError as error:
        if debug:
            raise
        _complain(f"error: {_one_line(error)}")
        return 1
    except Exception as error:
        if debug:
            raise
        from horae.crash import write_report

        path = write_report(error, words)
        _complain(f"error: this is a bug in horae ({type(error).__name__}); please report it with {path}")
        return 1
    if code == INTERRUPTED:
        _complain("interrupted; files named for output were left as they were")
    return int(code)


def _flush(code: int) -> int:
    """Flush stdout while a closed pipe (`horae ... | head`) can still be met in silence."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return code or 1
    return code


def _one_line(error: UserError) -> str:
    return " ".join(str(error).split())


def _complain(sentence: str) -> None:
    typer.echo(sentence, err=True)


if __name__ == "__main__":
    sys.exit(main())
