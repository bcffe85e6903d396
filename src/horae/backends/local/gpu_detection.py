"""The GPUs of this machine: real GPUs, found through NVML, or virtual GPUs, declared by the operator.

NVML is the driver's library, which `nvidia-smi` also uses. It is called through ctypes, so nothing has to be
installed for it.
"""

from __future__ import annotations

import ctypes
import re
import socket
from collections.abc import Sequence
from typing import Any

from horae.core.cluster import Node
from horae.core.errors import UserError

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96
#: NVML_SUCCESS and NVML_ERROR_DRIVER_NOT_LOADED.
_SUCCESS, _NO_DRIVER = 0, 9
#: Words of a product name that state the maker, the memory or the socket, not the GPU type.
_NOT_THE_TYPE = re.compile(r"nvidia|tesla|geforce|quadro|graphics|generation|sxm\d*|pcie|nvl|hbm\d\w*|\d+gb")


class BadGpus(UserError):
    """No GPUs were found, or the declaration of virtual GPUs is wrong."""


def find_gpus(library: Any = None, host: str = "") -> dict[Node, tuple[int, ...]]:
    """The real GPUs of this machine: one node per GPU type, with the driver's GPU numbers.

    Empty if there is no driver or no GPU. `library` replaces NVML in tests.
    """
    library = library or _load()
    if library is None or (answer := library.nvmlInit_v2()) == _NO_DRIVER:
        return {}
    _check(answer, "start")
    try:
        names = [_product(library, number) for number in range(_count(library))]
    finally:
        library.nvmlShutdown()
    return nodes_of(names, host or socket.gethostname().split(".")[0])


def find_minor_numbers(library: Any = None) -> dict[int, int]:
    """Minor numbers of the real GPUs' device files by the driver's GPU numbers, for `/dev/nvidiaMINOR`."""
    library = library or _load()
    if library is None or library.nvmlInit_v2() != _SUCCESS:
        return {}
    try:
        return {number: _minor(library, number) for number in range(_count(library))}
    finally:
        library.nvmlShutdown()


def nodes_of(names: Sequence[str], host: str) -> dict[Node, tuple[int, ...]]:
    """One node per GPU type, and the numbers of its GPUs. `names` are product names, in the driver's order."""
    types = [type_name(name) for name in names]
    numbers = {gpu_type: tuple(k for k, other_type in enumerate(types) if other_type == gpu_type) for gpu_type in types}
    return {Node(f"{host}-{gpu_type}", gpu_type, len(found)): found for gpu_type, found in numbers.items()}


def type_name(product: str) -> str:
    """GPU type from a product name: `NVIDIA H100 80GB HBM3` is an `h100`, `GeForce RTX 3090` an `rtx3090`."""
    words = re.findall(r"[a-z0-9]+", product.lower())
    return "".join(word for word in words if not _NOT_THE_TYPE.fullmatch(word)) or "gpu"


def parse_virtual(text: str) -> tuple[Node, ...]:
    """Nodes of virtual GPUs from a text such as `v100:4,k80:4`: one node per GPU type, with the type as its name."""
    nodes = tuple(_virtual(part.strip()) for part in text.split(","))
    types = [node.gpu_type for node in nodes]
    twice = next((gpu_type for gpu_type in types if types.count(gpu_type) > 1), None)
    if twice:
        raise BadGpus(f"GPU type {twice!r} is declared twice: write it once, with the sum of both numbers.")
    return nodes


def _virtual(part: str) -> Node:
    match = re.fullmatch(r"([A-Za-z][A-Za-z0-9_.-]{0,62}):([1-9][0-9]{0,5})", part)
    if not match:
        raise BadGpus(f"{part!r} is not a number of GPUs: write TYPE:NUMBER, such as v100:4 or v100:4,k80:4.")
    gpu_type = match[1].lower()
    return Node(gpu_type, gpu_type, int(match[2]))


def _load() -> Any:
    """NVML; None on a machine without it."""
    try:
        return ctypes.CDLL(_LIBRARY)
    except OSError:
        return None


def _count(library: Any) -> int:
    count = ctypes.c_uint()
    _check(library.nvmlDeviceGetCount_v2(ctypes.byref(count)), "count the GPUs")
    return count.value


def _product(library: Any, number: int) -> str:
    handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
    _check(library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)), f"open GPU {number}")
    _check(library.nvmlDeviceGetName(handle, name, _NAME_BYTES), f"name GPU {number}")
    return name.value.decode(errors="replace")


def _minor(library: Any, number: int) -> int:
    handle, minor = ctypes.c_void_p(), ctypes.c_uint()
    _check(library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)), f"open GPU {number}")
    _check(library.nvmlDeviceGetMinorNumber(handle, ctypes.byref(minor)), f"number GPU {number}")
    return minor.value


def _check(answer: int, what: str) -> None:
    if answer != _SUCCESS:
        raise BadGpus(
            f"The GPU driver could not {what} (NVML error {answer}). See what `nvidia-smi` says, "
            f"or declare the GPUs, such as --gpus v100:4."
        )
