"""Output files: checked first, whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from horae.cli.output_files import CannotWrite, check_outputs, written_whole


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_appears_only_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    with written_whole(target) as path:
        path.write_text("half")
        assert not target.exists()
        path.write_text("whole")
    assert target.read_text() == "whole"
    assert names_in(tmp_path) == ["out.csv"]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    target.write_text("old")
    with suppress(ZeroDivisionError), written_whole(target) as path:
        path.write_text("half")
        raise ZeroDivisionError
    assert target.read_text() == "old"
    assert names_in(tmp_path) == ["out.csv"]


def test_the_temporary_file_ends_like_the_real_one(tmp_path: Path) -> None:
    with written_whole(tmp_path / "trace.parquet") as path:
        assert path.suffix == ".parquet"
        assert path.parent == tmp_path


def test_a_link_keeps_pointing_where_it_pointed(tmp_path: Path) -> None:
    (tmp_path / "real.csv").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    with written_whole(tmp_path / "link.csv") as path:
        path.write_text("new")
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_text() == "new"


def test_the_umask_decides_who_may_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with written_whole(tmp_path / "out.csv") as path:
            path.write_text("")
    finally:
        os.umask(before)
    assert (tmp_path / "out.csv").stat().st_mode & 0o777 == 0o640


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotWrite, match="there is no folder"):
        check_outputs([tmp_path / "missing" / "out.csv"])


@pytest.mark.parametrize("path", [Path("/dev/null"), Path("/")])
def test_what_is_not_a_regular_file_is_refused(path: Path) -> None:
    with pytest.raises(CannotWrite, match="not a regular file"):
        check_outputs([path])


def test_a_folder_that_takes_no_files_is_found_by_trying() -> None:
    with pytest.raises(CannotWrite, match=r"Cannot write /proc/out\.csv"):
        check_outputs([Path("/proc/out.csv")])


def test_checking_leaves_nothing_behind(tmp_path: Path) -> None:
    check_outputs([tmp_path / "a.csv", None, tmp_path / "b.html"])
    assert names_in(tmp_path) == []


def test_no_output_may_take_the_place_of_another_file_of_the_run(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    with pytest.raises(CannotWrite, match="named twice"):
        check_outputs([tmp_path / "x" / ".." / "trace.csv"], inputs=[trace])
    with pytest.raises(CannotWrite, match="named twice"):
        check_outputs([tmp_path / "a", tmp_path / "a"])
