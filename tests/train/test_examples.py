"""The examples do what they say."""

import json
import os
import signal
from pathlib import Path

import pytest

from examples.train_numpy import speeds, step_seconds
from horae.train import STOPPED
from tests.train.service import inside_horae, start, wait_for

SCRIPT = Path(__file__).parents[2] / "examples" / "train_numpy.py"


def train_numpy(folder: Path, *arguments: object, stop_after: int | None = None, **env: str) -> tuple[int, str]:
    """Exit code and output of the example, with notice once it has a checkpoint beyond this step."""
    process = start(SCRIPT, "--steps", 120, "--seed", 4, *arguments, env=inside_horae(folder, **env))
    if stop_after is not None:
        wait_for(lambda: reached(folder) > stop_after or process.poll() is not None)
        os.killpg(process.pid, signal.SIGUSR1)
    out, complaints = process.communicate(timeout=180)
    assert complaints == ""
    return process.returncode, out


def reached(folder: Path) -> int:
    path = folder / "saved.json"
    return int(json.loads(path.read_text())["step"]) if path.exists() else 0


def test_the_final_loss_is_the_same_with_and_without_preemption(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    code, told = train_numpy(whole)
    assert code == 0
    for _ in range(2):
        before = reached(parts)
        slow = ("--step-ms", 10, "--every-s", 0.05)
        assert train_numpy(parts, *slow, stop_after=before) == (STOPPED, "")
        assert before < reached(parts) < 120
    assert train_numpy(parts) == (0, told)
    loss = json.loads((parts / "result.json").read_text())["loss"]
    assert told == f"final loss {loss!r}\n"
    assert 0 < loss < 1
    # Run once more, it has nothing left to do, and says the same.
    assert train_numpy(parts) == (0, told)


def test_the_loss_depends_on_the_seed(tmp_path: Path) -> None:
    assert train_numpy(tmp_path / "a")[1] != train_numpy(tmp_path / "b", "--seed", 5)[1]


def test_steps_take_longer_on_a_slow_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Chosen:
        step_ms = 20
        speed = speeds("v100=1,k80=0.4")

    for kind, seconds in {"v100": 0.02, "k80": 0.05, "unheard-of": 0.02}.items():
        monkeypatch.setenv("HORAE_GPU_TYPE", kind)
        assert step_seconds(Chosen) == pytest.approx(seconds)
    with pytest.raises(ValueError, match="positive"):
        speeds("v100=0")
