"""Address of the service, and the token to use there."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from horae.core.errors import UserError

_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_TOKEN = re.compile(r"[!-~]+")
#: If this is 1, tokens may cross the network without encryption. Jobs of a service that allows it have it.
_PLAIN_HTTP = "HORAE_ALLOW_PLAIN_HTTP"


class NoService(UserError):
    """No service was found or reached."""


class NoToken(UserError):
    """There is no token, or it cannot be used."""


@dataclass(frozen=True)
class Address:
    """Address of a service, whether it is on this machine, and the token for it.

    By its Unix socket, the service knows the account that asks: the token may be empty.
    """

    url: str
    local: bool
    token: str
    #: Certificates of the CA that vouches for the service: a file, or their text. None: those the system trusts.
    ca: str | None = None
    unix_socket: str | None = None


def default_state() -> Path:
    """The default state folder of a service."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "horae"


def find_address(url: str | None) -> Address:
    """The service at `url`, HORAE_URL or on this machine, in this order, with the first token found.

    A URL may be unix:PATH, the place of the service's Unix socket.
    """
    ca, named = os.environ.get("HORAE_CA"), url or os.environ.get("HORAE_URL")
    if named and named.startswith("unix:"):
        return Address(named, True, _own_token(), None, named.removeprefix("unix:").replace("///", "/", 1))
    where, ca, unix_socket = (named, ca, None) if named else _own_service(ca)
    if unix_socket:
        return Address(where, True, _own_token(), ca, unix_socket)
    parts = _checked(where)
    local = not named or bool(_LOOPBACK.fullmatch(parts.hostname or ""))
    if parts.scheme == "http" and not local and os.environ.get(_PLAIN_HTTP) != "1":
        raise NoService(
            f"Your token would cross the network to {where} without encryption: use https://, or, if the service "
            f"has no TLS and you trust the network, set {_PLAIN_HTTP}=1."
        )
    return Address(where.rstrip("/"), local, _token(local), ca)


def _checked(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        right = False
    if not right or not _TOKEN.fullmatch(url):
        raise NoService(f"{url!r} is not the address of a service: write it like http://127.0.0.1:8642.")
    if "@" in parts.netloc:
        raise NoService("An address must not contain a user and password: leave them out, and set HORAE_TOKEN.")
    return parts


def _own_service(ca: str | None) -> tuple[str, str | None, str | None]:
    """Address, CA (or else `ca`) and Unix socket of the service that was last started here, if it still runs."""
    path = default_state() / "address.json"
    try:
        address = json.loads(path.read_text(encoding="utf-8"))
        url, pid, ca = str(address["url"]), int(address["pid"]), address.get("ca", ca)
        unix_socket = address.get("socket")
    except FileNotFoundError:
        raise NoService(
            "No service was found on this machine: start one with `horae serve`, or name one with --url or HORAE_URL."
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise NoService(f"{path} cannot be read: start the service again with `horae serve`, or use --url.") from None
    # Another program may listen there now, and must not get the token.
    if not is_alive(pid):
        raise NoService("The service on this machine has ended: start it again with `horae serve`.")
    return url, ca, str(unix_socket) if unix_socket and Path(unix_socket).is_socket() else None


def is_alive(pid: int) -> bool:
    """Whether a process runs on this machine, be it another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _own_token() -> str:
    """The first token found, that of the state folder excepted; empty if there is none."""
    return next(_checked_tokens(local=False), "")


def _checked_tokens(local: bool) -> Iterator[str]:
    for source, text in _tokens(local):
        token = text.strip()
        if not _TOKEN.fullmatch(token):
            raise NoToken(f"{source} does not contain a token: put a token there, and nothing else.")
        yield token


def _token(local: bool) -> str:
    """The first token found. The state folder's token is an admin's, and used only for a service on this machine."""
    for token in _checked_tokens(local):
        return token
    raise NoToken(
        "No token was found: set HORAE_TOKEN, or put the token into ~/.config/horae/token; "
        "an admin can make one with `horae token create USER`."
    )


def _tokens(local: bool) -> Iterator[tuple[str, str]]:
    """Sources of tokens and their texts, in order of precedence."""
    if "HORAE_TOKEN" in os.environ:
        yield "HORAE_TOKEN", os.environ["HORAE_TOKEN"]
    if named := os.environ.get("HORAE_TOKEN_FILE"):
        yield named, _read(Path(named))
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "horae" / "token"
    for path in (config, default_state() / "token")[: 1 + local]:
        if path.exists():
            _must_be_private(path)
            yield str(path), _read(path)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise NoToken(f"The token file {path} cannot be read: {why}.") from None


def _must_be_private(path: Path) -> None:
    if path.stat().st_mode & 0o077:
        raise NoToken(f"Other users can read the token in {path}: run `chmod 600 {path}`, and have the token replaced.")
