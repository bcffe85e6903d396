"""Observed speeds of jobs, together and spread, from a file: what the pack limit is fitted to."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

from horae.core.cluster import Span
from horae.core.throughputs import Throughputs
from horae.workload.skew import BadSkew, SpeedObservation, known_skew
from horae.workload.speed_files import load_throughputs

#: Required columns of a CSV file; `skew`, `gpus` and `gpu_type` are optional.
COLUMNS = ("job_class", "spread", "steps_per_s")

_YES_OR_NO = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def load_observations(path: Path) -> list[SpeedObservation]:
    """Read a CSV file with one run on each line, or a table of throughputs (JSON)."""
    if path.suffix.lower() == ".json":
        return observations_of(load_throughputs(path))
    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines(), strict=True))
    except (OSError, UnicodeDecodeError):
        raise BadSkew(f"{path} is not a text file that can be read: name a CSV file, or a JSON table.") from None
    except csv.Error as error:
        raise BadSkew(f"{path} is not a CSV file ({error}): correct it.") from None
    missing = [name for name in COLUMNS if not lines or name not in lines[0]]
    if missing:
        raise BadSkew(f"{path} has no lines with a column {missing[0]!r}: give {', '.join(COLUMNS)} for each run.")
    return [_read(line, f"{path}, line {number}") for number, line in enumerate(lines, 2)]


def observations_of(table: Throughputs) -> list[SpeedObservation]:
    """The useful speeds of a throughput table: gangs alone on their GPUs, of models in the catalogue."""
    found = []
    for setting, throughput in table.settings():
        skew = known_skew(setting.job_class)
        if skew is not None and setting.gpus > 1 and not setting.neighbour and throughput.steps_per_s > 0:
            kind = f"{setting.job_class} on {setting.gpus} {setting.gpu_type}"
            found.append(SpeedObservation(kind, skew, setting.span >= Span.RACK, throughput.steps_per_s))
    return found


def _read(line: Mapping[str, str | None], where: str) -> SpeedObservation:
    job_class, spread = line["job_class"] or "", _YES_OR_NO.get((line["spread"] or "").lower())
    skew = _number(line, "skew", where) if line.get("skew") else known_skew(job_class)
    if skew is None:
        raise BadSkew(f"{where}: the catalogue does not know {job_class!r}; add a column 'skew' with its skew.")
    if spread is None:
        raise BadSkew(f"{where}: spread is {line['spread']!r}; write yes if the GPUs were on several nodes, or no.")
    # Only runs on the same number and type of GPUs, if the file has them, can be compared.
    gpus = [line[name] or "" for name in ("gpus", "gpu_type") if line.get(name)]
    observation = SpeedObservation(
        f"{job_class} on {' '.join(gpus)}" if gpus else job_class, skew, spread, _number(line, "steps_per_s", where)
    )
    if not (0 < observation.skew <= 1 and 0 < observation.steps_per_s < float("inf")):
        raise BadSkew(f"{where}: a skew is above 0 and up to 1, a speed finite and above 0; correct it.")
    return observation


def _number(line: Mapping[str, str | None], column: str, where: str) -> float:
    try:
        return float(line[column] or "")
    except ValueError:
        raise BadSkew(f"{where}: {column} is {line[column]!r}, which is no number; correct it.") from None
