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
#: Begins the address of a service by its Unix socket.
UNIX = "unix:"
#: Files in the state folder with the address of the service, and of its standby.
ADDRESS_FILES = ("address.json", "standby.json")
#: If this is 1, tokens may cross the network without encryption. Jobs of a service that allows it have it.
_PLAIN_HTTP = "HORAE_ALLOW_PLAIN_HTTP"


class NoService(UserError):
    """No service was found or reached."""


class NoToken(UserError):
    """There is no token, or it cannot be used."""


@dataclass(frozen=True)
class Address:
    """Address of a service, whether it is on this machine, and the token for it.

    By its Unix socket (`unix:PATH`), the service knows the account that asks: the token may be empty.
    """

    url: str
    local: bool
    token: str
    #: Certificates of the CA that vouches for the service: a file, or their text. None: those the system trusts.
    ca: str | None = None
    #: Further addresses, of its standby or of services that may have taken over. They are trusted as much as `url`.
    others: tuple[str, ...] = ()


def default_state() -> Path:
    """The default state folder of a service."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "horae"


def find_address(url: str | None) -> Address:
    """The service at `url`, HORAE_URL or on this machine, in this order, with the first token found.

    Several addresses, of a service and its standby, have commas between them. A token goes to no other address. An
    address may be unix:PATH, the place of a service's Unix socket.
    """
    ca, named = os.environ.get("HORAE_CA"), url or _named_in_environment()
    found, ca = (named.split(","), ca) if named else _own_services(ca)
    places = [_place(place.strip()) for place in found if place.strip()] or [_place("")]
    remote = [where for where in places if not _is_local(where)]
    local = not named or not remote
    for where in remote:
        if where.startswith("http:") and not local and os.environ.get(_PLAIN_HTTP) != "1":
            raise NoService(
                f"Your token would cross the network to {where} without encryption: use https://, or, if the service "
                f"has no TLS and you trust the network, set {_PLAIN_HTTP}=1."
            )
    token = _token(local, [where.startswith(UNIX) for where in places])
    return Address(places[0], local, token, ca, tuple(places[1:]))


def _named_in_environment() -> str:
    """The addresses that the environment names: jobs have that of the standby in a variable of its own."""
    names = (os.environ.get(name, "") for name in ("HORAE_URL", "HORAE_STANDBY_URL"))
    return ",".join(filter(None, names)) if os.environ.get("HORAE_URL") else ""


def _place(where: str) -> str:
    """An address in its usual form; raises if it is none."""
    if where.startswith(UNIX):
        return where.replace("///", "/", 1)
    _checked(where)
    return where.rstrip("/")


def _is_local(where: str) -> bool:
    return where.startswith(UNIX) or bool(_LOOPBACK.fullmatch(urlsplit(where).hostname or ""))


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


def _own_services(ca: str | None) -> tuple[list[str], str | None]:
    """Addresses and CA (or else `ca`) of the service that was last started on this machine, and of its standby."""
    found = [own for name in ADDRESS_FILES if (own := _own_service(default_state() / name))]
    if not found:
        raise NoService(
            "No service was found on this machine: start one with `horae serve`, or name one with --url or HORAE_URL."
        )
    # Another program may listen at the address of one that has ended, and must not get the token.
    alive = [(url, own_ca) for url, own_ca, pid in found if is_alive(pid)]
    if not alive:
        raise NoService("The service on this machine has ended: start it again with `horae serve`.")
    return [url for url, _ in alive], next((own_ca for _, own_ca in alive if own_ca), ca)


def _own_service(path: Path) -> tuple[str, str | None, int] | None:
    """Address, by its Unix socket if it has one, CA and process id in a file of a service; None if there is none."""
    try:
        address = json.loads(path.read_text(encoding="utf-8"))
        url, unix_socket = str(address["url"]), address.get("socket")
        where = f"{UNIX}{unix_socket}" if unix_socket and Path(unix_socket).is_socket() else url
        return where, address.get("ca"), int(address["pid"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        raise NoService(f"{path} cannot be read: start the service again with `horae serve`, or use --url.") from None


def is_alive(pid: int) -> bool:
    """Whether a process runs on this machine, be it another user's."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _checked_tokens(local: bool) -> Iterator[str]:
    for source, text in _tokens(local):
        token = text.strip()
        if not _TOKEN.fullmatch(token):
            raise NoToken(f"{source} does not contain a token: put a token there, and nothing else.")
        yield token


def _token(local: bool, by_socket: list[bool]) -> str:
    """The first token found. The state folder's token is an admin's, and used only for a service on this machine.

    Services that are reached by a Unix socket know the account that asks, and need none.
    """
    for token in _checked_tokens(local and not all(by_socket)):
        return token
    if any(by_socket):
        return ""
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
