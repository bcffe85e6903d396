"""`SlurmAdoption`: orders the jobs that users submit to a Slurm partition with `sbatch`, under their own accounts.

Users' jobs are found in Slurm's list and handed to the service, which submits them in their users' names. Launches and
stops become changes of the same Slurm jobs. One thread looks at Slurm and does what `adoption_steps.see_to` says; the
records of `adopted_job.py` say what was begun, also after a crash. Nothing of Horae runs on the nodes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from horae.backends.adopting_backend import AdoptingBackend
from horae.backends.adoption_options import BadRequest
from horae.backends.driver import OutOfSight, host_of
from horae.backends.found_jobs import FoundJob, TakenJob
from horae.backends.protocol import Place
from horae.backends.slurm.adopted_job import AdoptedSlurmJob, AdoptionRecords, key_of
from horae.backends.slurm.adoption_checks import sees_jobs_of_others
from horae.backends.slurm.adoption_steps import AdoptionSettings, JobStep, Moment, cancelled, see_to
from horae.backends.slurm.command_output import SlurmHost, read_config
from horae.backends.slurm.commands import ChangeRefused, SlurmCommands
from horae.backends.slurm.driver import foreign_by_node, hosts_of, jobs_on, racks_of
from horae.backends.slurm.job_request import HELD_BY_PLUGIN, read_request
from horae.backends.slurm.partition_flag import PartitionFlag
from horae.backends.slurm.partition_sight import sight_of
from horae.backends.slurm.queue_listing import FAR, QUEUE_FORMAT, QueuedJob, read_details, read_queue
from horae.core.states import ENDED

_LOG = logging.getLogger(__name__)
#: New jobs that are read in one round: each costs a command.
_NEW_IN_A_ROUND = 50
#: Jobs that do not end between two looks, all of them.
_SEVERAL = 2
#: Refusals in a row after which a job cannot be put back; one may only mean that it is ending just now.
_REFUSALS = 3


class SlurmAdoption(AdoptingBackend[AdoptedSlurmJob]):
    """A backend for jobs of users in one partition."""

    manager = "Slurm"

    def __init__(
        self,
        state: Path,
        partition: str,
        commands: SlurmCommands,
        flag: PartitionFlag | None = None,
        settings: AdoptionSettings | None = None,
        fence: str = "",
    ) -> None:
        self._settings = settings or AdoptionSettings()
        super().__init__(AdoptionRecords(state), self._settings.silence_s, fence)
        self._partition, self._commands, self._flag = partition, commands, flag
        self._left_alone: set[str] = set()
        self._failed: set[str] = set()
        self._boot, self._controller_s = "", time.monotonic()
        self._answering_s: dict[str, float] = {}
        #: How many known jobs Slurm last showed that had not ended, and since when it shows none; monotonic.
        self._living, self._none_since_s = sum(not job.outcome for job in self._records.jobs.values()), 0.0
        #: Whether something was changed in the last round: then it is worth looking again soon.
        self._acted = False
        self._begin()

    @property
    def submit_with(self) -> str:
        """How users submit jobs."""
        return f"sbatch --partition={self._partition} --gres=gpu:1 train.sh"

    def _pause_s(self) -> float:
        return self._settings.look_soon_s if self._acted else self._settings.look_every_s

    def _lose_sight(self, sentence: str) -> None:
        super()._lose_sight(sentence)
        self._answering_s.clear()

    def _host_of(self, node: str) -> str:
        return host_of(node)

    def _where_is_output(self, job: AdoptedSlurmJob) -> str:
        return f"The output of Slurm job {job.slurm_id} is in {job.output or 'a file of its user'}."

    def _prepare(self, job: AdoptedSlurmJob, places: tuple[Place, ...]) -> str:
        counts = sorted(len(place.gpus) for place in places)
        if counts == [job.gpus_per_node] * job.node_count:
            return ""
        asked = f"{job.gpus_per_node} GPUs on each of {job.node_count} nodes"
        return f"Slurm starts the job with {asked} only, and it was placed with {' + '.join(map(str, counts))}"

    def _comment(self, job: AdoptedSlurmJob, text: str) -> None:
        """Tell the user of a job something where `scontrol show job` shows it."""
        self._change(job, "scontrol", "update", f"jobid={job.slurm_id}", f"admincomment={' '.join(text.split())}")

    # --- a round

    def _round(self, taken: Mapping[str, TakenJob]) -> None:
        self._acted = False
        self._commands.check_controller()
        if self._flag and (lost := self._flag.check()):
            raise OutOfSight(lost)
        hosts = hosts_of(self._commands, self._partition)
        at = self._moment(hosts)
        queue = self._queue()
        self._take_up(queue, taken)
        seen = self._match(queue)
        self._doubt_an_empty_list(seen, at.now_s)
        trouble = self._show(hosts)
        for job in list(self._records.jobs.values()):
            if self._closing:
                return
            self._try_to_see_to(job, seen.get(job.key), taken.get(job.key), at)
        self._offer(seen, taken, at)
        self._observe_jobs()
        self._trouble, self._looked_s = trouble, time.monotonic()

    def _moment(self, hosts: Mapping[str, SlurmHost]) -> Moment:
        """Since when the controller and each host are in sight. A controller that was restarted begins anew."""
        now_s = time.monotonic()
        boot = read_config(self._commands.read("scontrol", "show", "config")).get("BOOT_TIME", "")
        if boot != self._boot or self._sight is None:
            self._boot, self._controller_s = boot, now_s
            self._answering_s.clear()
        self._answering_s = {
            host.name: self._answering_s.get(host.name, now_s) for host in hosts.values() if host.answers
        }
        return Moment(now_s, self._controller_s, dict(self._answering_s), self._settings, boot)

    def _doubt_an_empty_list(self, seen: Mapping[str, QueuedJob], now_s: float) -> None:
        """Raise `OutOfSight` if all of several jobs are missing at once: more likely they are hidden than gone.

        A controller that has lost its accounts hides jobs of others (PrivateData) even from operators.
        """
        if seen or self._living < _SEVERAL:
            self._living, self._none_since_s = sum(not job.is_ended for job in seen.values()), 0.0
            return
        self._none_since_s = self._none_since_s or now_s
        if now_s - self._none_since_s >= self._settings.none_left_s and sees_jobs_of_others(self._commands):
            self._living = 0
            return
        raise OutOfSight(
            f"Slurm shows none of the {self._living} jobs that Horae orders any more, all at once. Check with squeue "
            "that they are gone, and that the service may see jobs of others (PrivateData in slurm.conf)."
        )

    def _queue(self) -> list[QueuedJob]:
        """Jobs of the partition, ended ones included, and known jobs that were moved elsewhere."""
        ids = {job.slurm_id for job in self._records.jobs.values()}
        queue = read_queue(self._commands.read("squeue", "-h", "-a", "-r", "--states=all", "-O", QUEUE_FORMAT))
        return [job for job in queue if job.partition == self._partition or job.id in ids]

    def _match(self, queue: Iterable[QueuedJob]) -> dict[str, QueuedJob]:
        """What the list shows of each known job, by key."""
        by_id: dict[str, list[AdoptedSlurmJob]] = {}
        for job in self._records.jobs.values():
            by_id.setdefault(job.slurm_id, []).append(job)
        return {job.key: seen for seen in queue for job in by_id.get(seen.id, ()) if job.matches(seen)}

    def _take_up(self, queue: Iterable[QueuedJob], taken: Mapping[str, TakenJob]) -> None:
        """Begin to follow waiting jobs that are new."""
        matched = {seen.id for seen in self._match(queue).values()}
        new = [
            seen
            for seen in queue
            if seen.is_waiting
            and seen.id not in matched
            and key_of(seen) not in self._left_alone
            and not (self._flag and self._flag.is_flag(seen.id))
        ]
        for seen in new[:_NEW_IN_A_ROUND]:
            self._adopt(seen, taken)

    def _adopt(self, seen: QueuedJob, taken: Mapping[str, TakenJob]) -> None:
        details = read_details(self._commands.read("scontrol", "show", "job", seen.id, nothing="Invalid job id"))
        from_plugin = HELD_BY_PLUGIN in details.get("AdminComment", "")
        try:
            request = read_request(seen.id, details)
        except BadRequest as why:
            self._let_go(seen, from_plugin, str(why))
            self._left_alone.add(key_of(seen))
            return
        for older in [job for job in self._records.jobs.values() if job.slurm_id == seen.id]:
            older.replaced = True
            self._records.save(older)
        job = AdoptedSlurmJob.of(seen, request, details, from_plugin)
        if in_service := taken.get(job.key):
            job.job = in_service.job
        self._records.save(job)

    def _let_go(self, seen: QueuedJob, from_plugin: bool, why: str) -> None:
        """Leave a job that cannot be ordered to Slurm, with a word to its user."""
        try:
            if from_plugin:
                self._commands.change("scontrol", "release", seen.id)
            comment = f"admincomment=horae: left to Slurm. {why}"
            self._commands.change("scontrol", "update", f"jobid={seen.id}", comment)
        except ChangeRefused:
            return

    def _try_to_see_to(self, job: AdoptedSlurmJob, seen: QueuedJob | None, taken: TakenJob | None, at: Moment) -> None:
        """See to a job. One that fails does not hold up the others, and is told of once."""
        try:
            self._see_to(job, seen, taken, at)
        except (OutOfSight, OSError):
            raise
        except Exception:
            if job.key not in self._failed:
                self._failed.add(job.key)
                _LOG.exception("Nothing can be done for %s of Slurm.", job.key)

    def _see_to(self, job: AdoptedSlurmJob, seen: QueuedJob | None, taken: TakenJob | None, at: Moment) -> None:
        if taken and not job.job:
            job.job = taken.job
            self._comment(job, f"horae: {taken.job}. `horae why {taken.job}` says why it waits.")
        if seen and seen.partition != self._partition and not job.is_active:
            self._let_leave(job, seen, taken)
            return
        todo = see_to(job, seen, taken.state if taken else None, at)
        self._records.save(job)
        if job.doubtful and job.is_active:
            for host in job.doubted_hosts:
                if host not in at.answering_s:
                    self._fence.use_on(host)
        for step in todo.steps:
            if not self._perform(step, job):
                break
        self._tell_requests(todo.events, at.now_s)
        self._tell_outcome(job)
        if _is_over(job, seen, taken, at):
            self._records.drop(job)

    def _let_leave(self, job: AdoptedSlurmJob, seen: QueuedJob, taken: TakenJob | None) -> None:
        """A waiting job was moved to another partition: it is no longer Horae's."""
        if seen.is_waiting and seen.is_postponed:
            self._change(job, *_back_to_slurm(job))
        if taken and taken.state not in ENDED:
            self._tell_requests([cancelled(job)], time.monotonic())
        else:
            self._records.drop(job)

    def _perform(self, step: JobStep, job: AdoptedSlurmJob) -> bool:
        """Do a step; whether Slurm has done it."""
        number = job.slurm_id
        match step:
            case JobStep.POSTPONE:
                return self._change(job, "scontrol", "update", f"jobid={number}", f"starttime={FAR}")
            case JobStep.RELEASE:
                return self._change(job, "scontrol", "release", number)
            case JobStep.LAUNCH:
                nodes = f"reqnodelist={','.join(job.hosts)}"
                return self._change(job, "scontrol", "update", f"jobid={number}", nodes, "starttime=now")
            case JobStep.NOTICE:
                return self._change(job, "scancel", "--full", "--signal=USR1", number)
            case JobStep.CANCEL:
                return self._change(job, "scancel", number)
            case JobStep.PUT_BACK:
                done = self._change(job, "scontrol", "requeuehold", number)
                job.timers.refusals = 0 if done else job.timers.refusals + 1
                job.not_put_back = job.timers.refusals >= _REFUSALS
                return done

    def _change(self, job: AdoptedSlurmJob, *command: str) -> bool:
        """Change a job in Slurm; whether Slurm did it. If not, the next look tells what is the matter."""
        self._acted = True
        try:
            self._commands.change(*command)
        except ChangeRefused:
            return False
        return True

    # --- telling

    def _show(self, hosts: Mapping[str, SlurmHost]) -> str:
        """Make the look the backend's sight; returns what is wrong with its nodes."""
        own = {job.slurm_id for job in self._records.jobs.values() if job.attempt}
        foreign = [job for job in jobs_on(self._commands, hosts) if job.id not in own]
        sight, trouble = sight_of(hosts, racks_of(self._commands), foreign_by_node(foreign, hosts))
        self._show_sight(sight)
        return trouble

    def _offer(self, seen: Mapping[str, QueuedJob], taken: Mapping[str, TakenJob], at: Moment) -> None:
        """Name the jobs to take in: they wait in Slurm, and for no other job."""
        found = [
            FoundJob(job.key, job.user, job.document)
            for job in self._records.jobs.values()
            if job.key not in taken
            and job.key in seen
            and seen[job.key].is_waiting
            and not seen[job.key].dependency
            and at.now_s - job.timers.refused_s >= self._settings.refused_s
        ]
        with self._lock:
            self._found = found


def _is_over(job: AdoptedSlurmJob, seen: QueuedJob | None, taken: TakenJob | None, at: Moment) -> bool:
    """Whether nothing will ever be told of a job again: Slurm does not list it, and the service has ended it."""
    if seen or job.timers.missing_s is None or at.now_s - job.timers.missing_s < at.settings.missing_s:
        return False
    return taken is None or (taken.state in ENDED and not job.is_active)


def _back_to_slurm(job: AdoptedSlurmJob) -> tuple[str, ...]:
    """The command by which a waiting job is plain Slurm's again."""
    nodes = f"reqnodelist={job.asked_nodes}"
    return "scontrol", "update", f"jobid={job.slurm_id}", nodes, "starttime=now"
