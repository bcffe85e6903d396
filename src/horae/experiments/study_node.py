"""One run of a batch on a node of a cluster, and how its outcome travels.

Outcomes come back as pickles. Whoever reads them only makes objects of Horae's own classes and arrays of numpy, so
that a cluster which answers something else cannot run programs here.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import horae
from horae.core.errors import UserError
from horae.experiments.parallel import Batch, Outcome, perform, unpacked

#: What numpy's own pickles call, by name; and harmless types.
_NUMPY = {"_reconstruct", "ndarray", "dtype", "scalar", "_frombuffer"}
_HARMLESS = {
    ("builtins", "set"),
    ("builtins", "frozenset"),
    ("builtins", "slice"),
    ("builtins", "range"),
    ("builtins", "complex"),
    ("builtins", "bytearray"),
    ("collections", "OrderedDict"),
    ("collections", "deque"),
    ("_codecs", "encode"),
}


@cache
def fingerprint() -> str:
    """Identifies this Horae and the version of Python: equal on two machines only if their results are comparable."""
    here = Path(horae.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(here.rglob("*.py")):
        digest.update(str(path.relative_to(here)).encode() + b"\0" + path.read_bytes() + b"\0")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return f"Horae {horae.__version__} ({digest.hexdigest()[:12]}) on Python {python}"


@cache
def _batch(path: str) -> Batch:
    return unpacked(Path(path).read_bytes())


def perform_packed(path: str, number: int) -> bytes:
    """Perform one run of the batch in a file, and return its packed outcome."""
    horae.prepare_compilation()
    return pack_outcome(perform(_batch(path), number, lambda share: None))


def pack_outcome(outcome: Outcome) -> bytes:
    """An outcome for the way back."""
    return zlib.compress(pickle.dumps(outcome))


def unpack_outcome(content: bytes) -> Outcome:
    """The outcome that `pack_outcome` made; raises a `UserError` for anything else."""
    try:
        outcome = _OutcomeUnpickler(io.BytesIO(zlib.decompress(content))).load()
    except (pickle.UnpicklingError, zlib.error, EOFError, ValueError, TypeError, AttributeError, ImportError) as why:
        raise UserError(f"The cluster sent a result that cannot be read: {why}.") from None
    if not isinstance(outcome, Outcome):
        raise UserError("The cluster sent a result that is none.")
    return outcome


class _OutcomeUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """A class of Horae, or what numpy needs; nothing else."""
        package = module.partition(".")[0]
        if (module, name) in _HARMLESS or (package == "numpy" and name in _NUMPY):
            return super().find_class(module, name)
        if package == "horae" and isinstance(found := super().find_class(module, name), type):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")
