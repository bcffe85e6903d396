"""One shared folder, one service."""

from pathlib import Path

import pytest

from horae.backends.folder_owner import OWNER, USED_FOLDERS, FolderAway, FolderTaken, claim_folder, known_service_id


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


def test_an_empty_mount_point_is_not_taken_for_a_new_shared_folder(tmp_path: Path) -> None:
    shared, state = tmp_path / "shared", tmp_path / "state"
    service = known_service_id(shared, state)
    assert known_service_id(shared, state) == service
    shared.rename(tmp_path / "mounted")
    shared.mkdir()
    with pytest.raises(FolderAway, match=f"is its file system mounted.*delete {state}/{USED_FOLDERS}"):
        known_service_id(shared, state)
    assert list(shared.iterdir()) == []
    shared.rmdir()
    (tmp_path / "mounted").rename(shared)
    assert known_service_id(shared, state) == service


def test_a_service_may_get_another_shared_folder(tmp_path: Path) -> None:
    first, state = known_service_id(tmp_path / "a", tmp_path / "state"), tmp_path / "state"
    assert known_service_id(tmp_path / "b", state) != first
    assert known_service_id(tmp_path / "a", state) == first
    (state / USED_FOLDERS).unlink()
    assert known_service_id(tmp_path / "a", state) == first
