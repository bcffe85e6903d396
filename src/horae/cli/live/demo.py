"""`horae demo`: a service, jobs and a report on one machine in about a minute and a half."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.live.rendering import interruptible
from horae.cli.live.report import fairness_tables, write_files
from horae.cli.live.share_bars import bar
from horae.cli.options import OutputOption
from horae.cli.output import Output, is_wide, print_csv, print_json, print_rich, table
from horae.cli.output_files import check_outputs
from horae.client.address import Address
from horae.client.journal import read_past
from horae.client.service_client import ServiceClient, records_of, service_at
from horae.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.service.server import Server
    from horae.testing.demo_clusters import DemoCluster

#: Virtual GPUs for a machine without real GPUs, and the relative training speed on each type.
VIRTUAL, SPEEDS = "v100:4,k80:4", "v100=1,p100=0.7,k80=0.5"
LEASE_S = 8
STEP_MS = 25
#: Seconds after which the demonstration has failed.
TIMEOUT_S = 600.0
_POLL_S = 0.5
#: Seconds to wait for cancelled jobs to end.
STOP_S = 10.0
_ENDED = ("finished", "failed", "cancelled")
#: Terminal width that has space for all columns; columns left out on a narrower terminal.
_WIDE, _WIDE_ONLY = 120, ("on", "loss")


@dataclass(frozen=True)
class DemoJob:
    """One training job: user, queue, GPU count, steps and learning rate."""

    user: str
    queue: str
    name: str
    gpus: int
    steps: int
    lr: float
    seed: int

    def arguments(self) -> list[str]:
        """Arguments of the training script that determine the result."""
        return ["--steps", str(self.steps), "--seed", str(self.seed), "--lr", str(self.lr)]


JOBS = (
    DemoJob("ann", "vision", "resize", 2, 700, 0.05, 1),
    DemoJob("ann", "vision", "detect", 2, 900, 0.03, 2),
    DemoJob("ann", "vision", "segment", 1, 500, 0.05, 3),
    DemoJob("ann", "vision", "caption", 1, 900, 0.02, 4),
    DemoJob("bob", "speech", "listen", 4, 500, 0.05, 5),
    DemoJob("bob", "speech", "speak", 2, 800, 0.04, 6),
    DemoJob("bob", "speech", "translate", 1, 700, 0.05, 7),
    DemoJob("bob", "speech", "denoise", 1, 400, 0.03, 8),
    *(DemoJob("cho", "search", f"trial-{k}", 1, 600, lr, 9) for k, lr in enumerate((0.1, 0.05, 0.02, 0.01))),
)


class DemoFailed(UserError):
    """The demonstration failed."""


def command(
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write the report page to this file (default: in the state folder)."
        ),
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", metavar="DIR", help="State folder of the service (default: a new temporary folder)."),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="CLUSTER",
            help="Start a small real cluster on this machine for it: slurm, ray or kubernetes.",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start a local service, train twelve small models of three teams under the policy themis, and report the fairness.

    Models and processes are real (NumPy, no download). GPUs are virtual unless this machine has real ones.
    """
    check_outputs([html], inputs=[])
    # The folder stays after the end, with the page, the logs and the checkpoints.
    folder = state or Path(tempfile.mkdtemp(prefix="horae-demo-"))
    if (folder / "journal.db").exists():
        raise DemoFailed(
            f"{folder} already has the state of a service: name a new folder with --state, or leave it out."
        )
    with interruptible(f"the service and its jobs have ended, and what they wrote is in {folder}"):
        _demonstrate(folder, html or folder / "demo.html", on, output)


def _demonstrate(folder: Path, page: Path, on: str | None, output: Output) -> None:
    with (
        _cluster(on, folder) as cluster,
        _serving(folder, cluster) as server,
        service_at(_address(server, _admin_token(server))) as client,
    ):
        _print_line(output, f"Service at {server.url}, on {cluster.words}, state in {folder}")
        with _cancelling_on_error(client):
            ids = _submit(client, server)
            _print_line(output, f"{len(ids)} jobs of 3 teams submitted; GPUs are leased for {LEASE_S} s at a time.")
            jobs = _watch(client, output)
        losses = _check(jobs, ids, cluster.jobs)
        journal = read_past(client)
    from horae.report.metrics.measure import measure

    report = measure(journal.history)
    write_files(journal, report, page, None)
    _print_result(output, report, jobs, losses, page)


@contextmanager
def _cluster(name: str | None, folder: Path) -> Iterator[DemoCluster]:
    """Where jobs run: this machine, or a cluster that is started for the demonstration."""
    from horae.backends.local.gpu_detection import find_gpus
    from horae.testing.demo_clusters import DEMO_CLUSTERS, DemoCluster

    if name is None:
        yield DemoCluster({"gpus": None if find_gpus() else VIRTUAL}, folder / "jobs", "this machine")
        return
    if name not in DEMO_CLUSTERS:
        there = ", ".join(DEMO_CLUSTERS)
        raise DemoFailed(f"No cluster is called {name!r}.{did_you_mean(name, DEMO_CLUSTERS)} There are: {there}.")
    # Sockets of cluster managers need a short path.
    with (
        tempfile.TemporaryDirectory(prefix="horae-", ignore_cleanup_errors=True) as place,
        DEMO_CLUSTERS[name](Path(place)) as made,
    ):
        yield made


@contextmanager
def _serving(folder: Path, cluster: DemoCluster) -> Iterator[Server]:
    """Run a service in this process."""
    from horae.core.queues import Queue
    from horae.service.server import ServeOptions, Server

    settings, queues = {"lease": str(LEASE_S)}, tuple(map(Queue, sorted({job.queue for job in JOBS})))
    options = {"port": 0, "isolation": "none", **cluster.options}
    server = Server(ServeOptions(state=folder, policy="themis", settings=settings, queues=queues, **options))
    try:
        _await_nodes(server)
        yield server
    finally:
        server.close()


def _await_nodes(server: Server) -> None:
    """Wait until nodes are in sight: a cluster is looked at by a thread of its own."""
    until = time.monotonic() + STOP_S
    while not any(server.daemon.status.node_up):
        if time.monotonic() > until:
            raise DemoFailed(f"No node came into sight: {server.daemon.backend.trouble or 'try again'}")
        time.sleep(_POLL_S / 10)


def _admin_token(server: Server) -> str:
    return server.token_file.read_text(encoding="utf-8").strip()


def _address(server: Server, token: str) -> Address:
    """Address of the service with this token."""
    return Address(server.url, local=True, token=token)


def _submit(client: ServiceClient, server: Server) -> dict[str, DemoJob]:
    """Submit the jobs of every team with the team's own token; returns the jobs by id."""
    ids: dict[str, DemoJob] = {}
    for user in dict.fromkeys(job.user for job in JOBS):
        token = client.post("/v1/tokens", {"user": user, "role": "user", "expires": "1h"})["token"]
        own = [job for job in JOBS if job.user == user]
        with service_at(_address(server, token)) as theirs:
            response = theirs.post("/v1/jobs", [_job_file(job) for job in own])
        ids.update(zip(response["ids"], own, strict=True))
    return ids


def _job_file(job: DemoJob) -> dict[str, Any]:
    run = [sys.executable, str(script()), *job.arguments(), "--step-ms", str(STEP_MS), "--speed", SPEEDS]
    return {
        "name": job.name,
        "queue": job.queue,
        "run": run,
        "resources": {"gpus": job.gpus},
        "envs": {"PYTHONPATH": str(Path(__file__).parents[3])},
        "estimate": {"steps": job.steps, "duration": job.steps * STEP_MS / 1000},
        "class": "demo",
    }


def script() -> Path:
    """Path of the training script: in the package, or in the examples of a checkout."""
    for place in (Path(__file__).parent, Path(__file__).parents[4] / "examples"):
        if (place / "train_numpy.py").is_file():
            return place / "train_numpy.py"
    raise DemoFailed("The training script train_numpy.py is missing: install Horae again.")


# ------------------------------------------------------------------------ watching


@contextmanager
def _cancelling_on_error(client: ServiceClient) -> Iterator[None]:
    """Cancel all jobs on an error or Ctrl-C; a second Ctrl-C does not interrupt this."""
    try:
        yield
    except BaseException:
        with _signals_ignored():
            _cancel_all(client)
        raise


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Ignore SIGINT and SIGTERM for a few seconds."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cancel_all(client: ServiceClient) -> None:
    """Cancel all jobs until none is left, or until `STOP_S`. Runners end their jobs by themselves then."""
    until = time.monotonic() + STOP_S
    while (live := records_of(client.get("/v1/jobs", {"limit": 0}), "jobs")) and time.monotonic() < until:
        client.post("/v1/jobs/cancel", {"ids": [job["id"] for job in live]})
        time.sleep(_POLL_S)


def _watch(client: ServiceClient, output: Output) -> list[dict[str, Any]]:
    """Show the jobs until all have ended: a live table on a terminal, else a line every 10 s."""
    began = time.monotonic()
    with _display(output) as show:
        while True:
            jobs = records_of(client.get("/v1/jobs", {"all": True, "limit": 0}), "jobs")
            show(jobs)
            if all(job["state"] in _ENDED for job in jobs):
                return jobs
            if time.monotonic() - began > TIMEOUT_S:
                raise DemoFailed(f"Not all jobs ended within {TIMEOUT_S:.0f} s; this machine may be too busy.")
            time.sleep(_POLL_S)


@contextmanager
def _display(output: Output) -> Iterator[Callable[[Sequence[Mapping[str, Any]]], None]]:
    from rich.console import Console
    from rich.live import Live

    console = Console(highlight=False, markup=False, emoji=False)
    if output is Output.TABLE and console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda jobs: live.update(_live_table(jobs), refresh=True)
        return
    last_line_s = [0.0]

    def line(jobs: Sequence[Mapping[str, Any]]) -> None:
        if time.monotonic() - last_line_s[0] >= 10:
            last_line_s[0] = time.monotonic()
            _print_line(output, _summary(jobs))

    yield line


def _live_table(jobs: Sequence[Mapping[str, Any]]) -> RenderableType:
    """One line per job; a narrow terminal shows fewer columns."""
    wide = is_wide(_WIDE)
    rows = [{head: cell for head, cell in _cells(job, wide).items() if wide or head not in _WIDE_ONLY} for job in jobs]
    return table(list(rows[0]), [list(row.values()) for row in rows])


def _cells(job: Mapping[str, Any], wide: bool) -> dict[str, str]:
    return {
        "job": job["id"],
        "team": job["queue"],
        "gpus": str(job["gpus"]),
        "state": job["state"],
        "on": " ".join(job["on"]),
        "progress": f"{bar(job['progress'], 20 if wide else 5)} {job['progress']:4.0%}",
        "loss": "" if job["loss"] is None else f"{job['loss']:.4f}",
        "stopped": str(job["preemptions"]),
        "why it waits": job["reason"] if job["state"] in ("waiting", "placed") else "",
    }


def _summary(jobs: Sequence[Mapping[str, Any]]) -> str:
    active = ("launching", "running", "stopping")
    count = {
        "running": sum(job["state"] in active for job in jobs),
        "waiting": sum(job["state"] in ("waiting", "placed") for job in jobs),
        "finished": sum(job["state"] == "finished" for job in jobs),
    }
    done = sum(job["progress"] for job in jobs) / len(jobs)
    last_line_s = ", ".join(f"{number} {state}" for state, number in count.items())
    return f"{bar(done, 20)} {done:4.0%}  {last_line_s}, {sum(job['preemptions'] for job in jobs)} preemptions"


# ------------------------------------------------------------------------ checking


def _check(
    jobs: Sequence[Mapping[str, Any]], ids: Mapping[str, DemoJob], folder: Path
) -> dict[str, tuple[float, float]]:
    """By job: the loss it ended with, and the loss of an undisturbed run."""
    failed = [job["id"] for job in jobs if job["state"] != "finished"]
    if failed:
        raise DemoFailed(f"{', '.join(failed)} did not finish: see the logs in {folder}.")
    return {name: (_loss(folder / name / "checkpoint"), undisturbed(job)) for name, job in ids.items()}


def _loss(folder: Path) -> float:
    return float(json.loads((folder / "result.json").read_text(encoding="utf-8"))["loss"])


def undisturbed(job: DemoJob) -> float:
    """The loss of the same training without preemption."""
    import os

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            [sys.executable, str(script()), *job.arguments(), "--folder", folder],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
            check=True,
            capture_output=True,
        )
        return _loss(Path(folder))


# ------------------------------------------------------------------------- telling


def _print_line(output: Output, sentence: str) -> None:
    if output is Output.TABLE:
        typer.echo(sentence)


def _print_result(
    output: Output,
    report: Any,
    jobs: Sequence[Mapping[str, Any]],
    losses: Mapping[str, tuple[float, float]],
    page: Path,
) -> None:
    same = sum(found == wanted for found, wanted in losses.values())
    records = [
        {
            "id": job["id"],
            "queue": job["queue"],
            "preemptions": job["preemptions"],
            "loss": losses[job["id"]][0],
            "loss_undisturbed": losses[job["id"]][1],
        }
        for job in jobs
    ]
    match output:
        case Output.JSON:
            print_json({"jobs": records, "same_loss": same, "page": str(page), "report": report.as_dict()})
        case Output.CSV:
            print_csv(records)
        case Output.TABLE:
            print_rich(*fairness_tables(report))
            preemptions = sum(job["preemptions"] for job in jobs)
            typer.echo(
                f"{same} of {len(losses)} jobs ended with the same loss as an undisturbed run, after {preemptions} "
                f"preemptions.\nOpen {page.resolve()}"
            )
    if same < len(losses):
        different = next(name for name, (found, wanted) in losses.items() if found != wanted)
        raise DemoFailed(f"Job {different} ended with another loss than an undisturbed run: preemption changed it.")
