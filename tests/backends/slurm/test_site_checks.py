"""Settings of sites, and what is said about them."""

import pytest

from horae.backends.slurm.command_output import read_config, read_partition
from horae.backends.slurm.site_checks import SiteReport, check_site

CONFIG = """\
Configuration data as of 2024-05-01T12:00:00
CompleteWait            = 0 sec
DisableRootJobs         = No
GresTypes               = gpu
JobSubmitPlugins        = (null)
MaxMemPerNode           = UNLIMITED
MinJobAge               = 300 sec
PreemptMode             = OFF
PreemptType             = preempt/none
PrivateData             = none
ProctrackType           = proctrack/cgroup
RequeueExit             = (null)
RequeueExitHold         = (null)
SelectType              = select/cons_tres
SelectTypeParameters    = CR_CORE_MEMORY

Cgroup Support Configuration:
ConstrainDevices        = yes
"""
PARTITION = """\
PartitionName=gpu
   AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL
   DefaultTime=01:00:00 DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO
   MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED
   PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO OverSubscribe=NO
   OverTimeLimit=NONE PreemptMode=OFF
   State=UP TotalCPUs=64 TotalNodes=4 SelectTypeParameters=NONE
   DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
"""


def report(config: str = "", partition: str = "", user: str = "horae") -> SiteReport:
    """The report on a sound site, with some settings replaced: `Key=value`."""
    settings, limits = read_config(CONFIG), read_partition(PARTITION)
    return check_site("gpu", settings | read_partition(config), limits | read_partition(partition), user, ["horae"])


def test_a_sound_site_gives_no_cause_for_words() -> None:
    assert report() == SiteReport()


def test_an_unknown_partition_is_an_error() -> None:
    assert check_site("gpu", read_config(CONFIG), {}, "horae", []).errors == (
        "Slurm has no partition 'gpu'. `sinfo -s` lists them.",
    )


@pytest.mark.parametrize(
    ("config", "partition", "user", "sentence"),
    [
        ("", "State=DRAIN", "horae", "Partition gpu is DRAIN: Slurm starts no jobs there"),
        ("", "RootOnly=YES", "horae", "Only root may submit to partition gpu, and the service runs as horae"),
        ("", "DisableRootJobs=YES", "root", "takes no jobs of root"),
        ("DisableRootJobs=Yes", "", "root", "takes no jobs of root"),
        ("", "AllowGroups=vision,nlp", "horae", "is for the groups vision,nlp, and horae is in none of them"),
        ("", "OverSubscribe=EXCLUSIVE", "horae", "whole nodes only (OverSubscribe=EXCLUSIVE)"),
        ("SelectType=select/linear", "", "horae", "whole nodes only (SelectType=select/linear)"),
        ("GresTypes=mps", "", "horae", "GresTypes in slurm.conf must name gpu"),
    ],
)
def test_what_keeps_jobs_from_running_is_an_error(config: str, partition: str, user: str, sentence: str) -> None:
    (error,) = report(config, partition, user).errors
    assert sentence in error


@pytest.mark.parametrize(
    ("config", "partition", "sentence"),
    [
        ("", "MaxTime=1-00:00:00", "ends every job after 1-00:00:00"),
        ("", "MaxNodes=2", "at most 2 nodes"),
        ("", "MaxCPUsPerNode=8", "at most 8 CPUs"),
        ("", "AllowAccounts=team", "AllowAccounts=team"),
        ("RequeueExit=75", "", "exit with 75 (RequeueExit). Batch scripts of Horae exit with 0"),
        ("RequeueExitHold=0-3", "", "remove 0 there"),
        ("RequeueExit=0", "", "remove 0 there"),
        ("SelectTypeParameters=CR_CORE", "", "does not count memory"),
        ("", "MaxMemPerNode=32000", "at most 32000 MB (MaxMemPerNode)"),
        ("PreemptType=preempt/qos", "PreemptMode=REQUEUE", "may preempt"),
        ("PrivateData=jobs,usage", "", "cannot be seen"),
        ("MinJobAge=2", "", "forgets ended jobs after 2 s"),
        ("CompleteWait=32", "", "may wait 32 s"),
        ("JobSubmitPlugins=lua", "", "JobSubmitPlugins=lua"),
        ("ProctrackType=proctrack/pgid", "", "may outlive their job"),
        ("ConstrainDevices=no", "", "ignores CUDA_VISIBLE_DEVICES"),
    ],
)
def test_what_is_worth_knowing_is_a_warning(config: str, partition: str, sentence: str) -> None:
    found = report(config, partition)
    assert found.errors == ()
    assert [sentence in warning for warning in found.warnings] == [True]


def test_a_member_of_an_allowed_group_may_submit() -> None:
    assert report(partition="AllowGroups=nlp,horae").errors == ()
