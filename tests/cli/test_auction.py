"""`horae auction`: the contract, and what it says to bids that make no sense."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Horae

#: Two machines of four: A is half as fast across machines, B is not.
MACHINES = {"m0": 4, "m1": 4}
AUCTION: dict[str, Any] = {
    "machines": MACHINES,
    "bids": [
        {
            "app": "A",
            "gang": 1,
            "rho": 9.0,
            "table": [
                {"gpus": {"m0": 4}, "rho": 0.25},
                {"gpus": {"m1": 4}, "rho": 0.25},
                {"gpus": {"m0": 4, "m1": 4}, "rho": 0.25},
            ],
        },
        {
            "app": "B",
            "table": [
                {"gpus": {"m0": 4}, "rho": 0.25},
                {"gpus": {"m1": 4}, "rho": 0.25},
                {"gpus": {"m0": 4, "m1": 4}, "rho": 0.125},
            ],
        },
    ],
    "others": [{"app": "C", "gang": 1}],
    "seed": 0,
}
ROW = {"gpus": {"m0": 1}, "rho": 1.0}


def write(folder: Path, auction: object) -> str:
    path = folder / "bids.json"
    path.write_text(auction if isinstance(auction, str) else json.dumps(auction))
    return str(path)


def test_the_answer_has_the_agreed_shape(horae: Horae, tmp_path: Path) -> None:
    answer = horae("auction", "--bids", write(tmp_path, AUCTION), "-o", "json")
    assert answer.json == {
        "apps": {
            "A": {"proportional": {"m0": 4}, "fraction": 0.5, "kept": {"m0": 2}},
            "B": {"proportional": {"m1": 4}, "fraction": 1.0, "kept": {"m1": 4}},
        },
        "leftover": {"C": {"m0": 2}},
        "gap": 0.0,
    }


def test_gang_rho_others_and_seed_need_not_be_said(horae: Horae, tmp_path: Path) -> None:
    least = {"machines": {"m0": 2}, "bids": [{"app": "A", "table": [{"gpus": {"m0": 2}, "rho": 1}]}]}
    record = horae("auction", "--bids", write(tmp_path, least), "-o", "json").json
    assert record["apps"]["A"] == {"proportional": {"m0": 2}, "fraction": 1.0, "kept": {"m0": 2}}


def test_without_a_rho_of_nothing_who_displaces_a_loser_pays_with_everything(horae: Horae, tmp_path: Path) -> None:
    row = {"gpus": {"m0": 2}, "rho": 1}
    two = {"machines": {"m0": 2}, "bids": [{"app": app, "gang": 2, "table": [row]} for app in "AB"]}
    record = horae("auction", "--bids", write(tmp_path, two), "-o", "json").json
    assert record["apps"]["A"]["fraction"] == pytest.approx(1e-9)
    assert record["apps"]["A"]["kept"] == {}
    assert record["apps"]["B"]["proportional"] == {}
    assert sum(map(len, record["leftover"].values())) == 1


def test_nobody_bids_and_everything_is_left_over(horae: Horae, tmp_path: Path) -> None:
    record = horae("auction", "--bids", write(tmp_path, {**AUCTION, "bids": []}), "-o", "json").json
    assert record == {"apps": {}, "leftover": {"C": {"m0": 4, "m1": 4}}, "gap": 0.0}
    nothing = horae("auction", "--bids", write(tmp_path, {"machines": {"m0": 1}, "bids": []}))
    assert nothing.code == 0


def test_the_explanation_is_in_every_form(horae: Horae, tmp_path: Path) -> None:
    path = write(tmp_path, AUCTION)
    record = horae("auction", "--bids", path, "--explain", "-o", "json").json
    assert set(record["explanation"]) == {"A", "B", "C"}
    assert "B would have won" in record["explanation"]["A"]
    assert "explanation" in horae("auction", "--bids", path, "--explain", "-o", "csv").out.splitlines()[0]
    words = horae("auction", "--bids", path, "--explain").out
    assert "No allocation has a larger product" in words
    assert "keeps 2 GPUs on m0" in " ".join(words.split())


def test_a_loser_is_told_when_it_was_its_own_doing(horae: Horae, tmp_path: Path) -> None:
    alone = {"machines": {"m0": 2}, "bids": [{"app": "A", "rho": 9, "table": [{"gpus": {"m0": 1}, "rho": 20}]}]}
    record = horae("auction", "--bids", write(tmp_path, alone), "--explain", "-o", "json").json
    assert record["apps"]["A"]["proportional"] == {}
    assert "no row of its table is better than nothing, which it says has a rho of 9" in record["explanation"]["A"]
    assert "other apps" not in record["explanation"]["A"]


def test_a_whole_number_may_have_a_point(horae: Horae, tmp_path: Path) -> None:
    said = {"machines": {"m0": 4.0}, "bids": [{"app": "A", "gang": 2.0, "table": [{"gpus": {"m0": 2.0}, "rho": 1}]}]}
    record = horae("auction", "--bids", write(tmp_path, said), "-o", "json").json
    assert record["apps"]["A"]["kept"] == {"m0": 2}


def test_leftovers_may_lie_where_a_bidder_did_not_bid(horae: Horae, tmp_path: Path) -> None:
    said = {"machines": MACHINES, "bids": [{"app": "A", "gang": 2, "table": [{"gpus": {"m0": 4}, "rho": 1}]}]}
    record = horae("auction", "--bids", write(tmp_path, said), "-o", "json").json
    assert record["leftover"] == {"A": {"m1": 4}}


def test_people_and_spreadsheets_get_a_row_an_app(horae: Horae, tmp_path: Path) -> None:
    lines = horae("auction", "--bids", write(tmp_path, AUCTION), "-o", "csv").out.splitlines()
    assert lines[0] == "app,proportional,fraction,kept,leftover"
    assert lines[1:] == ["A,m0:4,0.5,m0:2,-", "B,m1:4,1.0,m1:4,-", "C,-,,-,m0:2"]


def with_bid(**said: object) -> dict[str, Any]:
    return {"machines": MACHINES, "bids": [{"app": "A", "table": [ROW], **said}]}


@pytest.mark.parametrize(
    ("auction", "words"),
    [
        ("{", "is not JSON"),
        ({}, "machines: it is missing"),
        ({**AUCTION, "machine": {}}, "machine: it is not known here"),
        ({"machines": {}, "bids": []}, "machines: it must have at least 1 item"),
        ({"machines": {"m0": -1}, "bids": []}, "machines.m0: it must be at least 0"),
        (with_bid(table=[{"gpus": {"m9": 1}, "rho": 1}]), "'m9', which is not offered"),
        (with_bid(table=[{"gpus": {"M0": 1}, "rho": 1}]), "Did you mean 'm0'?"),
        (with_bid(table=[{"gpus": {"m0": 5}, "rho": 1}]), "at most 4 are free"),
        (with_bid(table=[{"gpus": {"m0": 3}, "rho": 1}], gang=2), "no whole gangs of 2"),
        (with_bid(table=[{"gpus": {"m0": 0}, "rho": 1}]), "no GPUs in row 0"),
        (with_bid(table=[{"gpus": {"m0": 1}, "rho": 0}]), "greater than 0"),
        (with_bid(table=[{"gpus": {"m0": 1}, "rho": float("nan")}]), "finite number"),
        (with_bid(rho=-1), "greater than 0"),
        (with_bid(rho=float("inf")), "finite number"),
        (with_bid(gang=0), "gang: it must be at least 1"),
        (with_bid(gang=1.5), "gang: it must be a whole number"),
        ({**AUCTION, "bids": [*AUCTION["bids"], {"app": "A", "table": []}]}, "Two apps are called 'A'"),
        ({**AUCTION, "others": [{"app": "A"}]}, "Two apps are called 'A'"),
        ({**AUCTION, "seed": -1}, "seed: it must be at least 0"),
        ([], "it must be"),
        (with_bid(gang=True), "gang: it must be a whole number"),
        (with_bid(gang="2"), "gang: it must be a whole number"),
        (with_bid(rho="2"), "rho: it must be a number"),
        (with_bid(rho=True), "rho: it must be a number"),
        ({"machines": {"m0": True}, "bids": []}, "machines.m0: it must be a whole number"),
        ({"machines": {"m0": 10**12}, "bids": []}, "machines.m0: it must be at most 1000000"),
        (
            {"machines": {f"m{k}": 10**6 for k in range(3)}, "bids": []},
            "3,000,000 free GPUs together; at most 1,000,000",
        ),
        ('{"machines": {"m0": 4, "m0": 2}, "bids": []}', "says 'm0' twice"),
        ('{"machines": {"m0": 4}, "bids": [{"app": "A", "gang": 1, "gang": 2, "table": []}]}', "says 'gang' twice"),
        ("[" * 100_000, "nested too deeply"),
        ('{"machines": {"m0": 1' + "0" * 5000 + '}, "bids": []}', "too many digits"),
        (with_bid(table=[{"gpus": {"x": 1}, "rho": 1}]), "Offered: m0, m1."),
        ({**with_bid(), "machines": {f"n{k:02}": 1 for k in range(20)}}, "n06, n07 and 12 more."),
    ],
)
def test_a_bad_file_gets_one_clear_sentence(horae: Horae, tmp_path: Path, auction: object, words: str) -> None:
    answer = horae("auction", "--bids", write(tmp_path, auction))
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert answer.err.count("\n") == 1
    assert words in answer.err
    assert "pydantic" not in answer.err
    assert "_Auction" not in answer.err


def test_a_file_that_is_not_there_is_named(horae: Horae, tmp_path: Path) -> None:
    assert "cannot be read" in horae("auction", "--bids", str(tmp_path / "none.json")).err
