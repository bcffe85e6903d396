"""What the commands print."""

import csv
import io
import os
import subprocess
import sys

import pytest

from horae.cli.output import note_unfinished, print_csv, print_rich, table

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
