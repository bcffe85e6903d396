"""`horae policies`."""

import csv
import io

from horae.placement import PLACEMENTS
from horae.policies import POLICIES, describe
from tests.cli.conftest import Horae


def test_every_policy_and_placement_is_listed(horae: Horae) -> None:
    answer = horae("policies")
    assert answer.code == 0
    assert all(name in answer.out for name in [*POLICIES, *PLACEMENTS])


def test_the_list_states_each_objective_and_its_unit(horae: Horae) -> None:
    from rich.console import Console

    from horae.cli.policies import _overview

    console = Console(width=600, file=io.StringIO())
    console.print(*_overview([describe(name) for name in POLICIES], PLACEMENTS))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    for info in map(describe, POLICIES):
        line = next(line for line in lines if line.split()[:1] == [info.name])
        assert info.objective in line
        assert info.unit == "-" or f"({info.unit})" in line
    records = {record["name"]: record for record in horae("policies", "-o", "json").json["policies"]}
    assert all(
        (records[i.name]["objective"], records[i.name]["unit"]) == (i.objective, i.unit)
        for i in map(describe, POLICIES)
    )


def test_one_policy_is_described_in_full(horae: Horae) -> None:
    text = " ".join(horae("policies", "las").out.split())
    info = describe("las")
    assert all(part in text for part in (info.summary, info.objective, info.unit, info.paper))
    assert all(item.name in text and item.default in text for item in info.parameters)
    assert "quantum" in text


def test_json_holds_the_same(horae: Horae) -> None:
    everything = horae("policies", "-o", "json").json
    assert [record["name"] for record in everything["policies"]] == list(POLICIES)
    assert [record["name"] for record in everything["placements"]] == list(PLACEMENTS)
    one = horae("policies", "las", "-o", "json").json
    assert {"name": "quantum", "default": "600"}.items() <= one["parameters"][0].items()


def test_csv_is_one_line_a_policy(horae: Horae) -> None:
    rows = list(csv.DictReader(horae("policies", "-o", "csv").out.splitlines()))
    assert [row["name"] for row in rows] == list(POLICIES)
