"""What adoption needs, in sentences."""

from horae.backends.slurm.adoption_checks import adoption_report

GOOD = {"JobSubmitPlugins": "lua", "RequeueExitHold": "75", "GresTypes": "gpu", "SlurmUser": "slurm(64030)"}
PARTITION = {"PartitionName": "gpu", "OverSubscribe": "NO"}


def test_a_prepared_site_has_nothing_to_say() -> None:
    report = adoption_report("gpu", GOOD, PARTITION, "root", operator=True)
    assert (report.errors, report.warnings) == ((), ())


def test_missing_rights_are_told_with_what_to_do() -> None:
    (error,) = adoption_report("gpu", GOOD, PARTITION, "horae", operator=False).errors
    assert error == (
        "horae may not change jobs of others in Slurm: run the service as root or as slurm, or make horae an operator "
        "with `sacctmgr modify user horae set adminlevel=operator`."
    )


def test_missing_settings_are_told_with_what_to_do() -> None:
    warnings = adoption_report("gpu", {"RequeueExit": "70-80"}, PARTITION, "root", operator=True).warnings
    assert [
        words in text
        for words, text in zip(("slurm install", "=75 into", "RequeueExitHold instead"), warnings, strict=True)
    ] == [True] * 3


def test_a_partition_that_cannot_be_ordered() -> None:
    assert "no partition 'gpu'" in adoption_report("gpu", GOOD, {}, "root", operator=True).errors[0]
    whole = {**PARTITION, "OverSubscribe": "EXCLUSIVE"}
    assert "whole nodes only" in adoption_report("gpu", GOOD, whole, "root", operator=True).errors[0]
    assert (
        "does not manage GPUs" in adoption_report("gpu", {**GOOD, "GresTypes": ""}, PARTITION, "root", True).errors[0]
    )
