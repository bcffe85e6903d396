"""Clusters and queues as users write them: a short form, a YAML file, a Tiresias cluster file."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from horae.core.cluster import BadCluster, Cluster, Node
from horae.core.errors import did_you_mean
from horae.core.queues import BadQueue, Queue

#: GPU type of clusters that name none.
DEFAULT_TYPE = "gpu"

#: Rack of nodes that name none.
DEFAULT_RACK = "rack-0"

#: More GPUs than this are a slip of the keyboard, and would fill the memory.
MAX_GPUS = 1_000_000

NODE_KEYS = ("type", "count", "gpus", "name", "rack", "nodes_per_rack", "cpus", "memory_mb")
QUEUE_KEYS = ("weight", "rule", "gpus_min", "gpus_max", "members", "admins")
NODES_EXAMPLE = "nodes: [{type: v100, count: 8, gpus: 4}]"
FILE_KEYS = ("nodes", "queues")
SWITCH_COLUMNS = ("num_switch", "num_node_p_switch", "num_gpu_p_node")

_GROUP = re.compile(
    r"(?:(?P<type>[A-Za-z0-9_.-]+):)?(?P<nodes>\d{1,12})x(?P<gpus>\d{1,12})(?:/(?P<rack>\d{1,12}))?",
    re.IGNORECASE | re.ASCII,
)
_ENGINE = re.compile(r"(?P<engine>[a-z][a-z0-9-]*):(?P<part>[^\s:,/\\]+|https?://[^\s,]+)")
_HOW_TO = (
    "write nodes x GPUs such as 15x4, v100:2x4,k80:24x1 or 48x4/12 (12 nodes a rack), or name a YAML or CSV file, or "
    "slurm:PARTITION, ray:URL or kubernetes:CONTEXT"
)


def parse_cluster(spec: str) -> Cluster:
    """Build a cluster from `15x4`, `v100:2x4,p100:4x4/2`, a YAML file, a Tiresias CSV, or a real one: `slurm:gpu`.

    The short form is type:nodes x GPUs / nodes a rack, all in one rack where that is left out.
    A spec that could be both is the short form; `./15x4` names a file. `slurm:gpu` is the Slurm partition gpu,
    as Slurm's commands on this machine show it now.
    """
    groups = _groups(spec)
    if all(groups):
        return _from_short_form(spec, [group for group in groups if group])
    if real := _from_engine(spec):
        return real
    path = Path(spec)
    if os.path.isfile(spec):  # noqa: PTH113, it bears names too long to be paths
        return _from_switches(path) if _is_switch_file(path) else _from_yaml(path)
    if os.path.isdir(spec):  # noqa: PTH112
        raise BadCluster(f"{spec} is a folder; name a cluster file in it.")
    if os.path.exists(spec):  # noqa: PTH110
        raise BadCluster(
            f"{spec} is a pipe or a device, and a cluster is read more than once; save it to a file first."
        )
    if path.suffix in (".yaml", ".yml", ".csv") or len(path.parts) > 1:
        raise BadCluster(f"There is no cluster file {spec}; check the path.")
    wrong = next(part for part, group in zip(spec.split(","), groups, strict=True) if group is None)
    raise BadCluster(f"{wrong.strip()!r} in the cluster {spec!r} cannot be read; {_HOW_TO}.")


def cluster_as_yaml(cluster: Cluster) -> str:
    """A cluster as a cluster file, which `parse_cluster` reads back as the same cluster."""
    import yaml

    document = {"nodes": [_node_as_group(node) for node in cluster.nodes]}
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, allow_unicode=True, width=10**6)


def _node_as_group(node: Node) -> dict[str, str | int]:
    """A node as a group of a cluster file; CPUs and memory only if they are counted."""
    room = {key: count for key, count in (("cpus", node.cpus), ("memory_mb", node.memory_mb)) if count}
    return {"name": node.name, "type": node.gpu_type, "gpus": node.gpus, "rack": node.rack, **room}


def cluster_file(spec: str) -> Path | None:
    """The file that a cluster is read from; None for the short form and for what is no file."""
    is_file = not all(_groups(spec)) and os.path.isfile(spec)  # noqa: PTH113, it bears names too long to be paths
    return Path(spec) if is_file else None


def cluster_queues(spec: str) -> tuple[Queue, ...]:
    """The queues in a cluster's own YAML file; the other ways to write a cluster have none."""
    path = cluster_file(spec)
    return () if path is None or _is_switch_file(path) else load_queues(path)


def load_queues(path: str | Path) -> tuple[Queue, ...]:
    """Read the `queues` of a YAML file, in its order: a map from path to weight, rule, gpus_min and gpus_max."""
    path = Path(path)
    queues = _load_yaml(path, "queues: {org/team: {gpus_max: 64}}").get("queues") or {}
    if not isinstance(queues, dict):
        raise BadQueue(f"{path}: queues must be a map such as 'org/team: {{weight: 2}}'.")
    return tuple(_queue(path, name, settings or {}) for name, settings in queues.items())


def _groups(spec: str) -> list[re.Match[str] | None]:
    """The parts of a short form; None for a part that is none."""
    return [_GROUP.fullmatch(part.strip()) for part in spec.split(",")]


def _from_short_form(spec: str, groups: Sequence[re.Match[str]]) -> Cluster:
    """The cluster of `type:nodes x GPUs / nodes a rack` groups; one type may stand in several."""
    nodes: list[Node] = []
    numbers: Counter[str] = Counter()
    racks = count()
    for written in groups:
        nodes.extend(_nodes(_group(spec, written), numbers, racks))
    return Cluster(tuple(nodes))


def _group(spec: str, written: re.Match[str]) -> dict[str, Any]:
    """A group of a short form, as a YAML file would have it."""
    group: dict[str, Any] = {"type": written["type"] or DEFAULT_TYPE}
    group |= {"count": int(written["nodes"]), "gpus": int(written["gpus"])}
    if group["count"] < 1 or group["gpus"] < 1:
        raise BadCluster(f"{written[0]!r} in the cluster {spec!r} has no GPUs; give at least 1x1.")
    _check_size(spec, group["count"] * group["gpus"])
    if written["rack"] is None:
        return group
    if int(written["rack"]) < 1:
        raise BadCluster(f"{written[0]!r} in the cluster {spec!r} has racks without nodes; give at least 1 a rack.")
    return {**group, "nodes_per_rack": int(written["rack"])}


def _from_engine(spec: str) -> Cluster | None:
    """The nodes that a cluster manager shows now; None if the spec names no cluster manager."""
    written = _ENGINE.fullmatch(spec)
    if not written:
        return None
    from horae.backends.live_clusters import READERS, read_nodes

    if written["engine"] not in READERS:
        return None
    nodes = read_nodes(written["engine"], written["part"])
    _check_size(spec, sum(node.gpus for node in nodes))
    return Cluster(nodes)


def _names(prefix: str, node_count: int, numbers: Counter[str]) -> Iterator[str]:
    """Names of the next nodes with a prefix: v100-0, v100-1, ..."""
    first = numbers[prefix]
    numbers[prefix] += node_count
    return (f"{prefix}-{number}" for number in range(first, first + node_count))


def _is_switch_file(path: Path) -> bool:
    """Whether a file is a table of switches, as Tiresias describes clusters."""
    with path.open("rb") as file:
        return path.suffix == ".csv" or file.readline().decode("utf-8-sig", "replace").startswith("num_switch")


def _from_switches(path: Path) -> Cluster:
    """The cluster of a Tiresias CSV: so many switches, nodes a switch and GPUs a node. A switch is a rack."""
    try:
        rows = list(csv.DictReader(path.read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as why:
        raise BadCluster(f"{path} cannot be read as CSV ({why}); check the file.") from None
    if len(rows) != 1 or not set(SWITCH_COLUMNS) <= set(rows[0]):
        raise BadCluster(f"{path} must hold the header {','.join(SWITCH_COLUMNS)} and one row of numbers; fix it.")
    switches, nodes, gpus = (_cell(path, column, rows[0][column]) for column in SWITCH_COLUMNS)
    _check_size(str(path), switches * nodes * gpus)
    return Cluster.of([(DEFAULT_TYPE, switches * nodes, gpus)], nodes_per_rack=nodes)


def _cell(path: Path, column: str, text: str | None) -> int:
    """A number of a Tiresias CSV."""
    if text is None or not re.fullmatch(r"\s*0*[1-9]\d{0,11}\s*", text, re.ASCII):
        raise BadCluster(f"{path}: {column} is {text!r}; it must be a whole number from 1 up.")
    return int(text)


def _from_yaml(path: Path) -> Cluster:
    """The cluster of a YAML file's `nodes`, group by group."""
    groups = _load_yaml(path, NODES_EXAMPLE).get("nodes")
    if not isinstance(groups, list) or not groups:
        raise BadCluster(f"{path} must list its nodes, such as '{NODES_EXAMPLE}'.")
    nodes: list[Node] = []
    numbers: Counter[str] = Counter()
    racks = count()
    for place, group in enumerate(groups, start=1):
        where = f"{path}, group {place} of nodes"
        _check_group(where, group)
        _check_size(where, group.get("count", 1) * group["gpus"])
        nodes.extend(_nodes(group, numbers, racks))
    return Cluster(tuple(nodes))


def _nodes(group: dict[str, Any], numbers: Counter[str], racks: Iterator[int]) -> Iterator[Node]:
    """The nodes of one group. A single node with a name bears it; several share it as a prefix."""
    node_count, gpu_type = group.get("count", 1), group.get("type", DEFAULT_TYPE)
    single = "name" in group and node_count == 1
    names = [group["name"]] if single else _names(group.get("name", gpu_type), node_count, numbers)
    rack = group.get("rack", DEFAULT_RACK)
    for number, name in enumerate(names):
        if "nodes_per_rack" in group and number % group["nodes_per_rack"] == 0:
            # One counter for the whole file, so that no two groups fill the same rack by accident.
            rack = f"{gpu_type}-rack-{next(racks)}"
        yield Node(name, gpu_type, group["gpus"], rack, group.get("cpus", 0), group.get("memory_mb", 0))


def _check_group(where: str, group: Any) -> None:
    """Refuse a group of nodes that is not written as the documentation says."""
    if not isinstance(group, dict):
        raise BadCluster(f"{where} must be a map such as {{type: v100, count: 8, gpus: 4}}.")
    _check_keys(where, group, NODE_KEYS)
    if "gpus" not in group:
        raise BadCluster(f"{where} does not say how many gpus a node has; add it.")
    if "rack" in group and "nodes_per_rack" in group:
        raise BadCluster(f"{where} has both rack and nodes_per_rack; keep one of them.")
    for key in ("count", "gpus", "nodes_per_rack", "cpus", "memory_mb"):
        if key in group and (type(group[key]) is not int or group[key] < 1):
            raise BadCluster(f"{where}: {key} is {group[key]!r}; it must be a whole number from 1 up.")
    for key in ("type", "name", "rack"):
        if key in group and (not isinstance(group[key], str) or not group[key]):
            raise BadCluster(f"{where}: {key} is {group[key]!r}; it must be a name (quote what looks like a number).")


def _check_size(where: str, gpus: int) -> None:
    if gpus > MAX_GPUS:
        raise BadCluster(f"{where} describes {gpus:,} GPUs; write at most {MAX_GPUS:,}.")


def _queue(path: Path, name: Any, settings: Any) -> Queue:
    """One queue of a YAML file."""
    where = f"{path}, queue {name!r}"
    if not isinstance(name, str):
        raise BadQueue(f"{where}: its path must be a name such as org/team (in quotes if it looks like a number).")
    if not isinstance(settings, dict):
        raise BadQueue(f"{where} must be a map such as {{weight: 2, gpus_max: 64}}.")
    _check_keys(where, settings, QUEUE_KEYS)
    for key in ("gpus_min", "gpus_max"):
        if settings.get(key) is not None and type(settings[key]) is not int:
            raise BadQueue(f"{where}: {key} is {settings[key]!r}; it must be a whole number.")
    if type(settings.get("weight", 1)) not in (int, float):
        raise BadQueue(f"{where}: weight is {settings['weight']!r}; it must be a number.")
    given: dict[str, Any] = {key: value for key, value in settings.items() if value is not None}
    for key in ("members", "admins"):
        names = given.get(key, [])
        if not isinstance(names, list) or any(type(user) is not str for user in names):
            raise BadQueue(f"{where}: {key} is {names!r}; it must be a list of users, such as [ann, '@students'].")
        given[key] = tuple(names)
    return Queue(name, **given)


def _load_yaml(path: Path, example: str) -> dict[str, Any]:
    """The map at the top of a YAML file, without unknown keys and without a key twice."""
    import yaml  # imported late: most runs name their cluster in the short form

    class Loader(yaml.SafeLoader):
        """Refuses a key that comes twice; by itself the last would win in silence."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            twice = next((key for key in keys if keys.count(key) > 1), None)
            if twice is not None:
                raise BadCluster(f"{path} has the key {twice!r} twice in one map; keep one of them.")
            return super().construct_mapping(node, deep)

    try:
        # The loader is a safe one: it makes plain values alone.
        content = yaml.load(path.read_text("utf-8-sig"), Loader)
    except FileNotFoundError:
        raise BadCluster(f"There is no file {path}; check the path.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as why:
        raise BadCluster(f"{path} cannot be read as YAML ({' '.join(str(why).split())}); fix it.") from None
    if not isinstance(content, dict):
        section = example.partition(":")[0]
        raise BadCluster(f"{path} must be a YAML file with a section `{section}:`, such as '{example}'.")
    _check_keys(str(path), content, FILE_KEYS)
    return content


def _check_keys(where: str, given: Collection[Any], allowed: Sequence[str]) -> None:
    """Refuse a key nobody would read, and name the one that was probably meant."""
    for key in given:
        if key not in allowed:
            hint = did_you_mean(str(key), allowed)
            raise BadCluster(f"{where} has an unknown key {key!r}.{hint} Known are {', '.join(allowed)}.")
