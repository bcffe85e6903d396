"""The root helper takes nothing on trust: not the account, not the limits, not the bytes of a request."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from horae.backends.local.isolation.account_helper import (
    Account,
    ControlGroups,
    GroupLimits,
    HelperSettings,
    RequestRefused,
    check_account,
    find_account,
    least_user_id,
    read_limits,
    scope_command,
    systemd_owns_groups,
)
from horae.backends.local.isolation.accounts import AccountHelper, JobRefused
from tests.backends.job_accounts import (
    GROUP,
    GROUP_ID,
    MadeUpAccounts,
    forked_helper,
    groups_left,
    needs_root,
    open_folder,
)
from tests.backends.real import lives, until

SETTINGS = HelperSettings(service_uid=990, job_group=GROUP)


@pytest.fixture
def asked() -> Iterator[tuple[AccountHelper, MadeUpAccounts, int]]:
    with ExitStack() as stack:
        accounts = MadeUpAccounts(stack.enter_context(open_folder()))
        helper, pid = stack.enter_context(forked_helper(accounts))
        yield helper, accounts, pid


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def account(uid: int = 1001, gid: int = 1001, groups: tuple[int, ...] = (1001, GROUP_ID), shell: str = "") -> Account:
    return Account("x", uid, gid, groups, "/home/x", shell or "/bin/bash")


@pytest.mark.parametrize(
    ("refused", "why"),
    [
        (account(uid=0), "root's rights"),
        (account(gid=0), "root's rights"),
        (account(groups=(1001, 0, GROUP_ID)), "root's rights"),
        (account(uid=999), "system account"),
        (account(uid=65534, groups=(65534,)), "is not in the group"),
        (account(groups=(1001,)), "is not in the group"),
        (account(shell="/usr/sbin/nologin"), "nobody may work"),
        (account(shell="/bin/false"), "nobody may work"),
    ],
)
def test_accounts_that_no_job_may_have_are_refused(refused: Account, why: str) -> None:
    with pytest.raises(RequestRefused, match=why):
        check_account(refused, SETTINGS)
    check_account(account(), SETTINGS)


def test_the_service_runs_no_job_under_its_own_account_and_a_missing_group_allows_nobody() -> None:
    with pytest.raises(RequestRefused, match="the service itself"):
        check_account(account(uid=1500), HelperSettings(service_uid=1500, job_group=GROUP))
    with pytest.raises(RequestRefused, match="no group 'no-such-group'"):
        check_account(account(), HelperSettings(service_uid=990, job_group="no-such-group"))


def test_accounts_are_those_of_the_machine(tmp_path: Path) -> None:
    for name in ("a\0b", "\ud800"):
        with pytest.raises(RequestRefused, match="no account"):
            find_account(name)
    assert find_account("root").uid == 0
    with pytest.raises(RequestRefused, match="no account"):
        find_account("no-such-account")
    (tmp_path / "login.defs").write_text("# UID_MIN 5\nUID_MIN\t\t2000\n")
    assert least_user_id(str(tmp_path / "login.defs")) == 2000
    assert least_user_id(str(tmp_path / "missing")) == 1000


@pytest.mark.parametrize(
    "limits",
    [
        None,
        [],
        {"memory_mb": -1},
        {"memory_mb": "64"},
        {"memory_mb": True},
        {"cpus": float("nan")},
        {"cpus": float("inf")},
        {"tasks": 0},
        {"devices": "/dev/nvidia0"},
        {"devices": [1]},
        {"devices": ["/dev/sda"]},
        {"devices": ["/dev/nvidia0/../sda"]},
        {"devices": ["nvidia0"]},
    ],
)
def test_limits_that_make_no_sense_are_refused(limits: Any) -> None:
    with pytest.raises(RequestRefused):
        read_limits(limits, "/dev/nvidia")


def test_limits_are_read_as_they_are_given() -> None:
    given = {"memory_mb": 64, "cpus": 2, "cpu_weight": 200, "tasks": 10, "devices": ["/dev/nvidia0"]}
    assert read_limits(given, "/dev/nvidia") == GroupLimits(64, 2.0, 200, 10, ("/dev/nvidia0",))
    assert read_limits({}, "/dev/nvidia") == GroupLimits()


@needs_root
@pytest.mark.parametrize(
    ("name", "account_of", "why"),
    [
        ("root", (0, (0,)), "root's rights"),
        ("daemon", (2, (GROUP_ID,)), "system account"),
        ("carl", (54330, (54330,)), "is not in the group"),
    ],
)
def test_the_helper_refuses_whatever_the_service_says(
    asked: tuple[AccountHelper, MadeUpAccounts, int], name: str, account_of: tuple[int, tuple[int, ...]], why: str
) -> None:
    helper, accounts, _ = asked
    accounts.add(name, *account_of)
    # The helper was forked before: for it these accounts are unknown, and unknown ones are refused as well.
    with pytest.raises(JobRefused, match="no account"):
        helper.open(name, "a-1.1", {})
    with forked_helper(accounts) as (knowing, _), pytest.raises(JobRefused, match=why):
        knowing.open(name, "a-1.1", {})


@pytest.mark.long
@needs_root
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"[" * 5000,
        b'"open"',
        b'{"open": null}',
        b'{"open": {"account": "ann", "attempt": "../../x", "limits": {}}}',
        b'{"open": {"account": "ann", "attempt": "a-1.1", "limits": {}}}',  # without a descriptor
        b'{"open": {"account": 7, "attempt": "a-1.1", "limits": {}}}',
        b'{"kill": "../../../x"}',
        b'{"kill": 1}',
        b'{"exec": ["id"]}',
        b"\xff\xfe",
    ],
)
def test_malformed_lines_are_refused_and_the_helper_lives_on(
    asked: tuple[AccountHelper, MadeUpAccounts, int], line: bytes
) -> None:
    helper, _, pid = asked
    helper._channel.sendall(line + b"\n")
    assert "refused" in json.loads(helper._reader.readline())
    os.close(helper.open("ann", "a-1.1", {}))
    assert lives(pid)


@needs_root
def test_too_many_descriptors_too_long_lines_and_no_sockets_are_refused(
    asked: tuple[AccountHelper, MadeUpAccounts, int],
) -> None:
    helper, _, pid = asked
    request = json.dumps({"open": {"account": "ann", "attempt": "a-1.1", "limits": {}}}).encode() + b"\n"
    handles = open_files(pid)
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        for many in (2, 5, 100):
            socket.send_fds(helper._channel, [request], [null] * many)
            assert json.loads(helper._reader.readline())["refused"] == "too many descriptors"
        socket.send_fds(helper._channel, [request], [null])
        assert json.loads(helper._reader.readline())["refused"] == "the descriptor is no socket"
    finally:
        os.close(null)
    helper._channel.sendall(b"x" * 70_000)
    assert json.loads(helper._reader.readline())["refused"] == "the request is too long"
    until(lambda: open_files(pid) == handles, "for descriptors to be closed")


@pytest.mark.long
@needs_root
@pytest.mark.parametrize(
    "line", [b"{", b'{"start": {"argv": [], "env": {}, "cwd": "/"}}', b'{"signal": 99, "all": true}']
)
def test_a_warden_that_hears_nonsense_ends_its_attempt(
    asked: tuple[AccountHelper, MadeUpAccounts, int], line: bytes
) -> None:
    helper, _, _ = asked
    with socket.socket(fileno=helper.open("ann", "a-1.1", {})) as runner, runner.makefile("rb") as answers:
        runner.settimeout(10)
        assert "cgroup" in json.loads(answers.readline())
        runner.sendall(line + b"\n")
        assert answers.readline() == b""
    until(lambda: not groups_left(), "for the control group to be removed")


@needs_root
def test_a_process_starts_though_all_before_it_have_ended(asked: tuple[AccountHelper, MadeUpAccounts, int]) -> None:
    helper, _, _ = asked
    start = json.dumps({"start": {"argv": ["true"], "env": {"PATH": os.environ["PATH"]}, "cwd": "/"}}).encode() + b"\n"
    null = os.open(os.devnull, os.O_RDWR)
    with socket.socket(fileno=helper.open("ann", "a-1.1", {})) as runner, runner.makefile("rb") as answers:
        runner.settimeout(10)
        assert "cgroup" in json.loads(answers.readline())
        for _ in range(3):
            socket.send_fds(runner, [start], [null] * 3)
            pid = json.loads(answers.readline())["pid"]
            assert json.loads(answers.readline()) == {"exit": pid, "code": 0, "signal": 0, "over_memory": False}
    os.close(null)
    until(lambda: not groups_left(), "for the control group to be removed")


def test_a_scope_of_systemd_has_the_same_limits() -> None:
    words = scope_command("horae-x.scope", GroupLimits(64, 1.5, 200, 10, ("/dev/nvidia0", "/dev/nvidiactl")))
    assert words[:5] == ["systemd-run", "--scope", "--quiet", "--collect", "--unit=horae-x.scope"]
    assert words[-1] == "--"
    properties = [word for before, word in pairwise(words) if before == "--property"]
    assert properties == [
        "Delegate=yes",
        "TasksMax=11",
        "CPUWeight=200",
        "CPUQuota=150%",
        "MemoryMax=64M",
        "MemorySwapMax=0",
        "DevicePolicy=closed",
        "DeviceAllow=/dev/nvidia0 rw",
        "DeviceAllow=/dev/nvidiactl rw",
    ]
    assert "DevicePolicy=closed" not in scope_command("x", GroupLimits())


def test_the_version_of_control_groups_is_found_by_their_files(tmp_path: Path) -> None:
    with pytest.raises(RequestRefused, match="no control groups"):
        ControlGroups.find("s", str(tmp_path / "none"))
    second = tmp_path / "v2"
    second.mkdir()
    (second / "cgroup.controllers").write_text("cpu memory pids")
    assert systemd_owns_groups(str(second), str(tmp_path))
    assert not systemd_owns_groups(str(second), str(tmp_path / "no-systemd"))
    groups = ControlGroups.find("s", str(second))
    assert (groups.version, groups.limits_devices) == (2, False)
    made = groups.make("a-1.1", GroupLimits(64, 1.5, 200, 10))
    content = {path.name: path.read_text() for path in Path(made.folders[0]).iterdir()}
    assert content == {
        "pids.max": "10",
        "cpu.weight": "200",
        "cpu.max": "150000 100000",
        "memory.max": str(64 << 20),
        "memory.oom.group": "1",
        "memory.swap.max": "0",
    }
