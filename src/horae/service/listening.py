"""Where the service listens, how it is reached, and whether tokens travel encrypted."""

from __future__ import annotations

import ipaddress
import re
import socket
import ssl
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from horae.core.errors import UserError
from horae.service.tls import Tls, TlsFiles, read_ca

#: Seconds between two looks at the files of the certificate.
_RENEWAL_LOOK_S = 1.0
#: Name of the Unix socket if another service on the same state folder has the first one.
_SECOND_SOCKET = "standby.sock"


class CannotServe(UserError):
    """The service cannot start."""


@dataclass(frozen=True)
class Listener:
    """A listening socket. `identifies`: whether the account at the other end, which the system vouches for, counts."""

    socket: socket.socket
    tls: ssl.SSLContext | None = None
    identifies: bool = False


@dataclass(frozen=True)
class ListenOptions:
    """What was asked for, and what is known of the last start."""

    host: str
    #: 0 means the last port, or any free one.
    port: int
    last_port: int = 0
    #: URL at which jobs reach the service, if it is not the address that it listens at.
    job_url: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    allow_plain_http: bool = False
    #: Further names by which clients call the service.
    server_names: tuple[str, ...] = ()
    #: Where the Unix socket is for people on this machine; beside it is that of jobs. None: there is none.
    socket_path: Path | None = None
    #: Whether the place of the socket was asked for, so that the service must not start without it.
    needs_socket: bool = False


class Listening:
    """A listening socket, with TLS or without, and the URLs that lead to it."""

    def __init__(self, asked: ListenOptions) -> None:
        """Raises before anything listens if tokens would travel without encryption and nobody asked for that."""
        self._ca, job_url = asked.tls_ca, asked.job_url
        #: Whether tokens may cross the network without encryption.
        self.is_plain = asked.allow_plain_http and not asked.tls_cert
        _check_options(asked)
        if job_url:
            _check_job_url(job_url, asked)
        self.tls = Tls(TlsFiles(asked.tls_cert, asked.tls_key, asked.tls_ca), self._hosts) if asked.tls_cert else None
        self._ca_text = read_ca(asked.tls_ca) if asked.tls_ca else None
        self.socket = _listen_as_before(asked)
        try:
            #: Where this machine reaches the service, and where jobs do.
            self.url = self._own_url(job_url)
        except UserError:
            self.socket.close()
            raise
        self.job_url = job_url or self.url
        named = (socket.gethostname(), asked.host, _host(self.url), _host(self.job_url), *asked.server_names)
        self._names = {"localhost", *(name.lower() for name in named)}
        self._next_look_s = 0.0
        try:
            self._unix = _listen_unix(asked.socket_path, asked.needs_socket) if asked.socket_path else None
        except UserError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Listen no more."""
        self.socket.close()
        if self._unix:
            self._unix.close()

    def is_own_name(self, name: str) -> bool:
        """Whether a name, in lower case, is one of the service's."""
        return name in self._names

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The sockets to serve."""
        here = Listener(self.socket, self.tls.context if self.tls else None)
        if not self._unix:
            return (here,)
        return (here, Listener(self._unix.people, identifies=True), Listener(self._unix.jobs))

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self.socket.getsockname()[1])

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which a job finds the service and verifies it. The CA is a text: nodes need no file for it."""
        ca = self.tls.ca if self.tls else self._ca_text
        found = {"HORAE_URL": self.job_url} | ({"HORAE_CA": ca} if ca else {})
        # The service answers a challenge before a job sends its token.
        found |= {"HORAE_PROOF": "1"} | ({"HORAE_SOCKET": self._unix.paths[1]} if self._unix else {})
        return found | ({"HORAE_ALLOW_PLAIN_HTTP": "1"} if self.is_plain else {})

    @property
    def address(self) -> dict[str, str]:
        """What commands on this machine have to know."""
        found = {"url": self.url} | ({"ca": str(self._ca.resolve())} if self._ca else {})
        return found | ({"socket": self._unix.paths[0]} if self._unix else {})

    def renew(self) -> str:
        """Take up a renewed certificate; returns what is wrong with it, or nothing. Cheap: looks once a second."""
        if not self.tls or time.monotonic() < self._next_look_s:
            return ""
        self._next_look_s = time.monotonic() + _RENEWAL_LOOK_S
        return self.tls.renew()

    def _own_url(self, job_url: str | None) -> str:
        here = _url(self.socket, "https" if self.tls else "http")
        if not self.tls:
            return here
        if job_url:
            self.tls.check(_host(job_url))
            return here if self.tls.is_for(_host(here)) else job_url
        self.tls.check(_host(here))
        return here

    def _hosts(self) -> tuple[str, ...]:
        return tuple({_host(self.url), _host(self.job_url)})


def listen(host: str, port: int, allow_remote: bool) -> socket.socket:
    """A listening socket. An address that other machines can reach needs `allow_remote`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise CannotServe(f"{host!r} is not an address of this machine: use 127.0.0.1, for example.") from None
    family, socket_type, protocol, _, address = found[0]
    if not _is_loopback(str(address[0])) and not allow_remote:
        raise CannotServe(
            f"With --host {host} tokens would cross the network without encryption: give the service a certificate "
            "with --tls-cert and --tls-key, or accept that with --allow-plain-http."
        )
    listener = socket.socket(family, socket_type, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise CannotServe(
            f"Cannot listen on {host} port {port} ({error.strerror}): choose another port with --port; "
            "0 takes any free port."
        ) from None
    return listener


class _UnixSockets:
    """Unix sockets for people, and for jobs. `is_open`: every account that can reach their folder may connect.

    Jobs have one of their own, on which no account counts: a sandbox may hand it to jobs of the service's account.
    """

    def __init__(self, path: Path, is_open: bool) -> None:
        """Raises OSError if these places cannot be used."""
        self._paths = (path, path.with_name(f"{path.stem}-jobs{path.suffix}"))
        self.people = _unix_socket(self._paths[0], is_open)
        try:
            self.jobs = _unix_socket(self._paths[1], is_open)
        except OSError:
            self.people.close()
            path.unlink(missing_ok=True)
            raise

    @property
    def paths(self) -> tuple[str, str]:
        """Where people and jobs find them."""
        people, jobs = self._paths
        return str(people), str(jobs)

    def close(self) -> None:
        """Listen no more."""
        for listener, path in zip((self.people, self.jobs), self._paths, strict=True):
            listener.close()
            path.unlink(missing_ok=True)


def _listen_unix(path: Path, is_needed: bool) -> _UnixSockets | None:
    """The Unix sockets; None if they cannot be had and were not asked for: there is still the port."""
    try:
        return _UnixSockets(path, is_open=is_needed)
    except OSError as error:
        if is_needed:
            why = error.strerror or error
            raise CannotServe(
                f"Cannot listen at --socket {path} ({why}): choose another place, with a short name."
            ) from None
    # A service and its standby may share the state folder. The folder may also have too long a name for a socket, or be
    # on a file system without sockets.
    with suppress(OSError):
        return _UnixSockets(path.with_name(_SECOND_SOCKET), is_open=False)
    return None


def _unix_socket(path: Path, is_open: bool) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and not _is_listened_at(path):
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o666 if is_open else 0o600)
        listener.listen(1024)
    except OSError:
        listener.close()
        raise
    return listener


def _is_listened_at(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asks:
        try:
            asks.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True
        return True


def _listen_as_before(asked: ListenOptions) -> socket.socket:
    """Listen on the requested port; for port 0, on the last port if it is free, since running jobs report there."""
    allow_remote = asked.tls_cert is not None or asked.allow_plain_http
    if asked.port == 0 and asked.last_port:
        with suppress(CannotServe):
            return listen(asked.host, asked.last_port, allow_remote)
    return listen(asked.host, asked.port, allow_remote)


def _check_options(asked: ListenOptions) -> None:
    if asked.tls_key and not asked.tls_cert:
        raise CannotServe("--tls-key is the key of a certificate: name the certificate with --tls-cert.")
    if asked.tls_ca and not asked.tls_cert and not (asked.job_url or "").startswith("https:"):
        raise CannotServe("--tls-ca verifies a service with TLS: add --tls-cert, or --url https://NAME:PORT.")


def _check_job_url(url: str, asked: ListenOptions) -> None:
    parts = _split(url)
    if asked.tls_cert and parts.scheme != "https":
        raise CannotServe(f"--url {url} is without TLS, and the service has a certificate: use https://.")
    if parts.scheme == "http" and not _is_loopback(parts.hostname or "") and not asked.allow_plain_http:
        raise CannotServe(
            f"With --url {url} tokens of jobs would cross the network without encryption: use https://, with "
            "--tls-cert and --tls-key, or accept that with --allow-plain-http."
        )


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not re.fullmatch("[!-~]+", url) or "@" in url:
        raise CannotServe(f"{url!r} cannot be the address of the service: write --url https://head:8642.")
    return parts


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def _url(listener: socket.socket, scheme: str) -> str:
    """The URL at which this machine reaches the service."""
    host, port = listener.getsockname()[:2]
    address = ipaddress.ip_address(host.partition("%")[0])
    if address.is_unspecified:
        host = "127.0.0.1" if address.version == 4 else "::1"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
