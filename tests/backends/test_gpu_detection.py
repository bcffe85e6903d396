"""GPUs found through a stand-in for NVML, and declared ones."""

from __future__ import annotations

from typing import Any

import pytest

from horae.backends.local import gpu_detection
from horae.backends.local.gpu_detection import BadGpus, find_gpus, find_minor_numbers, parse_virtual, type_name
from horae.core.cluster import Node


class Nvml:
    """Answers as the library does: status codes, results through pointers."""

    def __init__(self, *names: str, init: int = 0, name: int = 0) -> None:
        self.names, self.init, self.name_answer, self.open = names, init, name, False

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.open = self.init == 0
        return self.init

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = number + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:  # noqa: N802
        name.value = self.names[handle.value - 1].encode()[: size - 1]
        return self.name_answer

    def nvmlDeviceGetMinorNumber(self, handle: Any, minor: Any) -> int:  # noqa: N802
        minor._obj.value = len(self.names) - handle.value  # in the opposite order
        return 0


def test_device_files_are_numbered_as_the_driver_says() -> None:
    library = Nvml("NVIDIA H100", "NVIDIA H100", "NVIDIA H100")
    assert find_minor_numbers(library) == {0: 2, 1: 1, 2: 0}
    assert not library.open
    assert find_minor_numbers(Nvml(init=9)) == {}


def test_gpus_are_grouped_by_type_and_keep_their_numbers() -> None:
    library = Nvml("NVIDIA H100 80GB HBM3", "Tesla V100-SXM2-16GB", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe")
    assert find_gpus(library, host="box") == {
        Node("box-h100", "h100", 3): (0, 2, 3),
        Node("box-v100", "v100", 1): (1,),
    }
    assert not library.open


@pytest.mark.parametrize(
    ("product", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-40GB", "a100"),
        ("NVIDIA A100-PCIE-80GB", "a100"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("Tesla P100-PCIE-16GB", "p100"),
        ("Tesla K80", "k80"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce GTX 1080 Ti", "gtx1080ti"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx6000ada"),
        ("NVIDIA RTX A6000", "rtxa6000"),
        ("NVIDIA Graphics", "gpu"),
    ],
)
def test_a_type_is_what_is_left_of_a_products_name(product: str, expected: str) -> None:
    assert type_name(product) == expected


def test_no_library_no_driver_and_no_gpu_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_detection, "_LIBRARY", "libno-such-library.so.1")
    assert find_gpus() == {}
    assert find_gpus(Nvml("NVIDIA H100", init=9)) == {}
    assert find_gpus(Nvml()) == {}


@pytest.mark.parametrize("library", [Nvml("NVIDIA H100", init=18), Nvml("NVIDIA H100", name=15)])
def test_a_driver_in_trouble_is_told_with_what_to_do(library: Nvml) -> None:
    with pytest.raises(BadGpus, match=r"NVML error 1[58].*nvidia-smi.*--gpus v100:4"):
        find_gpus(library)
    assert not library.open


def test_virtual_gpus_make_a_node_for_each_type() -> None:
    assert parse_virtual("V100:4, k80:2") == (Node("v100", "v100", 4), Node("k80", "k80", 2))


@pytest.mark.parametrize("text", ["", "v100", "v100:", "v100:0", ":4", "v100:-1", "v100:4,", "v100:4;k80:4", "../x:1"])
def test_what_declares_no_gpus_is_told(text: str) -> None:
    with pytest.raises(BadGpus, match="write TYPE:NUMBER"):
        parse_virtual(text)


def test_a_type_declared_twice_is_told() -> None:
    with pytest.raises(BadGpus, match="'v100' is declared twice"):
        parse_virtual("v100:4,V100:2")
