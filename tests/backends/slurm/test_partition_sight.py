"""Nodes of a partition as the service sees them."""

from horae.backends.slurm.command_output import read_hosts
from horae.backends.slurm.partition_sight import sight_of

HOSTS = read_hosts(
    "v1|mixed|gpu:v100:4|16|64000|v100|v1|none\n"
    "v2|drained|gpu:v100:4|16|64000|v100|v2|fan\n"
    "v3|down*|gpu:v100:4|16|64000|v100|v3|gone\n"
    "v4|idle|gpu:v100:4|16|64000|v100|v4|none\n"
    "c1|idle|(null)|16|64000|none|c1|none\n"
)


def test_open_closed_and_lost_nodes_and_those_that_others_use() -> None:
    sight, trouble = sight_of(HOSTS, {"v1": "r1"}, {"v4": ["Slurm job 9 (x) of ann"]})
    assert [(node.name, node.rack, node.open) for node in sight.nodes] == [
        ("v1", "r1", True),
        ("v2", "rack-0", False),
        ("v4", "rack-0", False),
    ]
    assert trouble == "Jobs that Horae does not order run on v4: closed for new jobs."


def test_a_node_whose_name_cannot_be_used_is_named() -> None:
    sight, trouble = sight_of(read_hosts("v~1|idle|gpu:v100:4|16|64000|v100|v1|none"), {}, {})
    assert sight.nodes == ()
    assert trouble == "Cannot be used because of their names: v~1."
