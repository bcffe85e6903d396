"""The service as a process: listening, files in the state folder, start and shutdown."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horae.backends import BACKENDS, CLUSTER_OPTIONS, BackendOptions, open_backend
from horae.backends.found_jobs import FindsJobs
from horae.backends.local.gpu_detection import BadGpus, find_gpus, parse_virtual
from horae.backends.local.machine_room import with_machine_room
from horae.backends.terms import known_term
from horae.core.cluster import Cluster, Node
from horae.core.engine import Engine
from horae.core.policy import ChecksCluster
from horae.core.queues import Queue
from horae.placement.rules import make_placement
from horae.plugins.policies import stored_policy
from horae.plugins.setting_files import with_files
from horae.policies import make_policy
from horae.policies.outside import CheckedPolicy
from horae.service.clock import Clock, wall_clock
from horae.service.daemon import DAY_S, Change, Daemon, Prepare
from horae.service.disk_reserve import DiskReserve
from horae.service.failing_backends import SteadyBackend
from horae.service.failing_policies import MissingPolicy
from horae.service.health import HealthNotes, what_is_wrong
from horae.service.initial_rights import begin_rights, secret_notes
from horae.service.initial_settings import InitialSettings, OwnSettings
from horae.service.job_isolation import alone, check_alone, chosen_isolation, make_isolation, moved_folders
from horae.service.job_taker import JobTaker
from horae.service.listening import CannotServe, Listener, Listening, ListenOptions
from horae.service.local_users import LocalUsers
from horae.service.operations import Operations, check_sharing, speeds_ignored
from horae.service.recovery import recover
from horae.service.roles import Caller, Role
from horae.service.standby import ACTIVE, STANDBY, Follower, LogFiles
from horae.service.start_options import (
    DEFAULT_BACKEND,
    check_standby,
    cluster_options,
    what_loses_jobs,
    what_parts_services,
)
from horae.service.store.connection import StoreAway, StoreTrouble
from horae.service.store.opening import Opened, file_of, journal_url, open_store, take_store
from horae.service.store.store import Store
from horae.service.tokens import Tokens, load_secret, make_admin, operator, write_private
from horae.service.warm_up import warm_up

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI

    from horae.backends.local.isolation.accounts import AccountHelper
    from horae.backends.protocol import Backend

#: Files in the state folder that tell commands on this machine where the service is, and its standby.
ADDRESS_FILE, STANDBY_FILE = "address.json", "standby.json"
DEFAULT_POLICY, DEFAULT_PLACEMENT = "fifo-backfill", "best-effort"
#: Placement that spreads no job over more nodes than it needs.
WHOLE_PLACEMENT = "consolidated"
#: Settings of the default policy that its simulation leaves off: a large job is not passed by small ones for ever.
DEFAULT_SETTINGS = {"reserve": "600"}
#: Seconds to wait at shutdown for open requests and the loop. Everything in the journal is safe in any case.
LEAVE_S = 0.8
#: Seconds for which a database is waited for at the start, and between two tries.
START_WAIT_S, START_AGAIN_S = 60.0, 1.0
#: Seconds between two tries of a standby to take over.
TAKE_OVER_EVERY_S = 0.5


@dataclass(frozen=True)
class ServeOptions:
    """Options of `horae serve`. None means the value of the last start, or the default."""

    state: Path
    database: str | None = None
    host: str = "127.0.0.1"
    port: int = 8642
    #: Certificate, its key if that is in another file, and the CA by which clients verify the service (PEM).
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    #: Whether tokens may cross a network without encryption.
    allow_plain_http: bool = False
    gpus: str | None = None
    #: A name, or the place of a class: `./mine.py:MyPolicy`, `package.module:MyPolicy`.
    policy: str | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    placement: str | None = None
    queues: tuple[Queue, ...] = ()
    secrets: Path | None = None
    #: Seconds for which ended jobs and their files are kept.
    keep_s: float | None = None
    #: Most bytes that are kept of what an attempt prints on one node.
    max_log_bytes: int = BackendOptions.max_log_bytes
    #: Name of what runs the jobs.
    backend: str | None = None
    #: For the backend `slurm`: the partition. For `ray`: the dashboard's address.
    partition: str | None = None
    #: For `slurm`, instead: a partition whose users go on with `sbatch`. For `kubernetes`: namespaces whose users go on
    #: with `kubectl apply`.
    adopt: str | None = None
    address: str | None = None
    #: For both: a folder that the service and all nodes share.
    shared: Path | None = None
    #: For the backend `kubernetes`: context of the kubeconfig file, namespace and image of pods, the shared volume.
    context: str | None = None
    namespace: str | None = None
    image: str | None = None
    volume: str | None = None
    #: Further settings of the backend, by name.
    backend_settings: Mapping[str, str] = field(default_factory=dict)
    #: URL at which jobs reach the service, if it is not the address that the service listens at.
    url: str | None = None
    #: Further names by which clients call the service.
    server_names: tuple[str, ...] = ()
    #: Unix socket for people on this machine; None: `horae.sock` in the state folder.
    socket: Path | None = None
    #: Role of people on this machine who have no token, by the socket; None: they need one, the operator excepted.
    local_users: Role | None = None
    #: File for a line on each request.
    access_log: Path | None = None
    #: What keeps jobs apart on this machine: account, sandbox or none.
    isolation: str | None = None
    #: For the isolation `account`: the root helper, and accounts by user where their names differ.
    helper: AccountHelper | None = None
    account_names: Mapping[str, str] = field(default_factory=dict)
    #: Whether to wait for the end of a service that is active on the same database, and take over then.
    standby: bool = False
    #: Whether to go on with what there is of a journal that is damaged, or behind its high-water mark.
    accept_loss: bool = False


class Server:
    """A running service: store, backend, daemon and HTTP server. A standby has no backend until it takes over."""

    def __init__(
        self,
        asked: ServeOptions,
        tell: Callable[[str], None] = lambda note: None,
        stop: threading.Event | None = None,
    ) -> None:
        """Start everything. If a step fails, the earlier steps are undone.

        `tell` is told of a database that is waited for, until `stop` is set.
        """
        self._ending = ExitStack()
        with self._ending:
            try:
                self._start(asked, tell, stop or threading.Event())
            except OSError as error:
                raise CannotServe(_cannot_start(asked.state, error)) from error
            self._ending = self._ending.pop_all()

    def _start(self, asked: ServeOptions, tell: Callable[[str], None], stop: threading.Event) -> None:
        if asked.standby:
            check_standby(asked.database)
        self.state = _own_folder(asked.state)
        opened = _open_store(asked, self.state, tell, stop)
        self.store = opened.store
        #: What the operator is told of the journal.
        self.journal_notes: tuple[str, ...] = opened.notes
        self._ending.callback(self.store.close)
        if asked.helper:
            self._ending.callback(asked.helper.close)
        self._asked, self._next_try_s = asked, 0.0
        self._app: FastAPI | None = None
        #: What the operator is told of the policy: it ignores speeds by GPU type. Empty if all is well.
        self.policy_note: str = ""
        #: What the operator is told about limits and secrets. Empty if all is well.
        self.notes: list[str] = []
        self.token_file = self.state / "token"
        if asked.standby and not self.store.try_to_own():
            self._stand_by(asked, stop)
            return
        if asked.standby:
            self.journal_notes = take_store(self.store, self.state).notes
        self._activate(asked)

    def _listen(self, asked: ServeOptions, last_port: int, job_url: str | None) -> Listening:
        self._listening = listening = Listening(_listen_options(asked, self.state, last_port, job_url))
        self._ending.callback(listening.close)
        #: Where this machine reaches the service, and the file of the CA by which to verify it.
        self.url, self.ca, self.is_plain = listening.url, listening.address.get("ca"), listening.is_plain
        return listening

    # ---------------------------------------------------------------- a standby

    def _stand_by(self, asked: ServeOptions, stop: threading.Event) -> None:
        """Follow the journal of the active service, and answer what reads."""
        initial, active = _await_active(self.store, stop)
        before = self.store.serve_options()
        chosen = asked.backend or before.get("backend", DEFAULT_BACKEND)
        cluster = cluster_options(asked, before, chosen)
        change = what_loses_jobs(asked, before, chosen, cluster, self.state)
        if change := change or what_parts_services(asked, before, chosen, str(active.get("host", ""))):
            raise CannotServe(change)
        self.isolation = chosen_isolation(asked, before, chosen)
        if moved := moved_folders(self.isolation, before):
            raise CannotServe(moved)
        listening = self._listen(asked, before.get("port", 0), cluster.get("url"))
        shared = Path(cluster["shared"]) if "shared" in cluster else None
        has_logs = chosen == DEFAULT_BACKEND or (chosen in BACKENDS and shared is not None)
        clock, settings = _clock(self.store), OwnSettings.from_dict(initial)
        tokens = Tokens(self.store, load_secret(self.state / "secret"), clock)
        files = LogFiles(self.state, shared, asked.secrets, has_logs)
        self.daemon: Daemon | Follower = Follower(self.store, settings, files, clock, tokens)
        self._ending.callback(self.daemon.close)
        at = self.daemon.status
        warm_up(replace(settings, nodes=at.cluster.nodes, policy=at.policy, settings=at.settings))
        self.daemon.start()
        self._serve(tokens)
        self.store.save_fact(STANDBY, {"url": listening.job_url})

    @property
    def stands_by(self) -> bool:
        """Whether another service is active."""
        return isinstance(self.daemon, Follower)

    def _take_over_if_free(self, tell: Callable[[str], None]) -> None:
        """Become the active service if there is none any more."""
        if time.monotonic() < self._next_try_s:
            return
        try:
            if not self.store.try_to_own():
                self._next_try_s = time.monotonic() + TAKE_OVER_EVERY_S
                return
        except StoreTrouble:  # `/healthz` says so: the follower has the same trouble
            self._next_try_s = time.monotonic() + TAKE_OVER_EVERY_S
            return
        assert isinstance(self.daemon, Follower)
        self.daemon.close()
        take_store(self.store, self.state)
        self.daemon.catch_up()
        # Policy and queues stay as the journal has them: whoever is active may have changed them since this start.
        asked = replace(self._asked, policy=None, settings={}, placement=None, queues=())
        self._activate(asked, (self.daemon.engine, self.daemon.seq))
        tell(f"The active service is gone: this one has taken over, with term {self.store.term}.")

    # ------------------------------------------------------- the active service

    def _activate(self, asked: ServeOptions, recovered: tuple[Engine, int] | None = None) -> None:
        """Open the backend and start the daemon; `recovered` is the engine of a standby."""
        before = self.store.serve_options()
        chosen = asked.backend or before.get("backend", DEFAULT_BACKEND)
        cluster = cluster_options(asked, before, chosen)
        stored, change = self.store.initial_settings(), what_loses_jobs(asked, before, chosen, cluster, self.state)
        if stored and change and recover(self.store, OwnSettings.from_dict(stored))[0].gpus.occupied:
            raise CannotServe(change)
        self.isolation = chosen_isolation(asked, before, chosen)
        moved = moved_folders(self.isolation, before)
        if stored and moved and len(recover(self.store, OwnSettings.from_dict(stored))[0].jobs.active):
            raise CannotServe(moved)
        listening = self._listening if self._app else self._listen(asked, before.get("port", 0), cluster.get("url"))
        asked = _with_policy(asked)
        gpus, options = _resources(self.state, asked, before.get("gpus"), chosen)
        shared = Path(cluster["shared"]) if "shared" in cluster else None
        same = chosen == before.get("backend", DEFAULT_BACKEND)
        more = dict(asked.backend_settings or (before.get("backend_settings", {}) if same else {}))
        texts: dict[str, Any] = {name: cluster.get(name, "") for name in CLUSTER_OPTIONS}
        options = replace(options, **{**texts, "shared": shared}, settings=more)
        options = self._with_term(options)
        if chosen == DEFAULT_BACKEND and not options.nodes:
            raise BadGpus("No GPU was found on this machine: declare virtual GPUs, such as --gpus v100:4,k80:4.")
        beginning = _begin(asked, self.store, options.nodes) if chosen == DEFAULT_BACKEND else None
        options = replace(options, isolation=make_isolation(self.isolation, asked, self.state, options.nodes))
        backend = open_backend(chosen, options)
        self._ending.callback(backend.close)
        asked = _with_placement(asked, self.store, backend)
        beginning = beginning or _begin(asked, self.store, _nodes_in_sight(SteadyBackend(backend)), backend.shares_gpus)
        clock = _clock(self.store)
        why_alone = alone(self.isolation, operator())
        tokens = Tokens(self.store, load_secret(self.state / "secret"), clock, alone=why_alone)
        others = ["other accounts of this machine"] if asked.local_users and asked.local_users.may_write else []
        check_alone(self.isolation, operator(), [*tokens.submitters(), *others])
        make_admin(tokens, self.token_file)
        first = _first_day(self.store, beginning)

        def environment(job: str, attempt: int) -> dict[str, str]:
            own = {"HORAE_SERVICE": _service_id(self.store.epoch), "HORAE_TOKEN": tokens.of_job(job, attempt)}
            return {**listening.environment, **self._standby_address(), **own}

        keep_s = _keep_s(asked.keep_s, before.get("keep_s"))
        reserve = DiskReserve(self.state, file_of(asked.database or journal_url(self.state)))
        self.daemon = daemon = Daemon(
            self.store, backend, first, clock, environment, keep_s=keep_s, recovered=recovered, reserve=reserve
        )
        self._ending.callback(daemon.close, LEAVE_S)
        daemon.start(_reconfiguration_change(daemon, asked))
        self.notes = begin_rights(daemon, backend, is_first=not stored) + secret_notes(asked.secrets)
        self.policy_note = daemon.ask(_policy_note)
        if isinstance(backend, FindsJobs):
            taker = JobTaker(daemon, Operations(daemon), backend)
            self._ending.callback(taker.close)
            taker.start()
        now: dict[str, Any] = {"port": listening.port, "gpus": gpus, "state": str(self.state), "keep_s": keep_s}
        now |= cluster | ({} if chosen == DEFAULT_BACKEND else {"backend": chosen})
        now |= {"backend_settings": more} if more else {}
        now |= {"isolation": self.isolation} if chosen == DEFAULT_BACKEND and self.isolation else {}
        if now != before:
            self.store.save_serve_options(now)
        if self.store.fact(STANDBY).get("url") == listening.job_url:
            self.store.save_fact(STANDBY, {})
        own = {"url": listening.job_url, "term": self.store.term, "host": socket.gethostname()}
        self.store.save_fact(ACTIVE, own)
        self._serve(tokens)

    def _with_term(self, options: BackendOptions) -> BackendOptions:
        """The options, with the term if another service can take over. A restored journal has forgotten some terms."""
        if not self.store.can_be_taken_over:
            return options
        journal = _service_id(self.store.epoch)
        self.store.raise_term(known_term(self.state, journal))
        return replace(options, journal=journal, term=self.store.term)

    def _standby_address(self) -> dict[str, str]:
        """The variable by which jobs find the standby, if there is one."""
        url = str(json.loads(self.store.recent_facts.get(STANDBY, "{}")).get("url", ""))
        return {"HORAE_STANDBY_URL": url} if url and url != self._listening.job_url else {}

    def _serve(self, tokens: Tokens) -> None:
        """Answer requests, and say where. The API of a standby that takes over answers from its daemon from now on."""
        if self._app:
            self._app.state.service.answer_from(self.daemon, tokens)
            self._remove_address(self.state / STANDBY_FILE)
        else:
            self._app = app = self._make_app(tokens)
            self._http = Http(app, *self._listening.listeners)
            self._ending.callback(self._http.close)
            self._ending.callback(app.state.service.leaving.set)
            self._http.start()
        address = self.state / (STANDBY_FILE if self.stands_by else ADDRESS_FILE)
        write_private(address, json.dumps({**self._listening.address, "pid": os.getpid()}).encode())
        self._ending.callback(self._remove_address, address)

    def _make_app(self, tokens: Tokens) -> FastAPI:
        from horae.service.api import ApiOptions, make_app
        from horae.service.api.access_log import AccessLog

        log = AccessLog(self._asked.access_log) if self._asked.access_log else None
        if log:
            self._ending.callback(log.close)
        options = ApiOptions(self._listening.is_own_name, LocalUsers(self._asked.local_users), log)
        return make_app(self.daemon, tokens, options)

    def _remove_address(self, path: Path) -> None:
        """Remove the address of this service. Another one may have written its own since."""
        with suppress(OSError, ValueError):
            if json.loads(path.read_bytes()) == {**self._listening.address, "pid": os.getpid()}:
                path.unlink()

    def wait(self, stop: threading.Event, tell: Callable[[str], None] = lambda note: None) -> None:
        """Serve until `stop` is set. Raises if the daemon or the HTTP server ends by itself.

        A standby takes over as soon as it can. Renewed certificates are taken up. `tell` is told of those that cannot
        be used, and of what is wrong for long.
        """
        health = HealthNotes()
        while not stop.wait(0.1):
            if self.stands_by:
                self._take_over_if_free(tell)
            self.store.confirm_owner()
            for note in (self._listening.renew(), health.note(what_is_wrong(self.daemon), time.monotonic())):
                if note:
                    tell(note)
            if self.daemon.crashed is not None:
                raise self.daemon.crashed
            helper = self._asked.helper
            if helper and not helper.is_there():
                raise CannotServe(f"{helper.trouble} Running jobs go on, and the next service follows them.")
            if not self._http.alive:
                raise CannotServe("The HTTP server ended unexpectedly: start the service again.")

    def close(self) -> None:
        """Shut down. Running jobs go on, and the next service on this state folder follows them."""
        self._ending.close()


class Http:
    """The HTTP server of the API, in its own thread."""

    def __init__(self, app: FastAPI, *listeners: Listener, most_connections: int | None = None) -> None:
        import uvicorn

        from horae.service.connections import IDLE_S, Connection, HttpServer, connections_for, raise_descriptor_limit

        config = uvicorn.Config(
            app,
            # Faster loops and parsers that may be installed do not know the deadlines and caps of connections.
            loop="asyncio",
            http=Connection,
            timeout_keep_alive=IDLE_S,
            lifespan="off",
            ws="none",
            # Errors are answered and written to crash reports; uvicorn would print tracebacks.
            log_config=None,
            log_level="critical",
            access_log=False,
            server_header=False,
            # Whoever says so in a header is not behind a proxy: the check of the host's name goes by the connection.
            proxy_headers=False,
            timeout_graceful_shutdown=1,
        )
        config.load()
        most = most_connections or connections_for(raise_descriptor_limit())
        self._server: uvicorn.Server = HttpServer(config, listeners, most)
        self._thread = threading.Thread(target=self._server.run, name="horae-http", daemon=True)

    def start(self) -> None:
        """Start the server; returns when it answers."""
        self._thread.start()
        while self._thread.is_alive() and not self._server.started:
            threading.Event().wait(0.01)

    @property
    def alive(self) -> bool:
        """Whether the server still runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stop the server; open requests get `LEAVE_S` seconds."""
        self._server.should_exit = True
        self._thread.join(LEAVE_S)
        self._server.force_exit = True
        self._thread.join(0.2)


# --------------------------------------------------------------------- on disk


def _own_folder(path: Path) -> Path:
    """The state folder, created if missing, readable by its owner only."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        state = path.resolve()
        if state.stat().st_uid != os.getuid():
            raise CannotServe(f"{path} belongs to another user: name a folder of your own with --state.")
        state.chmod(0o700)
    except OSError as error:
        raise CannotServe(f"The folder {path} cannot be used ({error.strerror}): name another with --state.") from None
    return state


def _cannot_start(state: Path, error: OSError) -> str:
    """An error of the file system as a sentence that says what to do."""
    at = error.filename or state
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"No space is left at {at}: free some space there, or name another folder with --state."
    return f"The service cannot start because of {at} ({error.strerror or error}): fix that and try again."


def _open_store(asked: ServeOptions, state: Path, tell: Callable[[str], None], stop: threading.Event) -> Opened:
    """The store, owned and verified unless this is to be a standby. A database that does not answer is waited for."""
    end_s, is_told = time.monotonic() + START_WAIT_S, False
    while True:
        try:
            return open_store(
                asked.database or journal_url(state),
                state,
                own=not asked.standby,
                accept_loss=asked.accept_loss,
                shared=asked.shared,
            )
        except StoreAway as away:
            if time.monotonic() >= end_s:
                raise
            if not is_told:
                tell(f"{away} It is tried again for {START_WAIT_S:.0f} s.")
            is_told = True
        if stop.wait(START_AGAIN_S):
            raise CannotServe("The service was stopped before its database answered.")


def _await_active(store: Store, stop: threading.Event) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the first start, and what the active service says of itself, which may have begun just now."""
    end_s = time.monotonic() + START_WAIT_S
    while True:
        initial, active = store.initial_settings(), store.fact(ACTIVE)
        if initial and active:
            return initial, active
        if stop.wait(START_AGAIN_S) or time.monotonic() >= end_s:
            raise CannotServe(
                "The active service has not begun yet, or is of an older release: start the standby again when a "
                "service of this release answers."
            )


def _service_id(epoch: float) -> str:
    """Tells jobs of different services apart that save in the same folder: the time of the first start, in ms."""
    return f"{int(epoch * 1000):x}"


def _clock(store: Store) -> Clock:
    """The clock of the journal. It never goes back behind the last record, even if the system clock was set back."""
    last = next(store.tail(store.last_seq() - 1), None)
    return wall_clock(store.epoch, last[1].at_s if last else 0.0)


# ------------------------------------------------------------------- beginning


def _with_policy(asked: ServeOptions) -> ServeOptions:
    """What is asked, with a policy from outside loaded, and named as the journal will name it."""
    if asked.policy is None:
        return asked
    name, content = stored_policy(asked.policy)
    return replace(asked, policy=name, settings=with_files(name, {**asked.settings, **content}))


def _resources(state: Path, asked: ServeOptions, last: str | None, backend: str) -> tuple[str | None, BackendOptions]:
    """Virtual GPUs as requested, else real GPUs, else the virtual GPUs of the last start.

    Backends other than the local one find their machines themselves, unless virtual ones are asked for.
    """
    devices = find_gpus() if asked.gpus is None and backend == DEFAULT_BACKEND else {}
    gpus = (None if devices else last) if asked.gpus is None else asked.gpus
    nodes = parse_virtual(gpus) if gpus is not None else tuple(devices)
    if backend == DEFAULT_BACKEND:
        nodes = with_machine_room(nodes)
    return gpus, BackendOptions(state, nodes, asked.secrets, devices, max_log_bytes=asked.max_log_bytes)


def _socket_name(shares_state: bool) -> str:
    """Name of the Unix socket. A standby may be on another machine, which has the state folder by a file server."""
    return f"horae-{socket.gethostname().partition('.')[0][:20]}.sock" if shares_state else "horae.sock"


def _listen_options(asked: ServeOptions, state: Path, last_port: int, job_url: str | None) -> ListenOptions:
    return ListenOptions(
        asked.host,
        asked.port,
        last_port,
        job_url,
        asked.tls_cert,
        asked.tls_key,
        asked.tls_ca,
        asked.allow_plain_http,
        asked.server_names,
        asked.socket.absolute() if asked.socket else state / _socket_name(asked.standby),
        needs_socket=asked.socket is not None,
    )


def _with_placement(asked: ServeOptions, store: Store, backend: Backend) -> ServeOptions:
    """What is asked, with the placement of jobs that keep the layout which they asked the cluster manager for."""
    if not isinstance(backend, FindsJobs):
        return asked
    if asked.placement not in (None, WHOLE_PLACEMENT):
        raise CannotServe(
            f"Jobs that users give to the cluster itself keep their number of nodes: use --placement {WHOLE_PLACEMENT}."
        )
    return asked if store.initial_settings() else replace(asked, placement=WHOLE_PLACEMENT)


def _keep_s(asked: float | None, last: float | None) -> float | None:
    """Seconds to keep ended jobs: as requested, or as at the last start."""
    if asked is not None and asked < DAY_S:
        raise CannotServe("--keep must be at least one day: use --keep 1d, or more.")
    return last if asked is None else asked


def _nodes_in_sight(backend: Backend) -> tuple[Node, ...]:
    """The nodes that a backend sees now, maybe none. Later nodes join."""
    sight = backend.sight()
    return tuple(seen.as_node(seen.name) for seen in sight.nodes) if sight else ()


def _begin(asked: ServeOptions, store: Store, nodes: tuple[Node, ...], shares_gpus: bool = True) -> InitialSettings:
    """The initial settings if this is the first start, checked."""
    before = store.initial_settings()
    policy = asked.policy or DEFAULT_POLICY
    beginning = InitialSettings(
        nodes,
        policy,
        with_files(policy, _with_defaults(policy, asked.settings)),
        asked.placement or DEFAULT_PLACEMENT,
        asked.queues,
    )
    if asked.policy or not before:
        _check_policy(beginning, shares_gpus)
    make_placement(beginning.placement)
    if asked.secrets is not None and not asked.secrets.is_dir():
        raise CannotServe(f"There is no folder {asked.secrets}: name the folder that has the files of the secrets.")
    _check_placement(asked.placement, before)
    return beginning


def _with_defaults(policy: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """The settings that were given, and the service's own for a new policy if that is the default one."""
    return {**DEFAULT_SETTINGS, **given} if policy == DEFAULT_POLICY else dict(given)


def _check_policy(beginning: InitialSettings, shares_gpus: bool) -> None:
    made = make_policy(beginning.policy, beginning.settings)
    check_sharing(made, beginning.policy, shares_gpus)
    if isinstance(made, ChecksCluster):
        made.check(Cluster(beginning.nodes).gpu_types, pairs_known=False)
    if isinstance(made, CheckedPolicy):
        # A policy from outside that fails at once must not be stored.
        warm_up(beginning)


def _check_placement(asked: str | None, before: Mapping[str, Any] | None) -> None:
    if asked and before and before["placement"] != asked:
        raise CannotServe(
            f"This service was first started with --placement {before['placement']}, which cannot change: leave "
            "--placement out, or start a new service with another --state."
        )


def _first_day(store: Store, beginning: InitialSettings) -> InitialSettings:
    """The initial settings of the service, stored now if this is its first start."""
    return OwnSettings.from_dict(store.ensure_initial_settings(beginning.as_dict()))


def _policy_note(engine: Engine, now_s: float) -> tuple[Change, str]:
    """What to tell of the policy that decides, given the jobs of the journal."""
    return Change(), speeds_ignored(engine, engine.policy_name, engine.policy)


def _reconfiguration_change(daemon: Daemon, asked: ServeOptions) -> Prepare[str] | None:
    """The change of policy, settings and queues that the options ask for; warms up the policy that will decide."""
    at, decides = daemon.status, daemon.engine.policy
    policy = asked.policy if asked.policy != at.policy else None
    given = with_files(policy or at.policy, _with_defaults(policy, asked.settings))
    settings = {key: value for key, value in given.items() if at.settings.get(key) != value}
    queues = [queue for queue in asked.queues if at.queues.get(queue.path) != queue]
    if not policy:
        if isinstance(decides, MissingPolicy) and not settings:
            raise CannotServe(f"{decides.why} Or choose another policy, with --policy.")
        if not settings:
            check_sharing(decides, at.policy, daemon.backend.shares_gpus)
        wanted = {**at.settings, **settings}
        warm_up(replace(daemon.initial_settings, nodes=at.cluster.nodes, policy=at.policy, settings=wanted))
    if policy or settings or queues:
        return Operations(daemon).configuration_change(Caller(operator(), Role.ADMIN), policy, given, queues)
    return None
