"""One shared folder, one service."""

from pathlib import Path

import pytest

from horae.backends.folder_owner import OWNER, FolderTaken, claim_folder


def test_the_owner_comes_back_and_others_are_refused_with_what_to_do(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    claim_folder(shared, tmp_path / "a")
    claim_folder(shared, tmp_path / "a")
    with pytest.raises(FolderTaken, match=rf"state folder {tmp_path}/a on .*delete {shared}/{OWNER}"):
        claim_folder(shared, tmp_path / "b")
    (shared / OWNER).unlink()
    claim_folder(shared, tmp_path / "b")


def test_an_owner_that_cannot_be_read_is_somebody(tmp_path: Path) -> None:
    (tmp_path / OWNER).write_text("?")
    with pytest.raises(FolderTaken, match="that cannot be named"):
        claim_folder(tmp_path, tmp_path / "a")
