"""Pins of policies from outside: whether placement can do what they say. A mistake names the job and the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from numbers import Integral

import numpy as np

from horae.core.snapshot import Snapshot
from horae.core.wishes import Wishes

#: GPU count by machine.
Pins = Mapping[int, int]


def problem_of_pins(now: Snapshot, wishes: Wishes) -> str:
    """The first thing wrong with the pins of wishes, as the end of a sentence; empty if nothing is."""
    if wishes.pins is None:
        return ""
    if not all(isinstance(pins, Mapping) for pins in wishes.pins):
        return "have pins that are no counts: give a mapping from machine to GPU count for each wish"
    counts = [count for pins in wishes.pins for count in pins.items()]
    if not all(isinstance(number, Integral) for count in counts for number in count):
        return "have pins that are no whole numbers: use numbers of now.machines, and whole GPUs"
    if any(not 0 <= machine < len(now.machines.names) or gpus < 1 for machine, gpus in counts):
        return "pin GPUs of a machine that does not exist, or none: use numbers of now.machines, and at least 1 GPU"
    rows = wishes.job.tolist()
    if len(set(rows)) < len(rows):
        twice = next(row for row, wanted in Counter(rows).items() if wanted > 1)
        return f"pin job {_job(now, twice)} twice: give each job one wish"
    if (wishes.partner != -1).any():
        return "have both pins and partners: leave one of them out"
    return next(_problems(now, rows, wishes.pins), "")


def _problems(now: Snapshot, rows: Sequence[int], pins: Sequence[Pins]) -> Iterator[str]:
    """Everything wrong with well-formed pins, each by itself and all together."""
    held = {row: _by_machine(now, row) for row in now.gpu_ledger.held}
    changed = {row: wanted for row, wanted in zip(rows, pins, strict=True) if held.get(row) != wanted}
    for row, wanted in changed.items():
        yield from _problems_of_gang(now, row, wanted)
    yield from _problems_of_room(now, set(rows), changed, held)


def _problems_of_gang(now: Snapshot, row: int, pins: Pins) -> Iterator[str]:
    """What is wrong with the GPU types and the GPU count of one job."""
    table, names, types = now.table, now.machines.names, now.cluster.gpu_types
    usable = table.rates[row] > 0
    type_of = {machine: int(now.machines.gpu_type[machine]) for machine in pins}
    for machine, gpu_type in type_of.items():
        if not usable[gpu_type]:
            can = ", ".join(name for name, fits in zip(types, usable, strict=True) if fits)
            yield (
                f"pin job {_job(now, row)} to machine {names[machine]}, and it cannot run on GPUs of type "
                f"{types[gpu_type]}: pin machines of {can}"
            )
    if len(set(type_of.values())) > 1:
        where = ", ".join(f"{names[machine]} with {types[gpu_type]}" for machine, gpu_type in type_of.items())
        yield f"pin job {_job(now, row)} to GPUs of several types ({where}): pin machines of one type"
    least, most, gpus = int(table.gpus_min[row]), int(table.gpus_max[row]), sum(pins.values())
    if not least <= gpus <= most:
        on = " and ".join(names[machine] for machine in pins) or "no machine"
        needs = str(least) if least == most else f"{least} to {most}"
        yield f"pin job {_job(now, row)} to {gpus} GPUs ({on}), and it needs {needs}: pin as many as now.gpus says"
    nodes = int(table.nodes[row])
    if nodes and sorted(pins.values()) != [least // nodes] * nodes:
        yield (
            f"pin job {_job(now, row)} to {' + '.join(map(str, pins.values())) or 'no'} GPUs, and it asks for {nodes} "
            f"nodes, alike: pin {least // nodes} on each of {nodes} machines"
        )


def _problems_of_room(
    now: Snapshot, wished: set[int], changed: Mapping[int, Pins], held: Mapping[int, Pins]
) -> Iterator[str]:
    """Machines with fewer GPUs than are pinned there, or whose GPUs other jobs keep."""
    staying = _staying(now, wished, changed, held)
    for machine in sorted({machine for pins in changed.values() for machine in pins}):
        takers = [row for row, pins in changed.items() if machine in pins]
        needed = sum(changed[row][machine] - _own(row, machine, changed, held, staying) for row in takers)
        on_machine = now.machines.of_gpu == machine
        open_gpus = np.flatnonzero(on_machine & now.gpu_ledger.gpu_open)
        kept = np.isin(now.gpu_ledger.holders[:, open_gpus], list(staying)).any(axis=0)
        if needed > int(np.count_nonzero(~kept)):
            size = (int(np.count_nonzero(on_machine)), len(open_gpus))
            keepers = sorted({*now.gpu_ledger.holders[:, open_gpus[kept]].ravel().tolist()} & staying - set(takers))
            yield _no_room(now, machine, size, {row: changed[row][machine] for row in takers}, keepers, wished)


def _staying(now: Snapshot, wished: set[int], changed: Mapping[int, Pins], held: Mapping[int, Pins]) -> set[int]:
    """Jobs whose GPUs no other job can have: they keep them by wish, or are protected.

    A protected job with a wish for more GPUs stays, too, if its queue may turn out to be full.
    """
    staying = {row for row in held if row in wished and row not in changed}
    for row in held.keys() - staying:
        grows = row in changed and sum(changed[row].values()) > sum(held[row].values()) and now.queues.has_maximum
        if now.table.protected_until_s[row] > now.now_s and (row not in wished or grows):
            staying.add(row)
    return staying


def _own(row: int, machine: int, changed: Mapping[int, Pins], held: Mapping[int, Pins], staying: set[int]) -> int:
    """GPUs of a machine that a staying job need not get from others: it has them."""
    return min(changed[row][machine], held[row].get(machine, 0)) if row in staying else 0


def _no_room(
    now: Snapshot, machine: int, size: tuple[int, int], takers: Mapping[int, int], keepers: list[int], wished: set[int]
) -> str:
    """Why a machine has too few GPUs for the pins. `size` is its GPU count, and the GPU count that takes jobs."""
    name, (gpus, open_gpus), wanted = now.machines.names[machine], size, sum(takers.values())
    pinned = [*takers, *(row for row in keepers if row in wished)]
    jobs = f"{'job' if len(pinned) == 1 else 'jobs'} {' and '.join(_job(now, row) for row in pinned)}"
    if len(pinned) == 1 and wanted > gpus:
        return f"pin {jobs} to {wanted} GPUs of machine {name}, which has {gpus}: spread the job over machines"
    if len(pinned) == 1 and wanted > open_gpus:
        return (
            f"pin {jobs} to {wanted} GPUs of machine {name}, of which {open_gpus} take jobs, since the others are "
            "drained or lost: count those that now.gpu_ledger.gpu_open has"
        )
    protected = [row for row in keepers if row not in wished]
    if protected:
        until_s = float(now.table.protected_until_s[protected[0]])
        return (
            f"pin {jobs} to {wanted} GPUs of machine {name}, where job {_job(now, protected[0])} keeps its GPUs for "
            f"another {until_s - now.now_s:g} s (lease or min_runtime): pin GPUs elsewhere, or none until then"
        )
    return f"pin {jobs} to more GPUs of machine {name} than the {open_gpus} it has: pin no GPU twice, leave a job out"


def _by_machine(now: Snapshot, row: int) -> Pins:
    return dict(Counter(now.machines.of_gpu[list(now.gpu_ledger.held[row])].tolist()))


def _job(now: Snapshot, row: int) -> str:
    return repr(now.table.specs[row].id)
