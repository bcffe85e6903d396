"""The `job_submit.lua` by which Slurm holds the jobs of adopted partitions until Horae has seen them.

The file is read by Slurm's controller, from the folder of slurm.conf. It touches jobs of the named partitions only: a
job that names others, too, would run there or here out of turn, and one of `srun` or `salloc` cannot be put back. A
site that has a `job_submit.lua` of its own keeps it: Horae's part is a block of its own, which wraps the function that
was there, and is taken out again without a trace.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

from horae.backends.protocol import RUN_AGAIN
from horae.backends.slurm.job_request import HELD_BY_PLUGIN
from horae.core.errors import UserError

FILE = "job_submit.lua"
_BEGIN, _END = "-- >>> horae: adopted partitions", "-- <<< horae"
_BLOCK = re.compile(rf"\n?{re.escape(_BEGIN)}.*?{re.escape(_END)}[^\n]*\n", re.DOTALL)
_NAMES = re.compile(r'horae_partitions\["([^"]+)"\] = true')
_PARTITION = re.compile(r"[A-Za-z0-9_.-]+")
#: The last statement of a file that Slurm reads.
_RETURN = re.compile(r"\n[ \t]*return[ \t]+slurm\.SUCCESS[ \t]*;?\s*$")

_LUA = """\
{begin}: `horae slurm uninstall` takes this block away.
-- Jobs of these partitions wait until Horae lets them run, and may be run again. All other jobs are left as they are.
local horae_partitions = {{}}
{names}
local horae_other_submit = slurm_job_submit
local horae_other_modify = slurm_job_modify

-- The first adopted partition that a job names; one that names none goes to the default partition.
local function horae_adopted(job, partitions)
  if job.partition == nil then
    for name, partition in pairs(partitions) do
      if partition.flag_default == 1 and horae_partitions[name] then return name end
    end
    return nil
  end
  for name in string.gmatch(job.partition, "[^,]+") do
    if horae_partitions[name] then return name end
  end
  return nil
end

local function horae_wants_gpus(job)
  local asked = {{job.tres_per_node, job.tres_per_job, job.tres_per_socket, job.tres_per_task, job.gres}}
  for _, text in pairs(asked) do
    if type(text) == "string" and string.find(text, "gpu", 1, true) then return true end
  end
  return false
end

function slurm_job_submit(job, partitions, user)
  if horae_other_submit ~= nil then
    local answer = horae_other_submit(job, partitions, user)
    if answer ~= slurm.SUCCESS then return answer end
  end
  local adopted = horae_adopted(job, partitions)
  if adopted == nil or not horae_wants_gpus(job) then return slurm.SUCCESS end
  if job.script == nil then
    slurm.log_user("srun and salloc get no GPUs of partition " .. adopted .. ": Horae orders its jobs. Use sbatch.")
    return slurm.ERROR
  end
  if job.partition ~= nil and job.partition ~= adopted then
    slurm.log_user("Of " .. job.partition .. " this job gets " .. adopted .. " alone: Horae orders its GPU jobs.")
    job.partition = adopted
  end
  -- A job that its user holds stays as it is: Horae sees the hold.
  if job.priority ~= 0 then
    job.priority = 0
    job.admin_comment = "{held}"
  end
  -- 0: --no-requeue. Such a job runs once, and Horae never preempts it.
  if job.requeue ~= 0 then job.requeue = 1 end
  return slurm.SUCCESS
end

-- Slurm shows users no message here.
function slurm_job_modify(job, record, partitions, user)
  if horae_other_modify ~= nil then
    local answer = horae_other_modify(job, record, partitions, user)
    if answer ~= slurm.SUCCESS then return answer end
  end
  if job.partition ~= nil and horae_wants_gpus(record) then
    job.partition = horae_adopted(job, partitions) or job.partition
  end
  return slurm.SUCCESS
end
{end}
"""


#: What is left of a file that had nothing else in it. Without a file, Slurm would go on with the one that it has read.
_NEUTRAL = """\
-- Nothing is done with any job. Delete this file when JobSubmitPlugins in slurm.conf no longer names lua.
function slurm_job_submit(job, partitions, user) return slurm.SUCCESS end
function slurm_job_modify(job, record, partitions, user) return slurm.SUCCESS end
return slurm.SUCCESS
"""


class CannotInstall(UserError):
    """The plugin cannot be written."""


def installed_partitions(text: str) -> list[str]:
    """Partitions that the block in a file names."""
    block = _BLOCK.search(text)
    return _NAMES.findall(block[0]) if block else []


def with_partitions(text: str, partitions: list[str]) -> str:
    """A file with Horae's block for these partitions; without the block if there are none."""
    bare = _BLOCK.sub("", text).replace(_NEUTRAL, "")
    if bare.strip() == "return slurm.SUCCESS":
        bare = ""
    if not partitions:
        return bare or _NEUTRAL
    for name in partitions:
        if not _PARTITION.fullmatch(name):
            raise CannotInstall(f"{name!r} cannot be the name of a partition.")
    names = "\n".join(f'horae_partitions["{name}"] = true' for name in sorted({*partitions}))
    block = _LUA.format(begin=_BEGIN, end=_END, names=names, held=HELD_BY_PLUGIN)
    if not bare.strip():
        return f"{block}\nreturn slurm.SUCCESS\n"
    ending = _RETURN.search(bare)
    if not ending:
        raise CannotInstall(
            f"The {FILE} that is there does not end with `return slurm.SUCCESS`: Horae's part must come before its "
            "last statement. Add that line as the last one, or keep the file and submit jobs with --hold."
        )
    return f"{bare[: ending.start()]}\n\n{block}\nreturn slurm.SUCCESS\n"


def install(folder: Path, partition: str) -> Path:
    """Add a partition to the plugin in Slurm's configuration folder."""
    path = folder / FILE
    text = _read(path)
    _write(path, with_partitions(text, [*installed_partitions(text), partition]))
    return path


def uninstall(folder: Path, partition: str) -> bool:
    """Take a partition out of the plugin; False if it was not there.

    A file with nothing else in it stays, and does nothing: Slurm goes on with what it has read if there is no file.
    """
    path = folder / FILE
    text = _read(path)
    names = installed_partitions(text)
    if partition not in names:
        return False
    _write(path, with_partitions(text, [name for name in names if name != partition]))
    return True


def settings_lines(config: dict[str, str]) -> list[str]:
    """Lines that slurm.conf still needs, with what is there already."""
    plugins = [name for name in config.get("JobSubmitPlugins", "").split(",") if name and name != "(null)"]
    codes = config.get("RequeueExitHold", "")
    lines = []
    if "lua" not in plugins:
        lines.append(f"JobSubmitPlugins={','.join([*plugins, 'lua'])}")
    if str(RUN_AGAIN) not in codes.split(","):
        lines.append(f"RequeueExitHold={','.join(filter(None, [codes, str(RUN_AGAIN)]))}")
    return lines


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as why:
        raise CannotInstall(
            f"{path} cannot be read ({type(why).__name__}): run this where Slurm's controller is."
        ) from None


def _write(path: Path, text: str) -> None:
    """Replace a file at once: the controller may read it at any moment.

    Slurm reads a script again only if it is newer, in whole seconds, than the one it has read.
    """
    draft = path.with_name(f".{path.name}.horae")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
        newer_s = max(time.time(), path.stat().st_mtime if path.exists() else 0.0) + 1
        os.utime(draft, (newer_s, newer_s))
        draft.rename(path)
    except OSError as why:
        raise CannotInstall(
            f"{path} cannot be written ({why.strerror}): run this as root on Slurm's controller."
        ) from None
