"""Takes in jobs that the backend found, and tells the backend what became of them. A thread of its own."""

from __future__ import annotations

import logging
import threading

from horae.backends.found_jobs import FindsJobs, FoundJob, TakenJob
from horae.core.errors import UserError
from horae.core.explain import explain
from horae.core.states import State
from horae.core.status import ClusterStatus
from horae.service.daemon import Closed, Daemon
from horae.service.operations import Operations
from horae.service.store.connection import StoreTrouble

#: Seconds between two rounds.
_EVERY_S = 0.2
#: States of a job that waits.
_WAIT = (State.WAITING, State.HELD, State.PLACED)
_LOG = logging.getLogger(__name__)


class JobTaker:
    """The door for jobs that users gave to the cluster manager.

    A job is in the journal once its key is: a lost answer, a crash and a second offer of the same job change nothing.
    """

    def __init__(self, daemon: Daemon, operations: Operations, backend: FindsJobs) -> None:
        self._daemon, self._operations, self._backend = daemon, operations, backend
        self._closing = threading.Event()
        self._told_seq = -1
        #: Code and sentence of the reason for which a job waits.
        self._whys: dict[str, tuple[str, str]] = {}
        #: Keys of jobs that could not be taken in for a reason that is no mistake of their users.
        self._failed: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="horae-job-taker", daemon=True)

    def start(self) -> None:
        """Tell the backend what is known, then begin."""
        self._follow()
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(1.0)

    def _run(self) -> None:
        while not self._closing.wait(_EVERY_S):
            try:
                self._follow()
                for found in self._backend.found():
                    self._take_in(found)
            except (Closed, StoreTrouble, TimeoutError):
                continue  # nothing is lost: the jobs are offered again
            except Exception:
                _LOG.exception("Jobs of the cluster could not be taken in.")

    def _take_in(self, found: FoundJob) -> None:
        if self._closing.is_set():
            return
        try:
            self._operations.take_in(found)
        except (Closed, StoreTrouble):
            raise
        except UserError as why:
            self._backend.refuse(found.key, str(why))
        except TimeoutError:
            raise
        except Exception:
            # One job must not hold up the others. It is tried again, and told of once.
            if found.key not in self._failed:
                self._failed.add(found.key)
                _LOG.exception("The job %s of the cluster could not be taken in.", found.key)

    def _follow(self) -> None:
        """Tell the backend the state of each job that was taken in, if anything has changed."""
        # In this order: the status may be newer than its number, and is then told twice.
        seq, status = self._daemon.published_seq, self._daemon.status
        if seq == self._told_seq:
            return
        taken = {}
        for task in list(self._daemon.tasks.values()):
            row = status.row(task.job) if task.found_as else None
            if row is not None:
                taken[task.found_as] = TakenJob(task.job, status.state(row), self._why(status, task.job, row))
        self._backend.follow(taken)
        self._whys = {job: why for job, why in self._whys.items() if status.row(job) is not None}
        self._told_seq = seq

    def _why(self, status: ClusterStatus, job: str, row: int) -> str:
        """Why a job waits. The sentence stays while the reason does: users are not told each new number."""
        if status.state(row) not in _WAIT:
            self._whys.pop(job, None)
            return ""
        code = status.reason(row).code
        if self._whys.get(job, ("", ""))[0] != code:
            self._whys[job] = (code, explain(status, job).sentence)
        return self._whys[job][1]
