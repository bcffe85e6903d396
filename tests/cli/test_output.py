"""What the commands print."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from horae.cli.output import note_unfinished, print_csv, print_json, print_rich, table
from tests.cli.conftest import Horae

Captured = pytest.CaptureFixture[str]


def test_csv_has_one_line_a_record_with_nested_columns(capsys: Captured) -> None:
    print_csv([{"policy": "a", "rho": {"max": 1.5}}, {"policy": "b", "rho": {"max": None}}])
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert lines == [{"policy": "a", "rho.max": "1.5"}, {"policy": "b", "rho.max": ""}]


def test_names_with_brackets_and_colons_are_shown_as_they_are(capsys: Captured) -> None:
    names = ("x[/red]", "[bold]z", ":smile:")
    print_rich(table(names, [names], title="[i]t"), "[/blue]")
    shown = capsys.readouterr().out
    assert [shown.count(name) for name in names] == [2, 2, 2]
    assert "[i]t" in shown
    assert "[/blue]" in shown


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")  # noqa: PTH110
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_a_full_disk_is_no_bug(form: str) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        words = [sys.executable, "-m", "horae.cli.main", "policies", "-o", form]
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Cannot write to stdout: No space left")
    assert done.stderr.count("\n") == 1


def test_unfinished_jobs_are_counted_over_all_runs(capsys: Captured) -> None:
    note_unfinished("las", [{}, {}])
    assert capsys.readouterr().err == ""
    note_unfinished("las", [{"a": "no room"}, {"b": "no GPUs"}])
    assert capsys.readouterr().err == "las: 2 jobs did not finish, such as a: no room\n"


@pytest.fixture
def gavel(shared_data: Path) -> tuple[str, ...]:
    """Jobs of Gavel's mix, which are not equally fast on V100 and K80."""
    speeds = shared_data / "gavel" / "simulation_throughputs.json"
    return ("--generate", "gavel-single", "--jobs", "5", "--throughputs", str(speeds))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("simulate", "--policy", "srsf"), "srsf treats"),
        (("audit", "--policy", "srsf", "--samples", "1"), "srsf treats"),
        (("simulate", "--policy", "max-min", "--set", "aware=false"), "max-min treats"),
        (("compare", "--policies", "srsf,max-min,las", "--seeds", "2"), "srsf and las treat"),
        (("sweep", "--vary", "load=0.5,1", "--policies", "srsf,max-min", "--seeds", "2"), "srsf treats"),
    ],
)
def test_policies_that_ignore_speeds_are_told_once_on_stderr(
    horae: Horae, gavel: tuple[str, ...], words: tuple[str, ...], told: str
) -> None:
    ran = horae(*words, *gavel, "--cluster", "v100:1x2,k80:1x2", "-o", "json")
    assert ran.code == 0, ran.err
    assert ran.json
    (sentence,) = [line for line in ran.err.splitlines() if "GPU types as alike" in line]
    assert sentence.startswith(f"{told} GPU types as alike, and jobs are not equally fast on them (")
    assert " times as fast on " in sentence
    assert ("such as sjf-aware" in sentence) != ("leave aware=false out" in sentence)


@pytest.mark.parametrize(("machines", "policy"), [("v100:1x2,k80:1x2", "sjf-aware"), ("v100:2x2", "srsf")])
def test_nothing_is_told_where_no_speed_is_ignored(
    horae: Horae, gavel: tuple[str, ...], machines: str, policy: str
) -> None:
    ran = horae("simulate", *gavel, "--cluster", machines, "--policy", policy)
    assert (ran.code, ran.err) == (0, "")


def test_control_characters_in_records_cannot_control_a_terminal(capsys: Captured) -> None:
    record = {"name": "a\x1b[2J\x9b\r", "lines": "one\ntwo\tthree"}
    print_csv([record])
    (line,) = csv.DictReader(io.StringIO(capsys.readouterr().out))
    assert line == {"name": "a\\x1b[2J\\x9b\\x0d", "lines": "one\ntwo\tthree"}
    print_json(record)
    printed = capsys.readouterr().out
    assert "\x9b" not in printed
    assert "\x1b" not in printed
    assert json.loads(printed) == record
