"""Clusters and queues are read as written, and a slip is answered with what to write instead.

Tests workload/clusters.py and backends/live_clusters.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horae.backends.driver import ClusterDriver, Look, OutOfSight, SeenNode
from horae.backends.live_clusters import READERS
from horae.core.cluster import BadCluster, Cluster, Node
from horae.core.errors import UserError
from horae.core.queues import Queue
from horae.workload.clusters import cluster_as_yaml, cluster_queues, load_queues, parse_cluster


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "cluster.yaml") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_the_short_form_without_a_type() -> None:
    assert parse_cluster("15x4") == Cluster.of([("gpu", 15, 4)])


def test_the_short_form_with_types() -> None:
    expected = Cluster.of([("v100", 2, 4), ("p100", 4, 4), ("k80", 24, 1)])
    assert parse_cluster("v100:2x4,p100:4x4,k80:24x1") == expected
    assert parse_cluster(" v100:2x4, p100:4X4 ,k80:24x1") == expected


def test_one_type_may_come_in_nodes_of_several_sizes() -> None:
    names = [(node.name, node.gpus) for node in parse_cluster("rtx3090:1x8,rtx3090:2x4").nodes]
    assert names == [("rtx3090-0", 8), ("rtx3090-1", 4), ("rtx3090-2", 4)]


def test_the_short_form_may_say_how_many_nodes_a_rack_has() -> None:
    nodes = parse_cluster("3x4/2,2x1,v100:2x8/1").nodes
    assert [node.name for node in nodes[:5]] == ["gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4"]
    racks = [node.rack for node in nodes]
    assert racks == ["gpu-rack-0", "gpu-rack-0", "gpu-rack-1", "rack-0", "rack-0", "v100-rack-2", "v100-rack-3"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("15y4", "'15y4' .* such as 15x4"),
        ("v100:2x", "'v100:2x' .* such as 15x4"),
        (":2x4", "':2x4' .* such as 15x4"),
        ("v100:2x4,,k80:1x1", "'' in the cluster .* such as 15x4"),
        ("", "'' in the cluster .* such as 15x4"),
        ("-1x4", "'-1x4' .* such as 15x4"),
        ("1.5x4", "'1.5x4' .* such as 15x4"),
        ("0x4", "'0x4' .* no GPUs"),
        ("4x4/0", "'4x4/0' .* racks without nodes"),
        ("4x4/-1", "no cluster file 4x4/-1"),
        ("v100:1x1,k80:4x0", "'k80:4x0' .* no GPUs"),
        ("1x99999999", "at most 1,000,000"),
        ("99999999x1", "at most 1,000,000"),
        ("nowhere.yaml", "no cluster file nowhere.yaml"),
        ("no/where", "no cluster file no/where"),
        ("x" * 5000, "such as 15x4"),
    ],
)
def test_a_wrong_spec_is_answered_with_a_right_one(spec: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_cluster(spec)


def test_a_folder_is_no_cluster(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is a folder"):
        parse_cluster(str(tmp_path))


def test_yaml_nodes_with_names_types_and_racks(write) -> None:
    text = """
    nodes:
      - {type: v100, count: 3, gpus: 4, nodes_per_rack: 2}
      - {type: v100, count: 2, gpus: 8, nodes_per_rack: 2}
      - {name: big, type: a100, gpus: 8, rack: row-b}
      - {name: old, type: k80, count: 2, gpus: 1}
    """
    assert parse_cluster(write(text)).nodes == (
        Node("v100-0", "v100", 4, "v100-rack-0"),
        Node("v100-1", "v100", 4, "v100-rack-0"),
        Node("v100-2", "v100", 4, "v100-rack-1"),
        Node("v100-3", "v100", 8, "v100-rack-2"),
        Node("v100-4", "v100", 8, "v100-rack-2"),
        Node("big", "a100", 8, "row-b"),
        Node("old-0", "k80", 1, "rack-0"),
        Node("old-1", "k80", 1, "rack-0"),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nodes: [{type: v100, cuont: 2, gpus: 4}]", "'cuont'.* Did you mean 'count'"),
        ("node: []", "'node'.* Did you mean 'nodes'"),
        ("nodes: []", "must list its nodes"),
        ("queues: {a: {}}", "must list its nodes"),
        ("nodes: [v100]", "group 1 of nodes must be a map"),
        ("nodes: [{type: v100}]", "how many gpus"),
        ("nodes: [{gpus: 0}]", "gpus is 0"),
        ("nodes: [{gpus: true}]", "gpus is True"),
        ("nodes: [{gpus: 4, count: 1.5}]", "count is 1.5"),
        ("nodes: [{gpus: 4, type: 100}]", "type is 100"),
        ("nodes: [{gpus: 4, rack: a, nodes_per_rack: 2}]", "keep one"),
        ("nodes: [{gpus: 1, name: a}, {gpus: 1, name: a}]", "'a' is used twice"),
        ("nodes: [{gpus: 1000, count: 1001}]", "at most 1,000,000"),
        ("- 1\n- 2", "section `nodes:`"),
        ("nodes: [", "cannot be read as YAML"),
        ("", "section `nodes:`"),
    ],
)
def test_a_wrong_yaml_file_says_what_is_wrong(write, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse_cluster(write(text))


def test_a_tiresias_file_makes_a_rack_of_each_switch(write) -> None:
    path = write("num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n2,3,4,40,256", "c.csv")
    cluster = parse_cluster(path)
    assert [node.rack for node in cluster.nodes] == ["rack-0"] * 3 + ["rack-1"] * 3
    assert (cluster.gpus, cluster.gpu_types) == (24, ("gpu",))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a,b\n1,2\n",
        "num_switch,num_node_p_switch,num_gpu_p_node\n",
        "num_switch,num_node_p_switch,num_gpu_p_node\n1,0,4\n",
        "num_switch,num_node_p_switch,num_gpu_p_node\n1,x,4\n",
        "num_switch,num_node_p_switch,num_gpu_p_node\n1,2\n",
    ],
)
def test_a_wrong_tiresias_file_is_refused(write, text: str) -> None:
    with pytest.raises(UserError, match=r"cluster\.csv"):
        parse_cluster(write(text, "cluster.csv"))


@pytest.mark.parametrize(("name", "gpus"), [("n2g4", 8), ("n4g4", 16), ("n8g4", 32), ("n15g4", 60), ("n32g4", 128)])
def test_the_published_tiresias_clusters(shared_data: Path, name: str, gpus: int) -> None:
    cluster = parse_cluster(str(shared_data / "tiresias" / f"{name}.csv"))
    assert cluster.gpus == gpus
    assert {node.gpus for node in cluster.nodes} == {4}


def test_queues_stand_in_the_same_file(write) -> None:
    text = """
    nodes: [{gpus: 4}]
    queues:
      org: {weight: 2, rule: fifo}
      org/vision: {gpus_min: 8, gpus_max: 64}
      org/speech:
    """
    path = write(text)
    assert load_queues(path) == (
        Queue("org", 2, "fifo"),
        Queue("org/vision", gpus_min=8, gpus_max=64),
        Queue("org/speech"),
    )
    assert parse_cluster(path).gpus == 4


def test_a_file_without_queues_has_none(write) -> None:
    assert load_queues(write("nodes: [{gpus: 4}]")) == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("queues: {org: {wieght: 2}}", "'wieght'.* Did you mean 'weight'"),
        ("queues: [org]", "must be a map"),
        ("queues: {org: 3}", "must be a map"),
        ("queues: {7: {}}", "must be a name"),
        ("queues: {org: {gpus_max: 1.5}}", "gpus_max is 1.5"),
        ("queues: {org: {weight: heavy}}", "weight is 'heavy'"),
        ("queues: {org: {weight: 0}}", "weight 0"),
        ("queues: {org: {rule: lottery}}", "fairness or fifo"),
        ("queues: {org//a: {}}", "not a path"),
    ],
)
def test_a_wrong_queue_is_named(write, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_queues(write(text))


def test_a_key_that_comes_twice_is_refused(write) -> None:
    with pytest.raises(UserError, match="'gpus' twice"):
        parse_cluster(write("nodes: [{gpus: 4, gpus: 8}]"))


def test_the_queues_of_a_cluster_are_found_whatever_its_file_is_called(tmp_path) -> None:
    path = tmp_path / "cluster.conf"
    path.write_text("nodes: [{gpus: 4}]\nqueues: {org: {gpus_max: 2}}\n")
    assert cluster_queues(str(path)) == (Queue("org", gpus_max=2),)
    switches = tmp_path / "cluster"
    switches.write_text("num_switch,num_node_p_switch,num_gpu_p_node\n1,1,4\n")
    assert cluster_queues(str(switches)) == cluster_queues("1x4") == ()


@pytest.mark.parametrize("text", ["", "queue,weight\norg,2\n"])
def test_a_file_that_cannot_hold_queues_is_told_to(write, text: str) -> None:
    with pytest.raises(UserError, match="section `queues:`"):
        load_queues(write(text))


# Clusters that exist

_names = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), min_size=1, max_size=12)


@given(
    st.lists(st.tuples(_names, _names, st.integers(1, 64), _names), min_size=1, max_size=8, unique_by=lambda n: n[0])
)
def test_a_cluster_written_as_a_file_is_read_back_as_it_was(nodes: list[tuple[str, str, int, str]]) -> None:
    cluster = Cluster(tuple(Node(*node) for node in nodes))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "cluster.yaml"
        path.write_text(cluster_as_yaml(cluster), encoding="utf-8")
        assert parse_cluster(str(path)) == cluster


class Shown(ClusterDriver):
    """A driver that shows nodes, or nothing."""

    def __init__(self, *nodes: SeenNode, silent: bool = False) -> None:
        self.nodes, self.silent = nodes, silent

    def look(self) -> Look:
        if self.silent:
            raise OutOfSight("The controller does not answer.")
        return Look({node.name: node for node in self.nodes}, {}, {})


def shown(monkeypatch: pytest.MonkeyPatch, *nodes: SeenNode, silent: bool = False) -> None:
    monkeypatch.setitem(READERS, "slurm", lambda partition: Shown(*nodes, silent=silent))


def test_a_cluster_manager_is_asked_for_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    shown(
        monkeypatch,
        SeenNode("n1", "10.0.0.1", "v100", 4, 8, 8000, rack="row-1"),
        SeenNode("n2/k80", "10.0.0.2", "k80", 2, 8, 8000, is_open=False),
        SeenNode("n3", "10.0.0.3", "v100", 4, 8, 8000, is_lost=True),
    )
    assert parse_cluster("slurm:gpu").nodes == (
        Node("n1", "v100", 4, "row-1", 8, 8000),
        Node("n2/k80", "k80", 2, "rack-0", 8, 8000),
    )
    assert cluster_queues("slurm:gpu") == ()
    assert parse_cluster("slurm:2x4").gpu_types == ("slurm",), "the short form goes first"


@pytest.mark.parametrize(
    ("spec", "silent", "says"),
    [
        ("slurm:gpu", True, "slurm:gpu cannot be read. The controller does not answer."),
        ("slurm:gpu", False, "has no nodes with GPUs that are up"),
        ("slrum:gpu", False, "or name a YAML or CSV file, or slurm:PARTITION, ray:URL or kubernetes:CONTEXT."),
    ],
)
def test_a_cluster_manager_that_shows_nothing_is_told_so(
    monkeypatch: pytest.MonkeyPatch, spec: str, silent: bool, says: str
) -> None:
    shown(monkeypatch, SeenNode("n3", "10.0.0.3", "v100", 4, 8, 8000, is_lost=True), silent=silent)
    with pytest.raises(BadCluster, match=re.escape(says)):
        parse_cluster(spec)


def test_a_file_may_say_how_many_cpus_and_how_much_memory_nodes_have(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes: [{type: v100, count: 2, gpus: 4, cpus: 64, memory_mb: 1000}, {type: k80, gpus: 1}]")
    cluster = parse_cluster(str(path))
    assert [(node.cpus, node.memory_mb) for node in cluster.nodes] == [(64, 1000), (64, 1000), (0, 0)]
    path.write_text(cluster_as_yaml(cluster))
    assert parse_cluster(str(path)) == cluster
    path.write_text("nodes: [{gpus: 4, cpus: many}]")
    with pytest.raises(BadCluster, match="cpus is 'many'; it must be a whole number"):
        parse_cluster(str(path))
