"""A small real Slurm on this machine: a controller and four nodes with made-up GPUs, for tests and demonstrations.

    python -m horae.testing.slurm_cluster start FOLDER     # prints how to use it
    python -m horae.testing.slurm_cluster stop FOLDER

Everything listens on loopback only, on free ports, and everything is kept in FOLDER. Only processes that were
started here are ended: daemons by their recorded process, and those of Slurm jobs by the `SLURM_CONF` in their
environment.
"""

from __future__ import annotations

import argparse
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from horae.backends.local.processes import Process, environment_of, process_ids
from horae.core.errors import UserError
from horae.testing.daemons import Daemons, free_ports, kill_all, until

#: The Debian and Ubuntu packages with all that is needed here.
INSTALL = (
    "apt-get install -y --no-install-recommends slurm-wlm slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins"
)
PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "squeue", "sbatch", "srun", "scancel", "scontrol")
CONTROLLER, MUNGE = "slurmctld", "munged"
#: The partition of all nodes.
PARTITION = "gpu"
#: Longest path of a Unix socket on Linux, in bytes.
_SOCKET_PATH = 107


@dataclass(frozen=True)
class MadeUpNode:
    """One made-up node."""

    name: str
    gpu_type: str
    rack: str
    gpus: int = 4
    cpus: int = 16
    memory_mb: int = 64_000


NODES = (
    MadeUpNode("v1", "v100", "rack1"),
    MadeUpNode("v2", "v100", "rack1"),
    MadeUpNode("p1", "p100", "rack2"),
    MadeUpNode("p2", "p100", "rack2"),
)


class SlurmTrouble(UserError):
    """Slurm cannot be started here."""


def missing_programs() -> list[str]:
    """Programs of Slurm and munge that are not installed."""
    return [program for program in PROGRAMS if not _find(program)]


def why_not() -> str:
    """Why no Slurm can be started on this machine, and how to change that; empty if it can."""
    missing = missing_programs()
    return f"{', '.join(missing)} not installed; `{INSTALL}` installs them" if missing else ""


class SlurmCluster:
    """A Slurm in a folder. `with SlurmCluster(folder) as slurm:` starts it, and stops it in the end."""

    def __init__(self, folder: Path, nodes: Sequence[MadeUpNode] = NODES, settings: Sequence[str] = ()) -> None:
        self.folder = folder.resolve()
        self.nodes = tuple(nodes)
        self.settings = tuple(settings)
        self.conf = self.folder / "slurm.conf"
        self._daemons = Daemons(self.folder)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self.stop)
            self.start()
            stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def environment(self) -> dict[str, str]:
        """The environment for Slurm's commands."""
        path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        return {"SLURM_CONF": str(self.conf), "PATH": path, "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}

    def run(self, *command: str, text: str = "") -> str:
        """The output of a Slurm command."""
        ran = subprocess.run(command, env=self.environment, input=text, capture_output=True, text=True, timeout=60)
        if ran.returncode:
            raise SlurmTrouble(f"{' '.join(command)} failed with {ran.returncode}: {ran.stderr.strip()}")
        return ran.stdout

    def start(self) -> None:
        """Start what does not run yet, and wait until every node is idle."""
        if reason := why_not():
            raise SlurmTrouble(f"Slurm cannot be started: {reason}.")
        self._write_files()
        self.start_munge()
        self.start_controller()
        for node in self.nodes:
            self.start_node(node.name)
        self.wait_for_nodes(*(node.name for node in self.nodes))

    def stop(self) -> None:
        """End all Slurm jobs and daemons of this folder, and drop the jobs. Harmless if nothing runs."""
        for name in self._daemons.names():
            if name != MUNGE:
                self._daemons.end(name)
        # Nobody starts processes of Slurm jobs any more; those that are left are found by their environment. One look
        # may miss a process that another one forks meanwhile.
        until(
            lambda: not self._kill_job_processes() and not self._kill_job_processes(),
            f"the Slurm jobs in {self.folder} to end",
        )
        self._daemons.end(MUNGE, signal.SIGTERM)
        for name in ("state", "spool"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def start_munge(self) -> None:
        """Start the daemon that signs Slurm's messages."""
        folder = self.folder / "munge"
        options = {"key-file": "key", "socket": "sock", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        paths = [f"--{option}={folder / name}" for option, name in options.items()]
        self._start(MUNGE, [MUNGE, "--foreground", "--force", *paths])
        until((folder / "sock").is_socket, "munge")

    def start_controller(self) -> None:
        """Start slurmctld, and wait until it answers."""
        self._start(CONTROLLER, [CONTROLLER, "-D", "-f", str(self.conf)])
        until(self.controller_answers, "the controller", self._daemons.log(CONTROLLER))

    def controller_answers(self) -> bool:
        """Whether slurmctld answers."""
        ping = subprocess.run(["scontrol", "ping"], env=self.environment, capture_output=True, text=True, timeout=60)
        return " is UP" in ping.stdout

    def kill_controller(self) -> None:
        """End slurmctld as `kill -9` does. Running jobs go on."""
        self._daemons.end(CONTROLLER)

    def start_node(self, node: str) -> None:
        """Start the slurmd of a node; `wait_for_nodes` waits for it."""
        self._start(node, ["slurmd", "-D", "-N", node, "-f", str(self.conf)])

    def kill_node(self, node: str) -> None:
        """End the slurmd of a node as `kill -9` does. Processes of its jobs go on."""
        self._daemons.end(node)

    def freeze(self, daemon: str) -> None:
        """Stop `slurmctld` or the slurmd of a node without ending it (SIGSTOP)."""
        self._daemons.send(daemon, signal.SIGSTOP)

    def thaw(self, daemon: str) -> None:
        """Let a frozen daemon go on (SIGCONT)."""
        self._daemons.send(daemon, signal.SIGCONT)

    def wait_for_nodes(self, *nodes: str, states: Sequence[str] = ("idle", "mixed", "allocated")) -> None:
        """Wait until every one of the nodes is in one of the states."""

        def ready() -> bool:
            rows = self.run("sinfo", "-h", "-N", "-p", PARTITION, "-n", ",".join(nodes), "-o", "%T").split()
            return len(rows) == len(nodes) and all(state in states for state in rows)

        until(ready, f"the nodes {', '.join(nodes)}", self._daemons.log(CONTROLLER))

    def _write_files(self) -> None:
        """Write the configuration, once: a restarted cluster keeps its ports."""
        if len(os.fsencode(self.folder / "munge" / "sock")) > _SOCKET_PATH:
            raise SlurmTrouble(f"The folder {self.folder} cannot be used: its path is too long for a Unix socket.")
        for name in ("munge", "state", "log", "gpus", *(f"spool/{node.name}" for node in self.nodes)):
            (self.folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        if self.conf.exists():
            return
        for number in range(max(node.gpus for node in self.nodes)):
            (self.folder / "gpus" / f"nvidia{number}").symlink_to("/dev/null")
        key = self.folder / "munge" / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(1024))
        (self.folder / "gres.conf").write_text(self._gres_conf(), encoding="utf-8")
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n", encoding="utf-8")
        (self.folder / "topology.conf").write_text(self._topology_conf(), encoding="utf-8")
        self.conf.write_text(self._slurm_conf(free_ports(1 + len(self.nodes))), encoding="utf-8")

    def _slurm_conf(self, ports: Sequence[int]) -> str:
        host, user = socket.gethostname().split(".")[0], pwd.getpwuid(os.getuid()).pw_name
        nodes = "\n".join(
            f"NodeName={node.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={node.cpus} "
            f"RealMemory={node.memory_mb} Gres=gpu:{node.gpu_type}:{node.gpus} Feature={node.gpu_type}"
            for node, port in zip(self.nodes, ports[1:], strict=True)
        )
        settings = "\n".join(self.settings)
        return _SLURM_CONF.format(
            folder=self.folder, host=host, user=user, port=ports[0], nodes=nodes, partition=PARTITION, settings=settings
        )

    def _gres_conf(self) -> str:
        lines = [
            f"NodeName={node.name} Name=gpu Type={node.gpu_type} File={self.folder}/gpus/nvidia[0-{node.gpus - 1}]"
            for node in self.nodes
        ]
        return "\n".join(["AutoDetect=off", *lines, ""])

    def _topology_conf(self) -> str:
        racks = sorted({node.rack for node in self.nodes})
        lines = [
            f"SwitchName={rack} Nodes={','.join(node.name for node in self.nodes if node.rack == rack)}"
            for rack in racks
        ]
        return "\n".join([*lines, f"SwitchName=spine Switches={','.join(racks)}", ""])

    def _start(self, name: str, command: Sequence[str]) -> None:
        """Start a daemon, unless it runs."""
        self._daemons.start(name, [_find(command[0]) or command[0], *command[1:]], self.environment)

    def _kill_job_processes(self) -> int:
        """Kill the processes of Slurm jobs and steps of this cluster, and return their number."""
        found = [pid for pid in process_ids() if pid != os.getpid() and self._is_of_a_job(pid)]
        kill_all(found)
        return len(found)

    def _is_of_a_job(self, pid: int) -> bool:
        """Whether a living process belongs to a job of this cluster, or is about to start one.

        A shell of the user has no job id. Neither has what a slurmd forked a moment before it ended, but its program is
        still Slurm's.
        """
        environment = environment_of(pid)
        if f"SLURM_CONF={self.conf}" not in environment or Process.of(pid).start_time == 0:
            return False
        has_id = any(entry.startswith("SLURM_JOB_ID=") for entry in environment)
        return has_id or _program_of(pid).startswith("slurm")


_SLURM_CONF = """\
ClusterName=horae
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/sock
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool/%n
SlurmdLogFile={folder}/log/%n.log
# A machine with two cores claims sixteen for each node.
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
TopologyPlugin=topology/tree
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
# Slurm's own values let a job wait for up to three seconds before it is looked at.
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0
GresTypes=gpu
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=10
InactiveLimit=0
KillWait=5
MinJobAge=300
{settings}
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=others Nodes=ALL MaxTime=INFINITE State=UP
"""


def _find(program: str) -> str | None:
    """The path of a program; daemons are in folders that are not in every user's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


def _program_of(pid: int) -> str:
    """Name of the program that a process runs; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Start or stop the Slurm of a folder."""
    parser = argparse.ArgumentParser(prog="python -m horae.testing.slurm_cluster", description="A small real Slurm.")
    parser.add_argument("action", choices=("start", "stop"))
    parser.add_argument("folder", type=Path, help="where everything is kept, such as build/slurm")
    options = parser.parse_args(arguments)
    cluster = SlurmCluster(options.folder)
    try:
        if options.action == "stop":
            cluster.stop()
            return 0
        began_s = time.monotonic()
        cluster.start()
    except UserError as why:
        sys.stderr.write(f"{why}\n")
        return 1
    sys.stdout.write(_greeting(cluster.environment, cluster.folder, time.monotonic() - began_s))
    return 0


def _greeting(environment: Mapping[str, str], folder: Path, seconds: float) -> str:
    return (
        f"# Slurm is ready after {seconds:.1f} s. Now: sinfo -N, or sbatch --gres=gpu:v100:2 --wrap hostname\n"
        f"export SLURM_CONF={environment['SLURM_CONF']}\n"
        f"# python -m horae.testing.slurm_cluster stop {folder}\n"
    )


if __name__ == "__main__":
    sys.exit(main())
