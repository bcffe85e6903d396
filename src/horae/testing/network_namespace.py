"""A network of its own for daemons under test: nothing outside reaches them, and they reach nothing.

A namespace has loopback addresses only. Ports are let through one by one, each by a small process that lives in the
namespace and passes bytes on: `forward_out` lets this machine reach a port inside, on loopback; `forward_in` lets
processes inside reach a port of this machine. The processes of a namespace are found by the kernel's own records, so
that ending them can hit nobody else. Needs root and the program `ip` (iproute2).

    python network_namespace.py NAMESPACE FD|ADDRESS:PORT inside|outside ADDRESS:PORT      passes bytes on
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_CLONE_NEWNET = 0x40000000
#: Seconds for processes to end after SIGKILL.
_PATIENCE_S = 30.0


def why_no_namespace() -> str:
    """Why no namespace can be made here; empty if one can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    return "" if shutil.which("ip") else "the program ip is not installed; `apt-get install -y iproute2` installs it"


class NetworkNamespace:
    """A named network namespace."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def exists(self) -> bool:
        """Whether there is such a namespace."""
        return _handle_path(self.name).exists()

    def create(self, addresses: Sequence[str]) -> None:
        """Make the namespace with these addresses on its loopback device. Does nothing if it exists."""
        if self.exists:
            return
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")
        for address in addresses:
            _ip("-n", self.name, "addr", "add", f"{address}/32", "dev", "lo")

    def inside(self, *command: str) -> list[str]:
        """The command that runs a command inside."""
        return ["ip", "netns", "exec", self.name, *command]

    def process_ids(self) -> list[int]:
        """Processes that are inside now."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()] if self.exists else []

    def remove(self) -> None:
        """Kill every process inside, and remove the namespace. Harmless if there is none."""
        end_s = time.monotonic() + _PATIENCE_S
        while found := self.process_ids():
            assert time.monotonic() < end_s, f"processes {found} outlive SIGKILL"
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)
        if self.exists:
            _ip("netns", "delete", self.name)

    def forward_out(self, address: str, port: int) -> tuple[int, subprocess.Popen[bytes]]:
        """Let this machine reach a port inside; returns the port on 127.0.0.1, and the process that passes bytes on."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            words = [self.name, str(listener.fileno()), "inside", f"{address}:{port}"]
            return int(listener.getsockname()[1]), _spawn(words, listener.fileno())

    def forward_in(self, port: int, address: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        """Let processes inside reach the same port of this machine on 127.0.0.1."""
        return _spawn([self.name, f"{address}:{port}", "outside", f"127.0.0.1:{port}"])


def _spawn(words: Sequence[str], *handles: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", __file__, *words],
        pass_fds=handles,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30).stdout


def _handle_path(name: str) -> Path:
    return Path("/run/netns") / name


def enter_namespace(handle: int) -> None:
    """Move this thread into a network namespace. Sockets that it has stay in theirs."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(handle, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "a network namespace cannot be entered")


def _pass_on(client: socket.socket, to: tuple[str, int], namespace: int) -> None:
    """Connect a client with a port of a namespace, until both have said all."""
    with client:
        try:
            enter_namespace(namespace)
            server = socket.create_connection(to, timeout=10)
        except OSError:
            return
        with server:
            server.settimeout(None)
            other = threading.Thread(target=_copy, args=(server, client), daemon=True)
            other.start()
            _copy(client, server)
            other.join()


def _copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            to.sendall(data)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def main(name: str, listen: str, side: str, to: str) -> int:
    """Pass on what comes to a port. The main thread is inside, so that the process ends with the namespace."""
    outside = os.open("/proc/self/ns/net", os.O_RDONLY)
    inside = os.open(_handle_path(name), os.O_RDONLY)
    enter_namespace(inside)
    given = socket.socket(fileno=int(listen)) if listen.isdigit() else None
    listener = given or socket.create_server(_address(listen))
    target = (_address(to), inside if side == "inside" else outside)
    while True:
        client, _ = listener.accept()
        threading.Thread(target=_pass_on, args=(client, *target), daemon=True).start()


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
