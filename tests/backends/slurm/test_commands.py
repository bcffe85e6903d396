"""How commands of Slurm fail; programs of the test stand in for them."""

import time
from pathlib import Path

import pytest

from horae.backends.driver import OutOfSight, PiecesRefused
from horae.backends.slurm.commands import PROGRAMS, NoSlurm, SlurmCommands


def commands(folder: Path, limit_s: float = 20.0, **scripts: str) -> SlurmCommands:
    """Commands that are shell scripts; those that are not named succeed without a word."""
    for name in PROGRAMS:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{scripts.get(name, '')}\n")
        path.chmod(0o755)
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "SBATCH_PARTITION": "other", "HOME": "/root"}
    return SlurmCommands(environment, limit_s, limit_s, limit_s)


def test_a_controller_that_is_down_is_out_of_sight(tmp_path: Path) -> None:
    with pytest.raises(OutOfSight, match=r"does not answer: Slurmctld\(primary\) at a is DOWN"):
        commands(tmp_path, scontrol="echo 'Slurmctld(primary) at a is DOWN'; echo '****'; exit 1").check_controller()


def test_a_controller_that_is_up_is_in_sight(tmp_path: Path) -> None:
    commands(tmp_path, scontrol="echo 'Slurmctld(primary) at a is UP'").check_controller()


def test_a_command_that_hangs_is_given_up(tmp_path: Path) -> None:
    began_s = time.monotonic()
    with pytest.raises(OutOfSight, match=r"sinfo gave no answer within 0\.2 s"):
        commands(tmp_path, 0.2, sinfo="exec sleep 30").read("sinfo", "-h")
    assert time.monotonic() - began_s < 10


def test_a_command_that_fails_shows_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutOfSight, match="squeue failed: slurm_load_jobs error"):
        commands(tmp_path, squeue="echo 1; echo 'slurm_load_jobs error' >&2; exit 1").read("squeue")


def test_what_counts_as_nothing_is_no_failure(tmp_path: Path) -> None:
    slurm = commands(tmp_path, scontrol="echo 'No topology information available' >&2; exit 1")
    assert slurm.read("scontrol", "show", "topology", nothing="No topology") == ""


@pytest.mark.parametrize(
    "message",
    [
        "Batch job submission failed: Unable to contact slurm controller (connect failure)",
        "Batch job submission failed: Socket timed out on send/recv operation",
        "Munge encode failed: Failed to access socket",
        "Batch job submission failed: Protocol authentication error",
    ],
)
def test_a_submission_without_an_answer_may_have_succeeded(tmp_path: Path, message: str) -> None:
    with pytest.raises(OutOfSight):
        commands(tmp_path, sbatch=f"echo 'sbatch: error: {message}' >&2; exit 1").submit([], "")


def test_a_refused_submission_keeps_the_words_of_slurm(tmp_path: Path) -> None:
    message = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    with pytest.raises(PiecesRefused, match="Invalid account"):
        commands(tmp_path, sbatch=f"echo '{message}' >&2; exit 1").submit([], "")


def test_the_script_goes_to_sbatch_from_a_clean_environment(tmp_path: Path) -> None:
    commands(tmp_path, sbatch=f'cat > {tmp_path}/script; env > {tmp_path}/env; echo "$@" > {tmp_path}/options').submit(
        ["--parsable"], "#!/bin/sh\n"
    )
    assert (tmp_path / "script").read_text() == "#!/bin/sh\n"
    assert (tmp_path / "options").read_text() == "--parsable\n"
    assert "SBATCH_PARTITION" not in (tmp_path / "env").read_text()


def test_a_job_that_ends_by_itself_is_cancelled_well_enough(tmp_path: Path) -> None:
    commands(tmp_path, scancel="echo 'Job/step already completing or completed' >&2; exit 1").cancel("horae-s-a-1")


def test_a_cancellation_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutOfSight, match="Access/permission denied"):
        commands(tmp_path, scancel="echo 'Access/permission denied' >&2; exit 1").cancel("horae-s-a-1")


def test_a_machine_without_slurm_is_a_mistake_of_the_user(tmp_path: Path) -> None:
    with pytest.raises(NoSlurm, match="sbatch was not found"):
        SlurmCommands({"PATH": str(tmp_path)})


def test_times_do_not_depend_on_the_time_zone_and_jobs_keep_theirs(tmp_path: Path) -> None:
    slurm = commands(tmp_path, squeue="date -d @0 +%H:%M", sbatch=f"date -d @0 +%H:%M > {tmp_path}/zone")
    slurm._environment["TZ"] = "Asia/Tokyo"
    assert slurm.read("squeue") == "00:00\n"
    slurm.submit([], "")
    assert (tmp_path / "zone").read_text() == "09:00\n"
