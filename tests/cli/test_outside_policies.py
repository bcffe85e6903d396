"""`--policy ./mine.py:MyPolicy` on every command that takes policies."""

from __future__ import annotations

from pathlib import Path

import pytest

from horae.cli.compare import split_policies
from tests.cli.conftest import Horae

MINE = '''
"""A policy of one's own."""
from dataclasses import dataclass

import horae


@dataclass(frozen=True)
class Largest:
    """Large gangs first."""

    factor: float = 1.0

    def plan(self, now, memory):
        return horae.Wishes(now.rows, -self.factor * now.gpus)


class Broken:
    def plan(self, now, memory):
        return len(now) / 0


class NoPlan:
    pass


class Pinning:
    def plan(self, now, memory):
        return horae.Wishes(now.rows, pins=tuple({0: int(gpus)} for gpus in now.gpus), lease_until_s=now.now_s + 60)
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return "./mine.py:Largest"


def test_simulate_and_audit(horae: Horae, trace: Path, mine: str) -> None:
    words = ("--trace", trace, "--cluster", "1x4", "--policy", mine, "--set", "factor=2", "-o", "json")
    ran = horae("simulate", *words)
    assert ran.code == 0, ran.err
    assert (ran.json["policy"], ran.json["settings"]["factor"], ran.json["finished"]) == (mine, "2", 5)
    audited = horae("audit", *words)
    assert (audited.code, audited.json["policy"]) == (0, mine)


def test_compare_in_processes_of_their_own(horae: Horae, trace: Path, mine: str) -> None:
    listed = f"fifo,{mine},{mine}:factor=-1,cost:prices=gpu:3,las"
    ran = horae("compare", "--trace", trace, "--cluster", "1x4", "--policies", listed, "--workers", "2", "-o", "json")
    assert ran.code == 0, ran.err
    assert [one["policy"] for one in ran.json["policies"]] == ["fifo", mine, mine, "cost", "las"]
    assert ran.json["policies"][1]["avg_jct_s"] != ran.json["policies"][2]["avg_jct_s"]


def test_sweep_over_its_own_setting(horae: Horae, mine: str) -> None:
    words = ("--generate", "plain", "--jobs", "5", "--cluster", "1x8", "--policies", f"{mine},fifo", "--workers", "1")
    ran = horae("sweep", "--vary", "factor=-1,1", *words, "-o", "json")
    assert ran.code == 0, ran.err
    assert [(one["label"], one["value"]) for one in ran.json["points"]] == [(mine, -1), (mine, 1), ("fifo", None)]


def test_policies_describes_it(horae: Horae, mine: str) -> None:
    told = horae("policies", mine, "-o", "json").json
    assert (told["name"], told["summary"], told["parameters"][0]["name"]) == (mine, "Large gangs first.", "factor")


@pytest.mark.parametrize(
    ("policy", "told"),
    [
        (
            "./mine.py:Broken",
            "error: Policy './mine.py:Broken' failed: ZeroDivisionError: division by zero (line 20 of",
        ),
        (
            "./mine.py:Pinning",
            "error: Policy './mine.py:Pinning' returned wishes that pin jobs '2' and '0' and '1' to more GPUs of",
        ),
        ("./mine.py:NoPlan", "error: The class ./mine.py:NoPlan is no policy: it has no method plan"),
        ("./mine.py:Lagest", "error: ./mine.py has no 'Lagest'. Did you mean 'Largest'?"),
        ("./away.py:Largest", "error: There is no file away.py"),
        ("no.such.module:Largest", "error: No module is called 'no.such.module'"),
        ("./mine.py:horae", "error: ./mine.py:horae is no class"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_a_broken_file_is_one_sentence(
    horae: Horae, trace: Path, mine: str, command: str, policy: str, told: str
) -> None:
    ran = horae(command, "--trace", trace, "--cluster", "1x4", "--policy", policy)
    assert ran.code == 1
    assert ran.err.startswith(told), ran.err
    assert ran.err.count("\n") == 1


def test_places_stand_in_lists_without_ambiguity() -> None:
    assert split_policies("las:quantum=5,./a.py:B:x=1,y=2,pkg.mod:C,cost:prices=v100:3,k80:1,d.py:E") == [
        ("las", ["quantum=5"]),
        ("./a.py:B", ["x=1", "y=2"]),
        ("pkg.mod:C", []),
        ("cost", ["prices=v100:3,k80:1"]),
        ("d.py:E", []),
    ]
