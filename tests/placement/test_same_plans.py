"""Plans of random wishes are, number by number, those that were recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from zlib import crc32

import pytest

from horae.core.plan import Plan
from tests.placement.random_wishes import RandomWalks

RECORDED = Path(__file__).parent.parent / "golden" / "placement_plans.json"
SEEDS, STEPS = 60, 70


def digest(plan: Plan) -> int:
    """A number for all that a plan says, compiled or not; reasons may come in any order."""
    reasons = sorted(zip(plan.reason_rows.tolist(), plan.reason_codes.tolist(), strict=True))
    placed = [(int(one.row), tuple(map(int, one.gpu_ids)), int(one.span), bool(one.ready)) for one in plan.placed]
    stopped, renewed = [(int(row), int(by)) for row, by in plan.stopped], [int(row) for row in plan.renewed]
    said = (stopped, placed, renewed, reasons, int(plan.head), float(plan.unprotected_s))
    return crc32(repr(said).encode())


def digests(seed: int) -> list[int]:
    return [digest(plan) for plan in RandomWalks(seed).run(STEPS)]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_plans_of_a_seed_are_those_that_were_recorded(seed: int) -> None:
    if os.environ.get("HORAE_RECORD"):
        recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
        recorded[str(seed)] = digests(seed)
        RECORDED.write_text("{\n" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in recorded.items()) + "\n}\n")
    expected, got = json.loads(RECORDED.read_text())[str(seed)], digests(seed)
    differing = [number for number, pair in enumerate(zip(expected, got, strict=False)) if pair[0] != pair[1]]
    assert not differing, f"decision {differing[0]} of seed {seed} is another plan"
    assert len(got) == len(expected), f"{len(got)} decisions, not {len(expected)}"
