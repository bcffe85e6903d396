"""From pieces to Slurm jobs: groups, options, scripts."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.backends.driver import Piece, PieceId, PiecesRefused
from horae.backends.slurm.batch_job import (
    SlurmSettings,
    batch_script,
    groups_of,
    sbatch_options,
)
from horae.backends.slurm.command_output import SlurmHost

SETTINGS = SlurmSettings("s1", "gpu", Path("/mnt/horae"))


def host(name: str, gpus: dict[str, int] | None = None, cpus: int = 32, memory_mb: int = 64_000) -> SlurmHost:
    return SlurmHost(name, "10.0.0.1", {"v100": 4} if gpus is None else gpus, cpus, memory_mb, (), True, False, "")


def piece(node: str = "v1", gpus: int = 4, command: tuple[str, ...] = ("true",), **more: int | str) -> Piece:
    return Piece(PieceId("a-1", 3, node), **{"gpu_type": "v100", "gpus": gpus, "command": command, **more})  # type: ignore[arg-type]


def options(group: list[Piece], *hosts: SlurmHost, settings: SlurmSettings = SETTINGS) -> dict[str, str]:
    words = sbatch_options(
        settings, group, {each.name: each for each in hosts or [host("v1"), host("v2")]}, "UNLIMITED"
    )
    return dict((word + "=").removeprefix("--").split("=", 1) for word in words)


def value(text: str) -> str:
    return text.removesuffix("=")


def test_a_gang_is_one_slurm_job_for_each_gpu_count() -> None:
    groups = groups_of([piece("v1", 4), piece("v2", 2), piece("v3", 4)])
    assert Counter(tuple(each.id.node for each in group) for group in groups) == Counter([("v1", "v3"), ("v2",)])


def test_a_piece_gets_cpus_and_memory_by_its_gpus() -> None:
    found = options([piece(gpus=2)])
    assert value(found["cpus-per-task"]) == "16"
    assert value(found["mem"]) == "32000M"


def test_the_poorest_node_of_a_group_decides() -> None:
    found = options([piece("v1"), piece("v2")], host("v1"), host("v2", cpus=8, memory_mb=1000))
    assert value(found["cpus-per-task"]) == "8"
    assert value(found["mem"]) == "1000M"


def test_requests_of_the_job_come_first() -> None:
    found = options([piece(gpus=2, cpus_per_gpu=3, memory_mb_per_gpu=500)])
    assert value(found["cpus-per-task"]) == "6"
    assert value(found["mem"]) == "1000M"


def test_memory_that_slurm_does_not_know_is_not_asked_for() -> None:
    assert "mem" not in options([piece(gpus=2)], host("v1", memory_mb=1))


def test_gpus_are_asked_for_by_type_where_slurm_knows_it() -> None:
    assert value(options([piece(gpus=2)])["gres"]) == "gpu:v100:2"
    assert value(options([piece(gpus=2)], host("v1", {"": 4}))["gres"]) == "gpu:2"


def test_the_nodes_are_named_and_the_job_never_requeued() -> None:
    found = options([piece("v2"), piece("v1")])
    assert (value(found["nodelist"]), value(found["nodes"])) == ("v2,v1", "2")
    assert value(found["job-name"]) == "horae-s1-a-1-3"
    assert "no-requeue" in found
    assert "account" not in found


def test_account_and_qos_are_passed_on() -> None:
    found = options([piece()], settings=SlurmSettings("s1", "gpu", Path("/mnt/h%j"), "team", "high"))
    assert (value(found["account"]), value(found["qos"])) == ("team", "high")
    assert value(found["output"]) == "/mnt/h%%j/jobs/a-1/3/slurm-4.txt"
    assert value(found["chdir"]) == "/mnt/h%j/jobs/a-1/3"


def test_a_node_outside_the_partition_is_refused_in_a_sentence() -> None:
    with pytest.raises(PiecesRefused, match="Partition gpu has no node x9"):
        options([piece("x9")])


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=12), max_size=4))
def test_whatever_is_in_a_command_reaches_the_program_unchanged(words: list[str]) -> None:
    script = batch_script([piece("v1/v100", command=("printf", r"%s\0", "-", *words))], cpus=1)
    environment = {"SLURMD_NODENAME": "v1", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(["sh"], input=script.encode(), env=environment, capture_output=True)
    assert ran.stdout.decode().split("\0")[1:-1] == words
    assert ran.returncode == 0


def test_the_script_exits_with_0_and_says_the_node() -> None:
    command = ("sh", "-c", "echo on $HORAE_NODE; exit 75")
    script = batch_script([piece("v1/v100", command=command)], cpus=1)
    environment = {"SLURMD_NODENAME": "v1", "PATH": "/usr/bin:/bin"}
    ran = subprocess.run(["sh"], input=script, env=environment, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "on v1/v100\n")


def test_several_nodes_are_started_by_srun() -> None:
    assert "srun" not in batch_script([piece("v1")], cpus=8)
    assert "srun --ntasks-per-node=1 --nodes=2 --cpus-per-task=8 " in batch_script([piece("v1"), piece("v2")], cpus=8)
