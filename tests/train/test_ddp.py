"""A real PyTorch job of two processes is preempted twice, and ends as if it never had been."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horae.train import STOPPED
from tests.train.service import environment, inside_horae, launch, start, wait_for

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "examples" / "train_torch_ddp.py"
STEPS = 60
GLOO = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def result(folder: Path) -> Any:
    return json.loads((folder / "result.json").read_text())


def step_in(folder: Path) -> int:
    path = folder / "saved.json"
    return int(json.loads(path.read_text())["step"]) if path.exists() else 0


def pair(folder: Path, *arguments: object) -> list[subprocess.Popen[str]]:
    """The two processes of an attempt, with the variables that Horae sets for `processes: gpu`."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = str(one.getsockname()[1])
    world = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    envs = [inside_horae(folder, **world, **GLOO, RANK=str(rank), LOCAL_RANK=str(rank)) for rank in range(2)]
    first = start(SCRIPT, "--steps", STEPS, *arguments, env=envs[0])
    return [first, start(SCRIPT, "--steps", STEPS, *arguments, env=envs[1], group=first.pid)]


def end(processes: list[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Exit codes and complaints."""
    complaints = [process.communicate(timeout=180)[1] for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, complaints, strict=True)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a run that nobody stops comes to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    assert [code for code, _ in end(pair(folder))] == [0, 0]
    assert step_in(folder) == STEPS
    return result(folder)


@pytest.mark.parametrize("all_are_told", [True, False])
def test_preempted_twice_it_has_the_same_weights_and_loss(tmp_path: Path, undisturbed: Any, all_are_told: bool) -> None:
    reached = 0
    for _ in range(2):
        processes = pair(tmp_path, "--step-ms", 50, "--every-s", 0.2)
        wait_for(lambda: step_in(tmp_path) > reached or processes[0].poll() is not None)  # noqa: B023
        if all_are_told:
            os.killpg(processes[0].pid, signal.SIGUSR1)
        else:
            processes[1].send_signal(signal.SIGUSR1)
        ends = end(processes)
        assert [code for code, _ in ends] == [STOPPED, STOPPED], ends
        assert reached < step_in(tmp_path) < STEPS
        reached = step_in(tmp_path)
    assert [code for code, _ in end(pair(tmp_path))] == [0, 0]
    assert result(tmp_path) == undisturbed


def test_torchrun_passes_the_notice_on(tmp_path: Path, undisturbed: Any) -> None:
    def torchrun(*arguments: object) -> subprocess.Popen[str]:
        two = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
        command = [sys.executable, *two, "--signals-to-handle", "SIGTERM,SIGUSR1", SCRIPT, "--steps", STEPS, *arguments]
        return launch(command, inside_horae(tmp_path, **GLOO))

    stopped = torchrun("--step-ms", 50, "--every-s", 0.2)
    wait_for(lambda: step_in(tmp_path) or stopped.poll() is not None)
    held = step_in(tmp_path)
    os.killpg(stopped.pid, signal.SIGUSR1)
    (code, complaints) = end([stopped])[0]
    # torchrun has no exit code for this; Horae knows that it asked.
    assert code != 0, complaints
    assert held < step_in(tmp_path) < STEPS, complaints
    assert [code for code, _ in end([torchrun()])] == [0]
    assert result(tmp_path) == undisturbed


def test_alone_the_adapter_needs_no_process_group(tmp_path: Path) -> None:
    script = tmp_path / "alone.py"
    script.write_text(
        "import random, sys, numpy, torch\n"
        "from horae import train\n"
        "torch.manual_seed(1), random.seed(2), numpy.random.seed(3)\n"
        "model = torch.nn.Linear(3, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=.1, momentum=.9)\n"
        "run = train.torch.Run(6, folder='here', every_s=1e-9, model=model, optimizer=optimizer)\n"
        "for step in run:\n"
        "    if step == int(sys.argv[1]): sys.exit(9)\n"
        "    loss = (model(torch.randn(8, 3)) - random.random() - numpy.random.rand()).square().mean()\n"
        "    optimizer.zero_grad(), loss.backward(), optimizer.step()\n"
        "    run.report(loss)\n"
    )

    def losses(*stops: int) -> tuple[list[int], Any]:
        folder = tmp_path / f"with {len(stops)} stops"
        folder.mkdir()
        command = [sys.executable, str(script)]
        codes = [subprocess.run([*command, str(stop)], cwd=folder, env=environment()).returncode for stop in stops]
        return codes, json.loads((folder / "here" / "saved.json").read_text())

    codes, whole = losses(-1)
    assert codes == [0]
    assert losses(2, -1) == ([9, 0], whole)


def test_what_a_part_has_in_its_state_is_its_own_affair(tmp_path: Path) -> None:
    """A rate that NumPy computed is a number of NumPy's; what was saved must load."""
    np = pytest.importorskip("numpy")

    def parts() -> tuple[Any, dict[str, Any]]:
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: np.cos(step / 10))
        return scheduler, {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    from horae.train.torch import Run

    schedulers = []
    for total in (3, 6):
        scheduler, named = parts()
        for _ in Run(total, folder=tmp_path, **named):
            named["optimizer"].step()
            scheduler.step()
        schedulers.append(scheduler.last_epoch)
    assert schedulers == [3, 6]


def test_processes_that_do_not_know_each_other_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from horae.train.torch import Run

    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"one of 2 processes: call torch.distributed.init_process_group\(\)"):
        Run(3, model=torch.nn.Linear(2, 2))


def test_a_model_of_which_no_process_has_all_is_told(tmp_path: Path) -> None:
    """Rank 0 would save its shard, and every process would go on with that one."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from horae.train.torch import Run

    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        model = torch.nn.Linear(4, 4)
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match=r"model is spread over the processes .* in its gather\(\)"):
            Run(3, model=model)
    finally:
        distributed.destroy_process_group()


def test_a_checkpoint_without_a_part_is_told(tmp_path: Path) -> None:
    from horae.train.torch import Run, State

    model = torch.nn.Linear(2, 2)
    State({"model": model}).save(tmp_path / "one")
    with pytest.raises(KeyError, match="holds model, and no 'optimizer'"):
        State({"model": model, "optimizer": torch.optim.SGD(model.parameters())}).load(tmp_path / "one")
    with pytest.raises(ValueError, match="name what is to be saved"):
        Run(3)
