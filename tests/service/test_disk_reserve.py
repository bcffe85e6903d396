"""On a full disk jobs can still be cancelled."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from horae.service.disk_reserve import RESERVE_FILE, DiskReserve
from tests.backends.real import until
from tests.service.live import in_state, submit
from tests.service.two_gpus import served


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MB in memory."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)]
    if os.getuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (2**20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue
    return filler


def test_on_a_full_disk_jobs_are_cancelled_and_not_submitted_until_there_is_room(small_disk: Path) -> None:
    with served(small_disk / "state") as (_, client):
        (waits,) = submit(client, {"resources": {"gpus": 2}, "run": ["sleep", "600"]})
        (other,) = submit(client, {"resources": {"gpus": 2}})
        in_state(client, waits, "launching", "running")
        filler = fill(small_disk)
        until(lambda: "disk is nearly full" in client.get("/healthz").json()["error"], "for the service to notice")
        refused = client.post("/v1/jobs", json=[{"run": ["true"]}])
        assert refused.status_code == 503
        assert "nearly full" in refused.text
        assert client.post(f"/v1/jobs/{other}/cancel").status_code == 200
        in_state(client, other, "cancelled")
        assert "horae_disk_free_bytes" in client.get("/metrics").text
        filler.unlink()
        until(lambda: client.get("/healthz").json()["ok"], "for the service to be well")
        (new,) = submit(client)
        assert client.post(f"/v1/jobs/{waits}/cancel").status_code == 200
        in_state(client, new, "finished")


def test_the_reserve_is_made_freed_and_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = 100
    monkeypatch.setattr(DiskReserve, "free_bytes", property(lambda self: free))
    reserve = DiskReserve(tmp_path, None, size=40)
    file = tmp_path / RESERVE_FILE
    assert (file.stat().st_size, file.stat().st_mode & 0o777, reserve.is_short) == (40, 0o600, False)
    for free, short, there in ((50, False, True), (30, True, True), (50, True, True), (80, False, True)):
        reserve.look()
        assert (reserve.is_short, file.exists()) == (short, there), free
    reserve.free()
    assert (reserve.is_short, file.exists()) == (True, False)
    free = 30
    reserve.look()
    assert not file.exists()
    free = 90
    reserve.look()
    assert (reserve.is_short, file.exists()) == (False, True)
