"""Horae: a scheduler for shared GPU clusters that train models."""

from __future__ import annotations

import os

__version__ = "0.1.0"


def prepare_compilation() -> None:
    """Tell numba where to keep machine code and how hard to try; to be called before it is imported.

    Only those that compile call this: a training script that imports `horae.train` is left as it is.
    """
    _keep_compiled_code_apart()
    _compile_quickly()


def _keep_compiled_code_apart() -> None:
    """Keep compiled code in a folder named after the sources it was made from.

    numba keeps machine code on disk and looks only at the file of the function itself, not
    at those it calls, to see whether it is still true. After an upgrade in place some of it
    would be old.
    """
    # Imported here, so that a training script does not pay for them.
    import hashlib
    from pathlib import Path

    here = Path(__file__).parent
    sources = sorted(path for part in ("core", "placement", "solve") for path in (here / part).rglob("*.py"))
    seen = [(path.name, stat.st_size, stat.st_mtime_ns) for path in sources for stat in [path.stat()]]
    version = hashlib.sha1(repr(seen).encode(), usedforsecurity=False).hexdigest()[:16]
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    base = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "horae"
    # Worker processes inherit the setting, and must not nest it.
    if base.name != version:
        os.environ["NUMBA_CACHE_DIR"] = str(base / version)


def _compile_quickly() -> None:
    """Ask for less optimisation: the loops here are no faster with more, and take a quarter longer to compile."""
    for name, value in {"NUMBA_OPT": "1", "NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "0"}.items():
        os.environ.setdefault(name, value)
