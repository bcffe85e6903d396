"""`RayDriver`: shows Ray's nodes and the pieces of this service, submits gangs and ends them. Remembers nothing.

An attempt is one Ray job, named by service, job and attempt. Ray takes a name once. All pieces of the job are in its
metadata, so that a look finds them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from horae.backends.attempt_names import attempt_name, read_attempt_name
from horae.backends.driver import (
    ClusterDriver,
    Look,
    OutOfSight,
    Piece,
    PieceId,
    PiecesRefused,
    PieceState,
)
from horae.backends.ray import gang
from horae.backends.ray.dashboard import Answer, Dashboard, job_path
from horae.backends.ray.dashboard_answers import (
    RayJob,
    RayNode,
    foreign_by_node,
    living_nodes,
    read_jobs,
    read_nodes,
    read_summary,
    seen_nodes,
)
from horae.backends.ray.gang_job import (
    RaySettings,
    job_request,
    piece_folder,
    pieces_in,
)
from horae.core.errors import UserError

_EXISTS = "already exists"
#: What the dashboard writes when the part of Ray behind it refused the request itself.
_REFUSED = "status code 400"


class BadRaySettings(UserError):
    """A service id or folder that cannot be used with Ray."""


class RayDriver(ClusterDriver):
    """A `ClusterDriver` for a whole Ray cluster."""

    honours = frozenset({"cpus_per_gpu", "memory_per_gpu"})

    def __init__(self, settings: RaySettings, dashboard: Dashboard) -> None:
        if not re.fullmatch(r"[a-z0-9]{1,16}", settings.service):
            raise BadRaySettings(f"{settings.service!r} cannot be the id of a service: use 1 to 16 of a-z and 0-9.")
        if not settings.shared.is_absolute():
            raise BadRaySettings(f"{settings.shared} cannot be the shared folder: give a full path.")
        self._settings, self._dashboard = settings, dashboard

    def look(self) -> Look:
        """The nodes, and the pieces of this service, as they are now."""
        nodes = self._nodes()
        # Jobs come last: the driver of everything that was listed before is then among them.
        actors = self._dashboard.read_state("actors", {"state": "ALIVE"})
        groups = self._dashboard.read_state("placement_groups", {"state": "CREATED"})
        tasks = self._dashboard.read_state("tasks", {"state": "RUNNING", "type": "NORMAL_TASK"})
        own = [job for job in self._jobs() if read_attempt_name(self._settings.service, job.submission_id)]
        foreign = foreign_by_node(actors, groups, tasks, [job.driver_id for job in own if job.driver_id])
        names = {node.id: node.name for node in nodes}
        return Look(
            nodes=seen_nodes(nodes),
            pieces=pieces_of(self._settings.service, own),
            foreign={names[node]: texts for node, texts in foreign.items() if node in names},
        )

    def submit(self, pieces: Sequence[Piece]) -> None:
        """Submit the pieces as one Ray job. If Ray has the job already, all is well.

        Pieces are missing of an attempt whose Ray job is known only if Ray has lost the job once, and it was submitted
        again without the pieces that had begun.
        """
        attempts = {(piece.id.job, piece.id.attempt) for piece in pieces}
        assert len(attempts) <= 1, f"pieces of several attempts: {attempts}"
        if not pieces:
            return
        nodes = living_nodes(self._nodes())
        request = job_request(self._settings, pieces, nodes, self._program())
        answer = self._dashboard.ask("POST", "/api/jobs/", request)
        if answer.is_good:
            return
        if _EXISTS in answer.text:
            self._check_pieces([piece.id for piece in pieces])
        elif _REFUSED in answer.text or answer.status < 500:
            raise PiecesRefused(f"Ray refuses the job: {answer.last_line}")
        else:
            raise OutOfSight(f"Ray's dashboard cannot take jobs now: {answer.last_line}.")

    def kill(self, piece: PieceId) -> None:
        """End all pieces of the attempt: by a file for their guards, and by a stop of the Ray job."""
        job = self._job(piece)
        if job is None:
            return
        for each in pieces_in((piece.job, piece.attempt), job.metadata):
            self._write_kill(each)
        answer = self._dashboard.ask("POST", job_path(job.submission_id, "/stop"))
        if answer.status >= 500:
            raise OutOfSight(f"Ray's dashboard cannot stop jobs now: {answer.last_line}.")

    def forget(self, piece: PieceId) -> None:
        """Delete Ray's record of the ended job of the piece's attempt."""
        self._dashboard.ask("DELETE", job_path(self._name(piece)))

    def _name(self, piece: PieceId) -> str:
        return attempt_name(self._settings.service, piece.job, piece.attempt)

    def _nodes(self) -> list[RayNode]:
        """All nodes. Ray does not promise its state API, so there is a second way. No node at all is not believed."""
        try:
            nodes = read_nodes(self._dashboard.read_state("nodes"))
        except OutOfSight:
            nodes = read_summary(self._dashboard.read("/nodes?view=summary"))
        if not any(node.is_alive for node in nodes):
            raise OutOfSight("Ray shows no living node.")
        return nodes

    def _jobs(self) -> list[RayJob]:
        return read_jobs(self._dashboard.read("/api/jobs/"))

    def _job(self, piece: PieceId) -> RayJob | None:
        """The Ray job of a piece; None if Ray knows none."""
        answer = self._dashboard.ask("GET", job_path(self._name(piece)))
        if answer.status == 404:
            return None
        _check(answer)
        return next(iter(read_jobs([answer.read_json()])), None)

    def _check_pieces(self, pieces: Sequence[PieceId]) -> None:
        """Check that the job that Ray has under this name has these pieces."""
        job = self._job(pieces[0])
        there = pieces_in((pieces[0].job, pieces[0].attempt), job.metadata) if job else pieces
        if missing := [piece.node for piece in pieces if piece not in there]:
            raise PiecesRefused(f"Ray has a job of this name without pieces on {', '.join(missing)}.")

    def _program(self) -> Path:
        """The driver of gangs on the shared folder, written there if it is missing."""
        source = Path(gang.__file__).read_bytes()
        path = self._settings.shared / f"gang-{hashlib.sha256(source).hexdigest()[:12]}.py"
        if not path.exists():
            draft = path.with_suffix(f".{os.getpid()}")
            with _shared_folder():
                self._settings.shared.mkdir(mode=0o700, parents=True, exist_ok=True)
                draft.write_bytes(source)
                draft.rename(path)
        return path

    def _write_kill(self, piece: PieceId) -> None:
        """Tell the guard of a piece to kill it."""
        folder = piece_folder(self._settings.shared, piece)
        with _shared_folder():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (folder / gang.KILL).touch(mode=0o600)


def pieces_of(service: str, jobs: Iterable[RayJob]) -> dict[PieceId, PieceState]:
    """The pieces of this service, each in the state of its job."""
    return {
        piece: job.state
        for job in jobs
        if (name := read_attempt_name(service, job.submission_id))
        for piece in pieces_in(name, job.metadata)
    }


@contextmanager
def _shared_folder() -> Iterator[None]:
    try:
        yield
    except OSError as why:
        raise OutOfSight(f"The shared folder cannot be written: {why}") from None


def _check(answer: Answer) -> None:
    if not answer.is_good:
        raise OutOfSight(f"Ray's dashboard cannot answer now: {answer.last_line}.")
