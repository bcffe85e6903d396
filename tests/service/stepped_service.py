"""A service without HTTP: a daemon over a real journal and the fake backend, with time that the test tells."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from horae.backends.fake import FakeBackend, FakeJob, FakeWorld
from horae.backends.local.backend import LocalBackend
from horae.core.cluster import Node
from horae.core.queues import Queue
from horae.service.daemon import Daemon
from horae.service.initial_settings import InitialSettings
from horae.service.job_file import read_job
from horae.service.operations import Operations
from horae.service.roles import Caller, Role
from horae.service.store.opening import open_store
from horae.service.store.store import Store
from horae.service.views.views import ServiceViews

ADMIN = Caller("root", Role.ADMIN)
ANN, BOB = Caller("ann", Role.USER), Caller("bob", Role.USER)


class SteppedService:
    """A daemon that a test steps through time, or lets run; `crash` and `reopen` are what they say.

    `local` is the folder of a local backend, which runs real processes in place of the fake one.
    """

    def __init__(
        self,
        folder: Path,
        policy: str = "fifo",
        gpus: int = 2,
        queues: Sequence[Queue] = (),
        nodes: Sequence[Node] | None = None,
        placement: str = "best-effort",
        url: str = "",
        keep_s: float | None = None,
        local: Path | None = None,
        marked: bool = False,
        **settings: str,
    ) -> None:
        self.folder, self.world, self.now_s = folder, FakeWorld(default=FakeJob(lasts_s=10.0)), 0.0
        self.nodes = (Node("v100", "v100", gpus),) if nodes is None else tuple(nodes)
        folder.mkdir(exist_ok=True)
        self._local, self._marked = local, marked
        self._keep_s, self._url = keep_s, url or f"sqlite:///{folder / 'journal.db'}"
        self._beginning = InitialSettings(self.nodes, policy, settings, placement, tuple(queues))
        self.reopen()

    def reopen(self, blind: bool = False) -> None:
        """Begin, or come back after a crash; the backend may be blind."""
        self.store = (
            open_store(self._url, self.folder, timeout_s=1.0).store
            if self._marked
            else Store(self._url, own=True, timeout_s=1.0)
        )
        self.backend = FakeBackend(self.nodes, self.world, blind)
        backend = LocalBackend(self._local, self.nodes, ready_s=0.0) if self._local else self.backend
        self.daemon = Daemon(
            self.store, backend, self._beginning, lambda: self.now_s, lambda job, attempt: {}, keep_s=self._keep_s
        )
        self.daemon._resume()
        self.operations = Operations(self.daemon)

    def crash(self) -> None:
        """The daemon dies where it stands: nothing more is written."""
        self.store.close()

    def submit(self, who: Caller = ANN, **said: Any) -> str:
        """Have one job taken; returns its id."""
        ids: list[str] = []
        job = read_job({"run": ["true"], **said})
        self.ask(lambda: ids.extend(self.operations.submit(who, [job])))
        return ids[0]

    def ask(self, what: Any) -> None:
        """Call what waits for the daemon, and step the daemon meanwhile; its errors are the test's."""
        failed: list[BaseException] = []

        def call() -> None:
            try:
                what()
            except BaseException as error:
                failed.append(error)

        caller = threading.Thread(target=call)
        caller.start()
        while caller.is_alive():
            self.daemon._cycle()
            caller.join(0.002)
        if failed:
            raise failed[0]

    def to(self, now_s: float, step_s: float = 0.5) -> None:
        """Let time go on."""
        while self.now_s < now_s:
            self.now_s = min(now_s, self.now_s + step_s)
            self.daemon._cycle()

    def views(self) -> ServiceViews:
        """What people see now."""
        return ServiceViews(self.daemon.status, self.daemon.tasks, self.store.epoch, self.now_s)

    def state(self, job: str) -> str:
        """State of a job, as people call it."""
        view = self.views()
        return str(view.job(view.visible_row(ADMIN, job))["state"])
