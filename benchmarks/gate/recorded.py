"""The file of recorded ratios."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.machine import cpu_name

PATH = Path(__file__).with_name("ratios.json")


@dataclass(frozen=True)
class Recorded:
    """Ratios by workload, and the machine that they were measured on."""

    cpu: str = ""
    python: str = ""
    ratios: Mapping[str, float] = field(default_factory=dict)


def load(path: Path = PATH) -> Recorded:
    """The recorded ratios; none where nothing has been recorded."""
    return Recorded(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Recorded()


def save(ratios: Mapping[str, float], path: Path = PATH) -> Recorded:
    """Write ratios over the recorded ones of the same name; the others stay."""
    kept = {**load(path).ratios, **{name: round(ratio, 4) for name, ratio in ratios.items()}}
    new = Recorded(cpu_name(), platform.python_version(), kept)
    path.write_text(json.dumps(asdict(new), indent=2) + "\n", encoding="utf-8")
    return new
