"""One shared folder, one service."""

from pathlib import Path

import pytest

from horae.backends.folder_owner import OWNER, USED_FOLDERS, FolderAway, FolderTaken, own_folder


def test_the_owner_comes_back_and_others_are_refused_with_what_to_do(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    own_folder(shared, tmp_path / "a")
    own_folder(shared, tmp_path / "a")
    with pytest.raises(FolderTaken, match=rf"state folder {tmp_path}/a on .*delete {shared}/{OWNER}"):
        own_folder(shared, tmp_path / "b")
    (shared / OWNER).unlink()
    own_folder(shared, tmp_path / "b")


def test_an_owner_that_cannot_be_read_is_somebody(tmp_path: Path) -> None:
    (tmp_path / OWNER).write_text("?")
    with pytest.raises(FolderTaken, match="that cannot be named"):
        own_folder(tmp_path, tmp_path / "a")


def test_an_empty_mount_point_is_not_taken_for_a_new_shared_folder(tmp_path: Path) -> None:
    shared, state = tmp_path / "shared", tmp_path / "state"
    service = own_folder(shared, state)
    assert own_folder(shared, state) == service
    shared.rename(tmp_path / "mounted")
    shared.mkdir()
    with pytest.raises(FolderAway, match=f"is its file system mounted.*delete {state}/{USED_FOLDERS}"):
        own_folder(shared, state)
    assert list(shared.iterdir()) == []
    shared.rmdir()
    (tmp_path / "mounted").rename(shared)
    assert own_folder(shared, state) == service


def test_a_service_may_get_another_shared_folder(tmp_path: Path) -> None:
    first, state = own_folder(tmp_path / "a", tmp_path / "state"), tmp_path / "state"
    assert own_folder(tmp_path / "b", state) != first
    assert own_folder(tmp_path / "a", state) == first
    (state / USED_FOLDERS).unlink()
    assert own_folder(tmp_path / "a", state) == first
