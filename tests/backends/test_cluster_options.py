"""Settings of `horae serve --with`. Tests backends/cluster_options.py and BackendOptions."""

from __future__ import annotations

from pathlib import Path

import pytest

from horae.backends import BackendOptions, open_backend
from horae.backends.cluster_options import reconciler
from horae.core.cluster import Node
from horae.core.errors import UserError
from tests.backends.fake_cluster import FakeCluster


def test_storage_may_be_away_for_as_long_as_is_said_and_the_fence_waits_longer(tmp_path: Path) -> None:
    options = BackendOptions(tmp_path, settings={"storage-away": "10m"})
    made = reconciler(FakeCluster([Node("v1", "v100", 4)]), tmp_path / "shared", options)
    made.close()
    assert (made.settings.beat_limit_s, made.settings.fence_s) == (600.0, 900.0)


def test_a_cluster_may_take_as_long_to_start_a_job_as_is_said(tmp_path: Path) -> None:
    options = BackendOptions(tmp_path, settings={"launch-limit": "1h"})
    made = reconciler(FakeCluster([Node("v1", "v100", 4)]), tmp_path / "shared", options)
    made.close()
    assert (made.settings.launch_limit_s, made.settings.beat_limit_s) == (3600.0, 60.0)


@pytest.mark.parametrize("name", ["storage-away", "launch-limit"])
@pytest.mark.parametrize("text", ["2s", "soon", "inf"])
def test_times_that_cannot_be_are_refused(tmp_path: Path, name: str, text: str) -> None:
    with pytest.raises(UserError, match=f"--with {name}"):
        reconciler(FakeCluster([]), tmp_path / "shared", BackendOptions(tmp_path, settings={name: text}))


def test_settings_that_a_backend_does_not_know_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--with fense=... is not known to this backend. Did you mean 'fence'\?"):
        open_backend(
            "slurm",
            BackendOptions(tmp_path, partition="gpu", shared=tmp_path / "shared", settings={"fense": "off"}),
        )
    with pytest.raises(UserError, match="There are: none"):
        open_backend("local", BackendOptions(tmp_path, settings={"fence": "off"}))
