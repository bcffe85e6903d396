"""The flags by which services on one partition see each other; test_adoption.py has them on a real Slurm."""

from __future__ import annotations

import pytest

from horae.backends.driver import PiecesRefused
from horae.backends.slurm.commands import SlurmCommands
from horae.backends.slurm.partition_flag import PartitionFlag, PartitionTaken, read_flags


class FlagQueue(SlurmCommands):
    """Slurm's queue of flags alone."""

    def __init__(self) -> None:
        self.jobs: dict[int, str] = {}
        self.next = 1

    def read(self, *command: str, nothing: str = "") -> str:
        return "\n".join(f"{number}|ann|{name}" for number, name in self.jobs.items())

    def submit(self, options: list[str], script: str) -> None:
        self.jobs[self.next] = next(word for word in options if word.startswith("--job-name")).partition("=")[2]
        self.next += 1

    def change(self, *command: str) -> None:
        del self.jobs[int(command[-1])]


def test_a_flag_is_raised_once_and_found_again() -> None:
    queue = FlagQueue()
    PartitionFlag(queue, "gpu", "s1").raise_flag()
    flag = PartitionFlag(queue, "gpu", "s1")
    flag.raise_flag()
    assert len(queue.jobs) == 1
    assert flag.is_flag("1")
    assert not flag.is_flag("1_2")


def test_another_service_is_refused_with_what_to_do() -> None:
    queue = FlagQueue()
    PartitionFlag(queue, "gpu", "s1").raise_flag()
    with pytest.raises(PartitionTaken, match=r"another Horae service \(s1, on .*Slurm job 1 of ann.*`scancel 1`"):
        PartitionFlag(queue, "gpu", "s2").raise_flag()
    assert len(queue.jobs) == 1, "the second one leaves no flag"


def test_after_a_take_over_the_old_service_does_nothing_any_more() -> None:
    queue = FlagQueue()
    old, new = PartitionFlag(queue, "gpu", "s1"), PartitionFlag(queue, "gpu", "s2")
    old.raise_flag()
    del queue.jobs[1]
    new.raise_flag()
    assert "another Horae service (s2" in old.check()
    assert new.check() == ""


def test_a_flag_that_slurm_has_forgotten_is_raised_again() -> None:
    queue = FlagQueue()
    flag = PartitionFlag(queue, "gpu", "s1")
    flag.raise_flag()
    queue.jobs.clear()
    assert flag.check() == ""
    assert list(queue.jobs) == [2]


def test_of_two_flags_at_once_the_older_one_stays() -> None:
    queue = FlagQueue()
    queue.jobs = {5: "horae-service-s2@b", 4: "horae-service-s1@a", 6: "horae-service-s1@a"}
    assert "(s1, on a" in PartitionFlag(queue, "gpu", "s2").check()
    assert PartitionFlag(queue, "gpu", "s1").check() == ""
    assert list(queue.jobs) == [4]


def test_a_site_that_refuses_the_flag_does_without(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(FlagQueue):
        def submit(self, options: list[str], script: str) -> None:
            raise PiecesRefused("Invalid account")

    flag = PartitionFlag(Refusing(), "gpu", "s1")
    flag.raise_flag()
    assert flag.check() == ""
    assert [record.getMessage() for record in caplog.records] == [
        "Other services will not see that partition gpu is taken: Slurm refused the flag, a held job (Invalid account)."
    ]


def test_other_jobs_are_no_flags() -> None:
    assert read_flags("7|ann|train\n8_1|ann|horae-service-x@y\nhorae-service-x\n") == []
