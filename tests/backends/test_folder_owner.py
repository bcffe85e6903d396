"""One shared folder, one service."""

import json
import socket
from pathlib import Path

import pytest

from horae.backends import folder_owner
from horae.backends.folder_owner import OWNER, USED_FOLDERS, FolderAway, FolderTaken, own_folder


def test_the_owner_comes_back_and_others_are_refused_with_what_to_do(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    own_folder(shared, tmp_path / "a")
    own_folder(shared, tmp_path / "a")
    with pytest.raises(FolderTaken, match=rf"state folder {tmp_path}/a on .*delete {shared}/{OWNER}"):
        own_folder(shared, tmp_path / "b")
    (shared / OWNER).unlink()
    own_folder(shared, tmp_path / "b")


def test_a_container_has_another_name_at_each_start_and_stays_the_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    for name in ("horae-1", "horae-2"):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        own_folder(tmp_path / "shared", tmp_path / "state")
    with pytest.raises(FolderTaken):
        own_folder(tmp_path / "shared", tmp_path / "other")


def test_two_pods_with_a_state_folder_each_at_the_same_path_are_two_services(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    state = tmp_path / "state"
    own_folder(tmp_path / "shared", state)
    state.rename(tmp_path / "volume of the first")
    with pytest.raises(FolderTaken):
        own_folder(tmp_path / "shared", state)


@pytest.fixture
def no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine is, it has a name that lasts."""
    monkeypatch.setattr(folder_owner, "_CONTAINER_SIGNS", ())
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


@pytest.mark.usefixtures("no_container")
def test_a_copy_of_the_state_folder_on_another_machine_is_another_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folder(tmp_path / "shared", tmp_path / "state")
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    with pytest.raises(FolderTaken):
        own_folder(tmp_path / "shared", tmp_path / "state")


@pytest.mark.usefixtures("no_container")
def test_a_standby_on_another_machine_owns_the_folder_of_its_journal_and_of_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_folder(tmp_path / "shared", tmp_path / "state", "j1")
    monkeypatch.setattr(socket, "gethostname", lambda: "elsewhere")
    own_folder(tmp_path / "shared", tmp_path / "state", "j1")
    with pytest.raises(FolderTaken):
        own_folder(tmp_path / "shared", tmp_path / "other", "j1")
    monkeypatch.setattr(socket, "gethostname", lambda: "third")
    with pytest.raises(FolderTaken):
        own_folder(tmp_path / "shared", tmp_path / "state", "j2")


@pytest.mark.usefixtures("no_container")
def test_claims_of_earlier_versions_are_renewed(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    old = {"host": socket.gethostname(), "state": str(tmp_path / "state")}
    (tmp_path / "shared" / OWNER).write_text(json.dumps(old))
    own_folder(tmp_path / "shared", tmp_path / "state")
    claim = json.loads((tmp_path / "shared" / OWNER).read_text())
    assert (claim.pop("id") != "", claim) == (True, old)


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
