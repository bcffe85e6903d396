"""The job_submit.lua: written, merged with a site's own, taken away. What Slurm does with it: test_adoption.py."""

from pathlib import Path

import pytest

from horae.backends.slurm.submit_plugin import (
    FILE,
    CannotInstall,
    install,
    installed_partitions,
    settings_lines,
    uninstall,
    with_partitions,
)

SITE = """\
function slurm_job_submit(job, partitions, user)
  return slurm.SUCCESS
end

return slurm.SUCCESS
"""


def test_partitions_come_and_go_and_a_file_that_does_nothing_stays(tmp_path: Path) -> None:
    install(tmp_path, "gpu")
    install(tmp_path, "big")
    install(tmp_path, "gpu")
    assert installed_partitions((tmp_path / FILE).read_text()) == ["big", "gpu"]
    assert uninstall(tmp_path, "gpu")
    assert not uninstall(tmp_path, "gpu")
    assert uninstall(tmp_path, "big")
    rest = (tmp_path / FILE).read_text()
    assert "horae" not in rest, "Slurm would go on with a script that is gone"
    install(tmp_path, "gpu")
    uninstall(tmp_path, "gpu")
    assert (tmp_path / FILE).read_text() == rest


def test_a_sites_own_file_is_kept_and_restored(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(SITE)
    (tmp_path / FILE).chmod(0o640)
    install(tmp_path, "gpu")
    text = (tmp_path / FILE).read_text()
    assert text.startswith("function slurm_job_submit(job, partitions, user)\n  return slurm.SUCCESS\nend\n")
    assert text.index("local horae_other_submit = slurm_job_submit") > text.index("end\n")
    assert text.endswith("\nreturn slurm.SUCCESS\n")
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o640
    uninstall(tmp_path, "gpu")
    assert (tmp_path / FILE).read_text().split() == SITE.split()


def test_a_file_with_another_end_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("return require('site')\n")
    with pytest.raises(CannotInstall, match=r"does not end with `return slurm\.SUCCESS`"):
        install(tmp_path, "gpu")
    assert (tmp_path / FILE).read_text() == "return require('site')\n"


def test_a_name_that_is_no_partition_is_refused() -> None:
    with pytest.raises(CannotInstall, match="cannot be the name of a partition"):
        with_partitions("", ['gpu"] = true os.execute("x'])


def test_the_lines_of_slurm_conf_keep_what_is_there() -> None:
    assert settings_lines({"JobSubmitPlugins": "", "RequeueExitHold": ""}) == [
        "JobSubmitPlugins=lua",
        "RequeueExitHold=75",
    ]
    assert settings_lines({"JobSubmitPlugins": "require_timelimit", "RequeueExitHold": "99"}) == [
        "JobSubmitPlugins=require_timelimit,lua",
        "RequeueExitHold=99,75",
    ]
    assert settings_lines({"JobSubmitPlugins": "lua", "RequeueExitHold": "75"}) == []
