"""TLS of the service: its certificate, checked as a client would check it, and taken up again when it is renewed."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from horae.core.errors import UserError

#: Longest text of CA certificates, in bytes: jobs get it in a variable of their environment.
_LARGEST_CA = 65536
#: Verification errors of OpenSSL (X509_V_ERR_...): not valid yet, expired, for another name, for another IP address.
_NOT_YET, _EXPIRED, _OTHER_NAMES = 9, 10, (62, 64)
#: The issuer is unknown, or the certificate is its own issuer.
_UNKNOWN_ISSUER = (2, 18, 19, 20, 21)
#: What OpenSSL says of a key that is another certificate's: of the same type, or of another.
_OTHER_KEY = ("KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH", "NO_CERTIFICATE_ASSIGNED")


class BadCertificate(UserError):
    """A certificate, key or CA that the service cannot use."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. Without `key`, the key is in the file of the certificate."""

    cert: Path
    key: Path | None
    #: CA certificates by which clients verify the service; None means those that the system trusts.
    ca: Path | None

    def version(self) -> tuple[object, ...]:
        """What changes when a file is replaced or written. A missing file is a version, too."""
        return tuple(_file_version(path) for path in (self.cert, self.key, self.ca) if path)


class Tls:
    """The certificate that new connections are shown. A renewed one is used as soon as clients would accept it."""

    def __init__(self, files: TlsFiles, hosts: Callable[[], tuple[str, ...]]) -> None:
        """`hosts` gives the names by which clients know the service; a certificate must be for all of them."""
        self._files, self._hosts = files, hosts
        self._version = self._seen = files.version()
        #: For the HTTP server; each connection is handed on to the newest certificate.
        self.context = self._newest = _server_context(files)
        self.context.sni_callback = self._use_newest
        #: Certificates of the CA, as text.
        self.ca = read_ca(files.ca) if files.ca else None

    def is_for(self, host: str) -> bool:
        """Whether the certificate is for this name. Raises if clients would not accept it under any name."""
        try:
            _handshake(self._newest, self.ca, host)
        except ssl.SSLCertVerificationError as why:
            if why.verify_code in _OTHER_NAMES:
                return False
            raise _unaccepted(self._files, host, why) from None
        return True

    def check(self, host: str) -> None:
        """Raise unless clients that call the service by this name accept the certificate."""
        _check(self._files, self._newest, self.ca, host)

    def renew(self) -> str:
        """Use the files' content if it has changed; returns what is wrong with it, once, or nothing.

        Certificate and key are replaced one after the other: files that changed since the last call are left alone.
        """
        before, self._seen = self._seen, self._files.version()
        if self._seen == self._version or self._seen != before:
            return ""
        self._version = self._seen
        try:
            renewed, ca = _server_context(self._files), read_ca(self._files.ca) if self._files.ca else None
            for host in self._hosts():
                _check(self._files, renewed, ca, host)
        except BadCertificate as why:
            return f"{why} The certificate in use stays."
        self._newest, self.ca = renewed, ca
        return ""

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        connection.context = self._newest


def read_ca(path: Path) -> str:
    """The CA certificates of a file, as text."""
    try:
        text = path.read_text(encoding="ascii")
    except OSError as why:
        raise BadCertificate(f"The CA file {path} cannot be read ({why.strerror}): check --tls-ca.") from None
    except UnicodeDecodeError:
        text = ""
    if len(text) > _LARGEST_CA:
        raise BadCertificate(f"{path} is too large for --tls-ca: name a file with the certificate of your CA alone.")
    try:
        ssl.create_default_context(cadata=text or "-")
    except ssl.SSLError:
        raise BadCertificate(f"{path} has no certificates in PEM form: check --tls-ca.") from None
    return text


def _check(files: TlsFiles, server: ssl.SSLContext, ca: str | None, host: str) -> None:
    """Raise unless a client that calls the service by this name accepts its certificate."""
    try:
        _handshake(server, ca, host)
    except ssl.SSLCertVerificationError as why:
        raise _unaccepted(files, host, why) from None


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    for path, option in ((files.cert, "--tls-cert"), (files.key, "--tls-key")):
        _check_readable(path, option)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = files.key or files.cert
    try:
        context.load_cert_chain(files.cert, files.key, password=lambda: _refuse_encrypted(key))
    except ssl.SSLError as why:
        raise _unloadable(files.cert, key, why) from None
    return context


def _unloadable(cert: Path, key: Path, why: ssl.SSLError) -> BadCertificate:
    """Why OpenSSL does not load a certificate and its key, and what to do. It gives no reason for what is no PEM."""
    if why.reason in _OTHER_KEY:
        return BadCertificate(f"The key {key} does not fit the certificate {cert}: use the key that it was made with.")
    if why.library == "SSL" and why.reason and not why.reason.endswith("_LIB"):
        words = why.reason.lower().replace("_", " ")
        return BadCertificate(
            f"OpenSSL refuses the certificate {cert} with the key {key} ({words}): make new ones, for example with an "
            "RSA key of 2048 bits."
        )
    return BadCertificate(
        f"{cert} and {key} are not a certificate and a key in PEM form: check --tls-cert and --tls-key."
    )


def _check_readable(path: Path | None, option: str) -> None:
    try:
        if path:
            path.open("rb").close()
    except OSError as why:
        raise BadCertificate(f"{path} cannot be read ({why.strerror}): check {option}.") from None


def _refuse_encrypted(key: Path) -> NoReturn:
    raise BadCertificate(f"The key {key} is encrypted: decrypt it, for example with `openssl pkey -in {key}`.")


def _handshake(server: ssl.SSLContext, ca: str | None, host: str) -> None:
    """Let a client meet the server in memory; raises what the client raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asks = ssl.create_default_context(cadata=ca).wrap_bio(to_client, to_server, server_hostname=host)
    answers = server.wrap_bio(to_server, to_client, server_side=True)
    while True:
        try:
            asks.do_handshake()
            return
        except ssl.SSLWantReadError:
            pass
        with suppress(ssl.SSLWantReadError):
            answers.do_handshake()


def _unaccepted(files: TlsFiles, host: str, why: ssl.SSLCertVerificationError) -> BadCertificate:
    """Why clients would not accept the certificate, and what to do."""
    cert, code = files.cert, why.verify_code
    if code == _EXPIRED:
        return BadCertificate(f"The certificate {cert}, or that of its CA, has expired: renew it.")
    if code == _NOT_YET:
        return BadCertificate(f"The certificate {cert} is not valid yet: check this machine's clock.")
    if code in _OTHER_NAMES:
        return BadCertificate(
            f"The certificate {cert} is not for {host}: call the service by a name of the certificate, with "
            "--url https://NAME:PORT."
        )
    if code in _UNKNOWN_ISSUER:
        nobody = f"No CA in {files.ca}" if files.ca else "No CA that this machine trusts"
        return BadCertificate(
            f"{nobody} has issued the certificate {cert}: name the file of its CA with --tls-ca, and put "
            "intermediate certificates into the certificate's file."
        )
    return BadCertificate(f"Clients would not accept the certificate {cert}: {why.verify_message}.")


def _file_version(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ino, found.st_size
