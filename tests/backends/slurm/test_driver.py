"""`SlurmDriver` on a real Slurm of this machine. Tests backends/driver.py, too: its records.

Each test has a Slurm of its own, ready in a fraction of a second.
"""

from __future__ import annotations

import getpass
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from horae.backends.driver import (
    EndCause,
    OutOfSight,
    Piece,
    PieceEnded,
    PieceId,
    PieceRunning,
    PiecesRefused,
    PieceState,
    PieceWaiting,
)
from horae.backends.slurm.batch_job import SlurmSettings
from horae.backends.slurm.command_output import SlurmHost, SlurmJob
from horae.backends.slurm.commands import SlurmCommands
from horae.backends.slurm.driver import BadSlurmSettings, SlurmDriver, pieces_of, seen_nodes
from horae.testing.slurm_cluster import PARTITION, SlurmCluster, why_not
from tests.backends.real import until
from tests.engine_folder import engine_folder

needs_slurm = [pytest.mark.engine, pytest.mark.skipif(bool(why_not()), reason=f"needs Slurm: {why_not()}")]


@dataclass
class Stage:
    """A driver, its Slurm, and a folder in which pieces leave traces."""

    driver: SlurmDriver
    slurm: SlurmCluster
    folder: Path

    @property
    def command(self) -> tuple[str, ...]:
        """Stands in for the runner: notes where it runs with which GPUs, and ends when it is noticed."""
        script = (
            'echo "$HORAE_NODE $CUDA_VISIBLE_DEVICES $SLURM_CPUS_ON_NODE" >> "$0/begun"; '
            'while [ ! -e "$1/$HORAE_NODE/stop" ]; do sleep 0.05; done; exit 75'
        )
        return ("/bin/sh", "-c", script, str(self.folder), str(self.folder / "shared" / "jobs" / "a-1" / "1"))

    def piece(self, node: str, gpus: int = 4, **more: Any) -> Piece:
        gpu_type = "v100" if node.startswith("v") else "p100"
        return Piece(PieceId("a-1", 1, node), **{"gpu_type": gpu_type, "gpus": gpus, "command": self.command, **more})

    def begun(self) -> list[list[str]]:
        """A line of words for each piece that has ever begun."""
        path = self.folder / "begun"
        return sorted(line.split() for line in path.read_text().splitlines()) if path.exists() else []

    def run(self, *pieces: Piece) -> None:
        """Submit pieces of an attempt, and wait until each has begun."""
        count = len(self.begun()) + len(pieces)
        self.driver.submit(pieces)
        until(lambda: len(self.begun()) == count, f"for {count} pieces")

    def ask_to_stop(self, piece: PieceId) -> None:
        folder = self.folder / "shared" / "jobs" / piece.job / str(piece.attempt) / piece.node
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stop").touch()

    def wait_for(self, piece: Piece, state: type[PieceState]) -> Any:
        return until(lambda: isinstance(found := self.driver.look().pieces.get(piece.id), state) and found, str(state))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with engine_folder("slurm") as folder:
        folder.chmod(0o755)  # jobs of another user find their script below it
        with SlurmCluster(folder / "slurm") as slurm:
            settings = SlurmSettings("s1", PARTITION, folder / "shared")
            yield Stage(SlurmDriver(settings, SlurmCommands(slurm.environment)), slurm, folder)


class TestOnRealSlurm:
    pytestmark = needs_slurm

    def test_a_look_sees_the_nodes_with_types_and_racks(self, stage: Stage) -> None:
        look = stage.driver.look()
        found = {name: (node.gpu_type, node.gpus, node.cpus, node.rack) for name, node in look.nodes.items()}
        assert found == {
            "v1": ("v100", 4, 16, "rack1"),
            "v2": ("v100", 4, 16, "rack1"),
            "p1": ("p100", 4, 16, "rack2"),
            "p2": ("p100", 4, 16, "rack2"),
        }
        assert all(node.is_open and not node.is_lost for node in look.nodes.values())
        assert (look.pieces, look.foreign) == ({}, {})

    def test_the_site_has_no_errors(self, stage: Stage) -> None:
        assert stage.driver.check_site().errors == ()

    def test_submitted_again_and_again_a_piece_runs_once(self, stage: Stage) -> None:
        piece = stage.piece("v1")
        stage.driver.submit([piece])
        stage.driver.submit([piece])
        until(stage.begun)
        stage.driver.submit([piece])
        stage.ask_to_stop(piece.id)
        assert stage.wait_for(piece, PieceEnded).cause == EndCause.EXITED
        stage.driver.submit([piece])
        assert stage.begun() == [["v1", "0,1,2,3", "16"]]
        assert len(stage.slurm.run("squeue", "-h", "--states=all").splitlines()) == 1

    def test_a_submission_whose_answer_was_lost_is_found_by_name(self, stage: Stage) -> None:
        liar = stage.folder / "bin" / "sbatch"
        liar.parent.mkdir()
        liar.write_text("#!/bin/sh\n/usr/bin/sbatch \"$@\"; echo 'Socket timed out on send/recv' >&2; exit 1\n")
        liar.chmod(0o755)
        environment = stage.slurm.environment
        environment["PATH"] = f"{liar.parent}:{environment['PATH']}"
        settings = SlurmSettings("s1", PARTITION, stage.folder / "shared")
        with pytest.raises(OutOfSight, match="Socket timed out"):
            SlurmDriver(settings, SlurmCommands(environment)).submit([stage.piece("v1")])
        stage.driver.submit([stage.piece("v1")])
        until(stage.begun)
        assert len(stage.slurm.run("squeue", "-h", "--states=all").splitlines()) == 1

    def test_an_uneven_gang_has_its_gpus_on_the_nodes_chosen(self, stage: Stage) -> None:
        pieces = [stage.piece("v2", 4), stage.piece("v1", 1), stage.piece("p1", 4, gpu_type="p100")]
        stage.run(*pieces)
        assert stage.begun() == [["p1", "0,1,2,3", "16"], ["v1", "0", "4"], ["v2", "0,1,2,3", "16"]]
        assert set(stage.driver.look().pieces.values()) == {PieceRunning()}

    def test_the_pieces_of_one_slurm_job_are_told_by_node_name(self, stage: Stage) -> None:
        """Slurm sorts nodes: v1 comes first whatever the order."""
        stage.run(stage.piece("v2", 2), stage.piece("v1", 2))
        assert stage.begun() == [["v1", "0,1", "8"], ["v2", "0,1", "8"]]
        assert len(stage.slurm.run("squeue", "-h").splitlines()) == 1
        stage.ask_to_stop(PieceId("a-1", 1, "v1"))
        stage.ask_to_stop(PieceId("a-1", 1, "v2"))
        assert stage.wait_for(stage.piece("v2"), PieceEnded).cause == EndCause.EXITED

    def test_two_attempts_share_a_node(self, stage: Stage) -> None:
        other = replace(stage.piece("v1", 2), id=PieceId("b", 1, "v1"))
        stage.run(stage.piece("v1", 2))
        stage.run(other)
        assert stage.begun() == [["v1", "0,1", "8"], ["v1", "2,3", "8"]]

    def test_a_piece_that_waits_says_why_and_can_be_killed(self, stage: Stage) -> None:
        other = replace(stage.piece("v1"), id=PieceId("b", 1, "v1"))
        stage.run(stage.piece("v1"))
        stage.driver.submit([other])
        waiting = until(lambda: "Resources" in str(stage.driver.look().pieces[other.id]) and stage.driver.look().pieces)
        assert isinstance(waiting[other.id], PieceWaiting)
        stage.driver.kill(other.id)
        assert stage.wait_for(other, PieceEnded).cause == EndCause.CANCELLED
        assert stage.driver.look().pieces[stage.piece("v1").id] == PieceRunning()

    def test_a_killed_piece_ends_though_it_ignores_term_and_twice_is_harmless(self, stage: Stage) -> None:
        deaf = ("/bin/sh", "-c", f"trap '' TERM; echo $HORAE_NODE >> {stage.folder}/begun; while :; do sleep 0.1; done")
        pieces = [stage.piece("v1", 2, command=deaf), stage.piece("v2", 2, command=deaf)]
        stage.run(*pieces)
        stage.driver.kill(pieces[0].id)
        stage.driver.kill(pieces[0].id)
        assert stage.wait_for(pieces[0], PieceEnded).cause == EndCause.CANCELLED
        assert stage.wait_for(pieces[1], PieceEnded).cause == EndCause.CANCELLED
        stage.driver.kill(pieces[1].id)

    def test_jobs_of_others_are_seen_on_their_nodes_and_cannot_pass_for_pieces(self, stage: Stage) -> None:
        if os.getuid():
            pytest.skip("only root can submit jobs of another user")
        name = "x\n9|root|RUNNING|None|v1|v1|gres:gpu:v100:1|horae-s1-a-1"
        options = [
            "--uid=nobody",
            "--partition=others",
            "--chdir=/",
            "--output=/dev/null",
            "--mem=100",
            "--nodelist=p2",
        ]
        stage.slurm.run("sbatch", *options, "--job-name=theirs", text="#!/bin/sh\nsleep 60\n")
        stage.slurm.run("sbatch", *options, f"--job-name={name}", text="#!/bin/sh\nsleep 60\n")
        stage.run(stage.piece("v1"))
        look = until(lambda: len((found := stage.driver.look()).foreign.get("p2", ())) == 2 and found)
        assert "Slurm job 1 of nobody" in look.foreign["p2"]
        assert list(look.pieces) == [stage.piece("v1").id]

    def test_pieces_of_another_service_are_foreign(self, stage: Stage) -> None:
        stage.run(stage.piece("v1"))
        settings = SlurmSettings("s2", PARTITION, stage.folder / "shared")
        look = SlurmDriver(settings, SlurmCommands(stage.slurm.environment)).look()
        assert look.pieces == {}
        assert look.foreign == {"v1": (f"Slurm job 1 of {getpass.getuser()}",)}

    def test_a_dead_controller_is_out_of_sight_at_once_and_shows_the_same_pieces_afterwards(self, stage: Stage) -> None:
        stage.run(stage.piece("v1"), stage.piece("p1", 2))
        began_s, saved = time.time(), stage.slurm.folder / "state" / "job_state"
        until(
            lambda: saved.stat().st_mtime > began_s, "for Slurm to save its jobs: it forgets those of the last seconds"
        )
        before = stage.driver.look().pieces
        stage.slurm.kill_controller()
        began_s = time.monotonic()
        for act in (
            stage.driver.look,
            lambda: stage.driver.submit([]),
            lambda: stage.driver.kill(stage.piece("v1").id),
        ):
            with pytest.raises(OutOfSight, match=r"Slurmctld\(primary\) at \S+ is DOWN"):
                act()
        assert time.monotonic() - began_s < 3 * 0.5
        stage.slurm.start_controller()
        assert stage.driver.look().pieces == before
        assert len(stage.begun()) == 2

    def test_a_frozen_controller_is_out_of_sight_in_the_time_limit(self, stage: Stage) -> None:
        commands = SlurmCommands(stage.slurm.environment, ping_s=0.3)
        driver = SlurmDriver(SlurmSettings("s1", PARTITION, stage.folder / "shared"), commands)
        stage.slurm.freeze("slurmctld")
        with pytest.raises(OutOfSight, match="no answer within"):
            driver.look()
        stage.slurm.thaw("slurmctld")
        assert len(stage.driver.look().nodes) == 4

    def test_a_drained_node_is_closed_and_a_node_that_is_down_is_lost(self, stage: Stage) -> None:
        stage.run(stage.piece("v1"))
        stage.slurm.run("scontrol", "update", "nodename=v1", "state=drain", "reason=fan | broken")
        stage.slurm.run("scontrol", "update", "nodename=v2", "state=down", "reason=gone")
        look = stage.driver.look()
        v1, v2 = look.nodes["v1"], look.nodes["v2"]
        assert (v1.is_open, v1.is_lost, v1.why) == (False, False, "draining: fan | broken")
        assert (v2.is_open, v2.is_lost, v2.why) == (False, True, "down: gone")
        assert look.pieces == {stage.piece("v1").id: PieceRunning()}

    def test_a_node_whose_daemon_was_killed_is_not_lost_at_once(self, stage: Stage) -> None:
        stage.run(stage.piece("v1"))
        stage.slurm.kill_node("v1")
        end_s = time.monotonic() + 2
        while time.monotonic() < end_s:
            look = stage.driver.look()
            assert not look.nodes["v1"].is_lost
            assert look.pieces == {stage.piece("v1").id: PieceRunning()}
        stage.slurm.start_node("v1")
        stage.slurm.wait_for_nodes("v1")
        assert stage.driver.look().pieces == {stage.piece("v1").id: PieceRunning()}

    def test_of_a_gang_that_slurm_refuses_nothing_is_left(self, stage: Stage) -> None:
        pieces = [stage.piece("v1", 4), stage.piece("v2", 5)]
        with pytest.raises(PiecesRefused, match="Requested node configuration is not available"):
            stage.driver.submit(pieces)
        assert stage.wait_for(pieces[0], PieceEnded).cause == EndCause.CANCELLED

    def test_a_partition_without_nodes_is_not_believed(self, stage: Stage) -> None:
        settings = SlurmSettings("s1", "nowhere", stage.folder / "shared")
        driver = SlurmDriver(settings, SlurmCommands(stage.slurm.environment))
        with pytest.raises(OutOfSight, match="no nodes in partition nowhere"):
            driver.look()
        assert driver.check_site().errors == ("Slurm has no partition 'nowhere'. `sinfo -s` lists them.",)


HOST = SlurmHost("h", "10.0.0.1", {"a100": 4, "": 2}, 48, 96_000, ("ib", "t4"), True, False, "")


def slurm_job(state: PieceState, hosts: tuple[str, ...] = ("h",), gpu_type: str = "") -> SlurmJob:
    return SlurmJob("7", "ann", "horae-s-a-1", state, hosts, gpu_type)


def test_a_host_with_several_gpu_types_is_several_nodes_that_share_it() -> None:
    found = [(node.name, node.gpu_type, node.gpus, node.cpus, node.memory_mb) for node in seen_nodes(HOST, "r")]
    assert found == [("h/a100", "a100", 4, 32, 64_000), ("h/t4", "t4", 2, 16, 32_000)]


def test_a_host_without_gpus_is_no_node() -> None:
    assert list(seen_nodes(replace(HOST, gpus={}), "")) == []


def test_a_piece_on_a_host_with_several_types_is_on_the_node_of_its_type() -> None:
    found = pieces_of("s", [slurm_job(PieceRunning(), gpu_type="a100"), slurm_job(PieceRunning())], {"h": HOST})
    assert sorted(piece.node for piece in found) == ["h/a100", "h/t4"]


def test_of_two_slurm_jobs_with_the_same_piece_the_livelier_counts() -> None:
    ended, waiting = PieceEnded(None, EndCause.STOPPED), PieceWaiting()
    states: list[PieceState] = [ended, PieceRunning(), waiting]
    for last in (2, 3):
        jobs = [slurm_job(state) for state in states[:last]]
        host = {"h": replace(HOST, gpus={"a100": 4})}
        assert pieces_of("s", jobs, host) == {PieceId("a", 1, "h"): PieceRunning()}
        assert pieces_of("s", jobs[::-1], host) == {PieceId("a", 1, "h"): PieceRunning()}
    assert pieces_of("s", [slurm_job(ended), slurm_job(waiting)], {}) == {PieceId("a", 1, "h"): waiting}


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (SlurmSettings("My-Service", "gpu", Path("/mnt")), "cannot be the id of a service"),
        (SlurmSettings("s1", "gpu", Path("mnt")), "give a full path"),
        (SlurmSettings("s1", "gpu", Path("/mnt\\%j")), "without a backslash"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: SlurmSettings, sentence: str) -> None:
    with pytest.raises(BadSlurmSettings, match=sentence):
        SlurmDriver(settings, None)  # type: ignore[arg-type]
