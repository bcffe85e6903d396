"""The proof by which a service that a test plays shows that it knows a token."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import sha256
from urllib.parse import parse_qs, urlsplit


def proof(tokens: Iterable[str], target: str) -> str | None:
    """The answer to a request for /v1/proof; None if the token in question is none of these."""
    query = parse_qs(urlsplit(target).query)
    for digest in (sha256(token.encode()).hexdigest() for token in tokens):
        if digest.startswith(query["key"][0]):
            return hmac.digest(digest.encode(), f"horae proof\n{query['nonce'][0]}".encode(), "sha256").hex()
    return None
