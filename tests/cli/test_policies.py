"""`horae policies`."""

import csv

from horae.placement import PLACEMENTS
from horae.policies import POLICIES

from .conftest import Horae


def test_every_policy_and_placement_is_listed(horae: Horae) -> None:
    answer = horae("policies")
    assert answer.code == 0
    assert all(name in answer.out for name in [*POLICIES, *PLACEMENTS])


def test_one_policy_is_described_in_full(horae: Horae) -> None:
    text = " ".join(horae("policies", "las").out.split())
    info = POLICIES["las"]
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
