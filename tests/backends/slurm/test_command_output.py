"""What Slurm's commands print, read without a Slurm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.backends.driver import EndCause, PieceEnded, PieceRunning, PieceWaiting
from horae.backends.slurm.command_output import (
    controller_is_up,
    gpu_type_of,
    read_config,
    read_gres,
    read_hosts,
    read_job_state,
    read_jobs,
    read_node_list,
    read_node_state,
    read_partition,
    read_racks,
)

HOST = "v1|mixed|gpu:v100:4|16|64000|v100,nvme|10.0.0.1|none"


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("gpu:v100:4", {"v100": 4}),
        ("gpu:a100:8(S:0-1)", {"a100": 8}),
        ("gpu:4", {"": 4}),
        ("gpu:4(S:0,2)", {"": 4}),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:1),nvme:1", {"a100": 4, "v100": 2}),
        ("gpu:a100:2,gpu:a100:2", {"a100": 4}),
        ("gpu:nvidia_a100_80gb_pcie:2", {"nvidia_a100_80gb_pcie": 2}),
        ("gpu:a100_1g.5gb:7", {"a100_1g.5gb": 7}),
        ("gpu", {"": 1}),
        ("gpu:tesla", {"tesla": 1}),
        ("gpu:v100:no_consume:4", {"v100": 4}),
        ("gpu:1K", {"": 1024}),
        ("gpu:v100:0", {}),
        ("gres:gpu:v100:2", {"v100": 2}),
        ("gres/gpu:v100:2", {"v100": 2}),
        ("mps:400,shard:8", {}),
        ("(null)", {}),
        ("N/A", {}),
        ("", {}),
    ],
)
def test_gpus_are_read_in_every_form(text: str, gpus: dict[str, int]) -> None:
    assert read_gres(text) == gpus


@pytest.mark.parametrize(
    "state", ["idle", "mixed", "allocated", "completing", "mixed-", "planned", "IDLE", "allocated+"]
)
def test_a_node_in_service_takes_jobs(state: str) -> None:
    assert read_node_state(state) == (True, False)


@pytest.mark.parametrize(
    "state",
    "idle* mixed* allocated* drained draining drained* IDLE+DRAIN reserved maint unknown unknown* reboot powering_up "
    "inval fail a_state_of_tomorrow allocated+* drained+".split(),
)
def test_a_node_that_takes_no_jobs_is_not_lost_for_that(state: str) -> None:
    assert read_node_state(state) == (False, False)


@pytest.mark.parametrize("state", ["down", "down*", "DOWN+DRAIN", "down$", "future"])
def test_a_node_that_slurm_has_given_up_is_lost(state: str) -> None:
    assert read_node_state(state) == (False, True)


def test_a_host_is_listed_once_for_each_partition_and_read_once() -> None:
    hosts = read_hosts(f"{HOST}\n{HOST}\np1|idle|(null)|8|1|(null)|p1|none\n")
    assert list(hosts) == ["v1", "p1"]
    v1 = hosts["v1"]
    assert (v1.gpus, v1.cpus, v1.memory_mb, v1.address, v1.features) == (
        {"v100": 4},
        16,
        64000,
        "10.0.0.1",
        ("v100", "nvme"),
    )
    assert v1.is_open
    assert v1.why == ""
    assert hosts["p1"].gpus == {}
    assert hosts["p1"].features == ()


def test_a_closed_host_says_why_even_with_bars_in_the_reason() -> None:
    (host,) = read_hosts("v1|drained|gpu:v100:4|16|64000|v100|v1|fan | broken").values()
    assert host.why == "drained: fan | broken"
    assert not host.is_open


@pytest.mark.parametrize(
    ("state", "reason", "answers"),
    [("idle", "none", True), ("drained", "fan *", True), ("idle*", "none", False), ("down*", "Not responding", False)],
)
def test_a_host_answers_whether_or_not_it_takes_jobs(state: str, reason: str, answers: bool) -> None:
    (host,) = read_hosts(f"v1|{state}|gpu:v100:4|16|64000|v100|v1|{reason}").values()
    assert host.answers == answers


def test_gpus_without_a_type_are_called_by_a_feature() -> None:
    assert gpu_type_of(("nvme", "ib", "a100")) == "a100"
    assert gpu_type_of(("rtx3090",)) == "rtx3090"
    assert gpu_type_of(("nvidia_l40s",)) == "nvidia_l40s"
    assert gpu_type_of(("nvme", "rack12", "avx512")) == "gpu"
    assert gpu_type_of(()) == "gpu"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("v1", ["v1"]),
        ("v[1-2],p1", ["v1", "v2", "p1"]),
        ("v[1,3-4]", ["v1", "v3", "v4"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("", []),
        ("(null)", []),
    ],
)
def test_lists_of_nodes_are_expanded(text: str, names: list[str]) -> None:
    assert read_node_list(text) == names


@given(st.lists(st.from_regex(r"[a-z]{1,5}[0-9]{0,3}", fullmatch=True), min_size=1))
def test_a_list_without_brackets_is_its_names(names: list[str]) -> None:
    assert read_node_list(",".join(names)) == names


def test_a_running_job_is_on_its_nodes_and_a_pending_job_on_those_it_asked_for() -> None:
    running, pending = read_jobs(
        "7|ann|RUNNING|None|v[1-2]|v[1-2]|gres:gpu:v100:2|horae-s-a-1\n"
        "8|ann|PENDING|Resources|p2||gres/gpu:p100:4|a|b\n"
    )
    assert (running.hosts, running.gpu_type, running.state) == (("v1", "v2"), "v100", PieceRunning())
    assert (pending.hosts, pending.name, pending.state) == (("p2",), "a|b", PieceWaiting("PENDING: Resources"))


def test_a_completing_job_is_on_all_its_nodes_though_slurm_shows_only_the_slow_ones() -> None:
    (job,) = read_jobs("7|ann|COMPLETING|None|v[1-2]|v2|gres:gpu:v100:2|horae-s-a-1\n")
    assert job.hosts == ("v1", "v2")


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "STAGE_OUT", "A_STATE_OF_TOMORROW"])
def test_nothing_is_concluded_from_states_that_are_no_end(state: str) -> None:
    assert read_job_state(state, "None") == PieceRunning()


@pytest.mark.parametrize(
    ("state", "end"),
    [
        ("COMPLETED", PieceEnded(None, EndCause.EXITED)),
        ("CANCELLED", PieceEnded(None, EndCause.CANCELLED, "Slurm says: CANCELLED")),
        ("NODE_FAIL", PieceEnded(None, EndCause.STOPPED, "Slurm says: NODE_FAIL")),
        ("TIMEOUT", PieceEnded(None, EndCause.STOPPED, "Slurm says: TIMEOUT")),
        ("PREEMPTED", PieceEnded(None, EndCause.STOPPED, "Slurm says: PREEMPTED")),
        ("FAILED", PieceEnded(None, EndCause.FAILED, "Slurm says: FAILED")),
        ("OUT_OF_MEMORY", PieceEnded(137, EndCause.FAILED, "Slurm says: OUT_OF_MEMORY")),
    ],
)
def test_ends_have_a_cause(state: str, end: PieceEnded) -> None:
    assert read_job_state(state, "None") == end


def test_an_end_keeps_the_words_of_slurm() -> None:
    assert read_job_state("FAILED", "RaisedSignal:9").why == "Slurm says: FAILED: RaisedSignal:9"  # type: ignore[union-attr]


def test_the_rack_is_the_lowest_switch_or_the_block() -> None:
    tree = (
        "SwitchName=rack1 Level=0 LinkSpeed=1 Nodes=v1,v2\n"
        "SwitchName=rack2 Level=0 LinkSpeed=1 Nodes=p[1-2]\n"
        "SwitchName=spine Level=1 LinkSpeed=1 Nodes=p[1-2],v[1-2] Switches=rack1,rack2\n"
    )
    assert read_racks(tree) == {"v1": "rack1", "v2": "rack1", "p1": "rack2", "p2": "rack2"}
    assert read_racks("BlockName=b1 BlockIndex=0 Nodes=v[1-2] BlockSize=2\n") == {"v1": "b1", "v2": "b1"}
    assert read_racks("") == {}


def test_settings_are_read() -> None:
    config = read_config(
        "Configuration data as of 2024-01-01\nKillWait                = 30 sec\nRequeueExit = (null)\n"
    )
    assert config == {"KillWait": "30 sec", "RequeueExit": ""}
    partition = read_partition("PartitionName=gpu\n   MaxNodes=UNLIMITED MaxTime=1-00:00:00\n   TRES=cpu=64,mem=250G\n")
    assert partition == {
        "PartitionName": "gpu",
        "MaxNodes": "UNLIMITED",
        "MaxTime": "1-00:00:00",
        "TRES": "cpu=64,mem=250G",
    }


def test_a_backup_controller_is_a_controller() -> None:
    assert controller_is_up("Slurmctld(primary) at a is UP\n")
    assert controller_is_up("Slurmctld(primary) at a is DOWN\nSlurmctld(backup) at b is UP\n")
    assert not controller_is_up("Slurmctld(primary) at a is DOWN\n")
    assert not controller_is_up("")
