"""`horae skew`."""

import csv
from pathlib import Path

import pytest

from tests.cli.conftest import Horae

SEEN = """\
job_class,gpus,spread,steps_per_s
VGG-16,4,no,10
VGG-16,4,yes,4
VGG-16,8,yes,100
ResNet-50,4,no,8
ResNet-50,4,yes,7.9
BERT-base,4,yes,5
BERT-base,4,no,7
"""


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    path = tmp_path / "seen.csv"
    path.write_text(SEEN)
    return path


def test_the_limit_lies_between_those_that_suffer_and_those_that_do_not(horae: Horae, seen: Path) -> None:
    answer = horae("skew", seen, "-o", "json").json
    assert answer["limit"] == pytest.approx((0.0923 + 0.2136) / 2, abs=1e-3)
    assert {one["kind"]: one["suffers"] for one in answer["kinds"]} == {
        "ResNet-50 on 4": False,
        "BERT-base on 4": True,
        "VGG-16 on 4": True,
    }
    assert "use --placement tiresias:0.153" in horae("skew", seen).out


def test_what_it_says_is_a_placement(horae: Horae, seen: Path, trace: Path) -> None:
    placement = horae("skew", seen).out.split("--placement ")[1].split()[0].rstrip(".")
    words = ("simulate", "--trace", trace, "--cluster", "2x2", "--policy", "tiresias", "--placement", placement)
    assert horae(*words).code == 0


def test_a_larger_tolerance_forgives_more(horae: Horae, seen: Path) -> None:
    assert horae("skew", seen, "--tolerance", "0.4", "-o", "json").json["limit"] == 0.3


def test_csv_is_one_line_a_kind(horae: Horae, seen: Path) -> None:
    rows = list(csv.DictReader(horae("skew", seen, "-o", "csv").out.splitlines()))
    assert [row["kind"] for row in rows] == ["ResNet-50 on 4", "BERT-base on 4", "VGG-16 on 4"]


def test_own_models_tell_their_skew(horae: Horae, tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text("job_class,skew,spread,steps_per_s\na,.4,no,5\na,.4,yes,5\nb,.6,0,5\nb,.6,1,1\n")
    assert horae("skew", path, "-o", "json").json["limit"] == 0.5


def test_nothing_to_tell_apart_is_said(horae: Horae, tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    path.write_text("job_class,spread,steps_per_s\nVGG-16,no,5\nResNet-50,yes,5\n")
    answer = horae("skew", path)
    assert "no kind of job was seen both ways" in answer.out
    assert "tiresias:0.3" in answer.out


def test_a_table_of_throughputs_will_do(horae: Horae, shared_data: Path) -> None:
    answer = horae("skew", shared_data / "gavel" / "simulation_throughputs.json", "-o", "json").json
    assert answer["limit"] == pytest.approx(0.147, abs=0.01)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "'job_class'"),
        ("job_class,spread\na,no\n", "'steps_per_s'"),
        ("job_class,spread,steps_per_s\nmine,no,1\n", "line 2: the catalogue does not know 'mine'"),
        ("job_class,spread,steps_per_s\nVGG-16,maybe,1\n", "spread is 'maybe'"),
        ("job_class,spread,steps_per_s\nVGG-16,no,fast\n", "steps_per_s is 'fast'"),
        ("job_class,spread,steps_per_s\nVGG-16,no,0\n", "line 2: a skew is above 0"),
        ("job_class,skew,spread,steps_per_s\na,2,no,1\n", "line 2: a skew is above 0"),
        ("job_class,skew,spread,steps_per_s\na,.2,no,\n", "steps_per_s is ''"),
    ],
)
def test_files_that_cannot_be_used_are_refused(horae: Horae, tmp_path: Path, text: str, wanted: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    answer = horae("skew", path)
    assert answer.code == 1
    assert wanted in answer.err


def test_a_file_that_is_not_there_and_a_tolerance_that_is_none(horae: Horae, seen: Path, tmp_path: Path) -> None:
    assert "name a CSV file" in horae("skew", tmp_path / "none.csv").err
    assert "no share of a speed" in horae("skew", seen, "--tolerance", "1").err


def test_the_limit_is_told_in_digits_that_tell_the_kinds_apart(horae: Horae, tmp_path: Path) -> None:
    path = tmp_path / "near.csv"
    rows = "mine,0.50012,{},{}\n", "other,0.50016,{},{}\n"
    path.write_text(
        "job_class,skew,spread,steps_per_s\n"
        + "".join(
            row.format(spread, speed)
            for row, far in zip(rows, (10, 5), strict=True)
            for spread, speed in (("no", 10), ("yes", far))
        )
    )
    assert "tiresias:0.50014." in horae("skew", path).out


def test_a_quote_that_never_ends_is_refused(horae: Horae, tmp_path: Path) -> None:
    path = tmp_path / "quote.csv"
    path.write_text('job_class,spread,steps_per_s\n"vgg16,yes,1\n')
    answer = horae("skew", path)
    assert answer.code == 1
    assert "is not a CSV file" in answer.err
