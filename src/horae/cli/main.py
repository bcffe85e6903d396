"""The `horae` command: what it offers, and what becomes of every way it can end."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

import typer

from horae import __version__
from horae.cli import auction, audit, catalogue, compare, policies, serve, simulate, skew, solve, sweep, trace
from horae.cli.live import (
    demo,
    events,
    jobs,
    logs,
    nodes,
    queue,
    replay,
    report,
    requests,
    settings,
    shares,
    submission,
    tokens,
    waiting,
)
from horae.cli.usage import PlainUsage, is_help, usage_sentence
from horae.core.errors import UserError

INTERRUPTED = 130

app = typer.Typer(
    help="Horae schedules shared GPUs: run jobs, simulate a policy, compare many, look into traces.",
    epilog="Start with: horae compare --generate plain --cluster 8x4, or with: horae serve",
    # Plain help: rich would double the time that `horae --help` takes.
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
app.command("simulate", short_help="One policy on one trace.")(simulate.command)
app.command("compare", short_help="Many policies on one workload, side by side.")(compare.command)
app.command("sweep", short_help="Policies as load, cluster size or a setting changes, as curves.")(sweep.command)
app.command("audit", short_help="One policy on one workload, judged: fairness, waste, envy, and whether lies pay.")(
    audit.command
)
app.add_typer(trace.app, name="trace")
app.command("solve", short_help="One allocation problem: who spends which share of its time on which GPU type.")(
    solve.command
)
app.command("auction", short_help="One auction of free GPUs: who wins, pays and keeps what, and who has the rest.")(
    auction.command
)
app.command("policies", short_help="What each policy does, its parameters, its paper.")(policies.command)
app.command("catalogue", short_help="GPU types and models, and how fast the one should train the other.")(
    catalogue.command
)
app.command("skew", short_help="From observed speeds, whose GPUs should be close together.")(skew.command)
app.command("serve", short_help="Run real jobs on this machine's GPUs: the service that the live commands ask.")(
    serve.command
)
app.command("submit", cls=submission.CommandBehindDashes, short_help="Have a job run, or many.")(submission.command)
app.command("queue", short_help="Who runs, who waits, and why.")(queue.command)
app.command("status", cls=PlainUsage, short_help="Everything about a job.")(jobs.status)
app.command("why", cls=PlainUsage, short_help="Why a job waits, and what to do.")(jobs.why)
app.command("logs", cls=PlainUsage, short_help="What a job printed.")(logs.command)
app.command("events", cls=PlainUsage, short_help="What befell a job: who preempted it, and why.")(events.command)
app.command("wait", cls=PlainUsage, short_help="Stay until jobs have ended.")(waiting.command)
app.command("cancel", cls=PlainUsage, short_help="End jobs.")(requests.cancel)
app.command("hold", cls=PlainUsage, short_help="Keep jobs from running.")(requests.hold)
app.command("release", cls=PlainUsage, short_help="Let jobs that are held run.")(requests.release)
app.command("share", short_help="What each queue is entitled to, and uses.")(shares.command)
app.add_typer(nodes.app, name="nodes")
app.add_typer(report.app, name="report")
app.command("replay", cls=PlainUsage, short_help="What happened, run again under another policy.")(replay.command)
app.command("demo", short_help="A service, a dozen real training jobs, and how fair it was.")(demo.command)
app.add_typer(settings.app, name="settings")
app.add_typer(tokens.app, name="token")


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
