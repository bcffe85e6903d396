"""Strategy-proofness: no app gets more by a lie than by the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from horae.core.audit_observations import Observations, Probe
from horae.core.counted import counted
from horae.core.history import History
from horae.report.audit.verdict import Verdict, held
from horae.report.formatting import number
from horae.report.metrics.fairness import alone_until

#: Smaller differences of speed are rounding.
_TOLERANCE = 1e-9


def judge_probes(history: History, observed: Observations) -> Verdict:
    """Whether a lie paid in any probe. What the app would have got is valued by its true speeds."""
    probes = observed.probes
    paid = [probe for probe in probes if gain(probe) > _TOLERANCE]
    numbers: dict[str, Any] = {
        "decisions": len({probe.at_s for probe in probes}),
        "probes": len(probes),
        "no_gain": len(probes) - len(paid),
        "gained": len(paid),
        "gained_more_than_one_gang": sum(gain(probe) > probe.gang * (1 + _TOLERANCE) for probe in paid),
        "by_lie": {lie: _lie_record(history, [p for p in probes if p.lie == lie]) for lie in _lies(probes)},
    }
    best = max(paid, key=gain, default=None)
    if best is not None:
        numbers["largest"] = _record(history, best)
    return Verdict(
        "strategy_proof",
        "no lie of an app brings it more than the truth",
        held(len(probes), len(paid)),
        _summary(numbers, best),
        numbers,
        _sentence(numbers["largest"]) if best else "",
    )


def gain(probe: Probe) -> float:
    """The speed that a lie added, in GPUs of the app's best type."""
    return probe.lying.speed - probe.honest.speed


def _lies(probes: Sequence[Probe]) -> list[str]:
    return list(dict.fromkeys(probe.lie for probe in probes))


def _lie_record(history: History, probes: list[Probe]) -> dict[str, Any]:
    """How often one lie was tried and paid, and the probe in which it paid most."""
    best = max(probes, key=gain)
    record = {"probes": len(probes), "gained": sum(gain(probe) > _TOLERANCE for probe in probes)}
    record["lost"] = sum(gain(probe) < -_TOLERANCE for probe in probes)
    return {**record, "largest": _record(history, best) if gain(best) > _TOLERANCE else None}


def _record(history: History, probe: Probe) -> dict[str, Any]:
    alone_s = alone_until(history, probe.app, probe.at_s)
    return {
        "at_s": probe.at_s,
        "app": probe.app,
        "lie": probe.lie,
        "speed_honest": probe.honest.speed,
        "speed_lying": probe.lying.speed,
        "gpus_honest": probe.honest.gpus,
        "gpus_lying": probe.lying.gpus,
        "rho_honest": probe.honest.finish_s / alone_s,
        "rho_lying": probe.lying.finish_s / alone_s,
    }


def gpus(speed: float) -> str:
    """A speed as text: the number of GPUs of the app's best type."""
    return f"{number(speed)} GPU{'' if speed == 1 else 's'}"


def _summary(numbers: dict[str, Any], best: Probe | None) -> str:
    tried = f"{counted(numbers['probes'], 'lie')} at {counted(numbers['decisions'], 'decision')}"
    if not numbers["probes"]:
        return "nothing to judge: no lie could be tried"
    if best is None:
        return f"no gain found, {tried}"
    return f"{numbers['gained']:,} of {tried} paid, one by the speed of {gpus(gain(best))}"


def _sentence(record: dict[str, Any]) -> str:
    rho = [number(record[key]) if np.isfinite(record[key]) else "?" for key in ("rho_honest", "rho_lying")]
    honest, lying = record["speed_honest"], record["speed_lying"]
    return (
        f"At {record['at_s']:,.0f} s app {record['app']} would have had the speed of {gpus(lying)} instead of "
        f"{number(honest)} (rho {rho[1]} instead of {rho[0]}) if it had claimed: {record['lie']}."
    )
