"""A batch of simulations on a Ray cluster, over the dashboard alone: no `ray` here, no shared folder.

1. Upload the batch and `ray_tasks.py` as a package, which Ray brings to every node.
2. Submit one Ray job, whose driver makes a task of each run. Ray begins tasks again that were lost.
3. Read the outcomes from the job's log, a line each: it is what the Jobs API hands out of a cluster.
4. If the job itself was lost, submit what is missing again.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import secrets
import shlex
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from horae.backends.driver import OutOfSight
from horae.backends.ray.dashboard import Dashboard, job_path
from horae.core.errors import UserError
from horae.experiments import ray_tasks
from horae.experiments.parallel import Advance, Batch, Outcome, packed
from horae.experiments.study_node import fingerprint, unpack_outcome

_BATCH, _DRIVER = "batch.bin", "ray_tasks.py"
#: Ray jobs for one batch: the first, and more if a job or its runs were lost.
_TRIES = 3
#: Seconds without a look at the log, for each second that the last look took.
_LOG_SHARE = 10.0
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
#: The largest package that Ray takes, in bytes.
_LARGEST = 500 * 2**20


class RayStudy:
    """Performs batches on a Ray cluster."""

    def __init__(
        self, dashboard: Dashboard, at_once: int | None = None, poll_s: float = 1.0, patience_s: float = 60.0
    ) -> None:
        self._dashboard, self._at_once = dashboard, at_once
        #: Seconds between two looks, and for which the dashboard may be away.
        self._poll_s, self._patience_s = poll_s, patience_s

    def run(self, batch: Batch, advance: Advance) -> list[Outcome]:
        """Perform the runs, and return their outcomes in the same order."""
        count = len(batch.scenarios)
        outcomes: dict[int, Outcome] = {}
        why = ""
        try:
            # Other servers may answer every request with 200.
            self._field(self._dashboard.read("/api/version"), "ray_version")
            package = self._upload(packed(batch))
            for _ in range(_TRIES):
                missing = [number for number in range(count) if number not in outcomes]
                if not missing:
                    break
                why = self._run_once(package, missing, outcomes, lambda done: advance(done, count))
        except OutOfSight as lost:
            raise UserError(f"The runs cannot be spread over Ray. {lost} Is --on the dashboard's address?") from None
        if len(outcomes) < count:
            raise UserError(f"{count - len(outcomes)} of {count} runs were lost on Ray {_TRIES} times: {why}")
        return [outcomes[number] for number in range(count)]

    def _upload(self, content: bytes) -> str:
        """Store the batch and the driver in the cluster, by their hash; returns the package's address."""
        data = _package({_BATCH: content, _DRIVER: Path(ray_tasks.__file__).read_bytes()})
        if len(data) > _LARGEST:
            raise UserError(f"The jobs to run take {len(data) / 2**20:.0f} MB, and Ray takes 500: use fewer --seeds.")
        name = f"_ray_pkg_{hashlib.sha256(data).hexdigest()[:32]}.zip"
        if not self._dashboard.ask("GET", f"/api/packages/gcs/{name}").is_good:
            answer = self._dashboard.ask("PUT", f"/api/packages/gcs/{name}", data=data)
            if not answer.is_good:
                raise OutOfSight(f"Ray does not take the jobs to run: {answer.last_line}.")
        return f"gcs://{name}"

    def _run_once(self, package: str, numbers: Sequence[int], outcomes: dict[int, Outcome], advance: Any) -> str:
        """Perform runs in one Ray job; returns what kept some of them from ending, if anything did."""
        name = f"horae-study-{secrets.token_hex(6)}"
        study = {"numbers": numbers, "at_once": self._at_once, "fingerprint": fingerprint(), "batch": _BATCH}
        request = {
            "submission_id": name,
            "entrypoint": shlex.join(["exec", "python3", _DRIVER, json.dumps(study)]),
            "runtime_env": {"working_dir": package},
        }
        answer = self._dashboard.ask("POST", "/api/jobs/", request)
        if not answer.is_good:
            raise OutOfSight(f"Ray does not take the job: {answer.last_line}.")
        self._field(answer.read_json(), "submission_id")
        done = len(outcomes)
        try:
            ended = self._follow(name, lambda ended: advance(done + ended))
        except BaseException:
            # Nobody waits for the rest any more.
            with suppress(OutOfSight):
                self._dashboard.ask("POST", job_path(name, "/stop"))
            raise
        log = self._log(name)
        self._dashboard.ask("DELETE", job_path(name))
        outcomes.update(read_outcomes(log))
        return str(ended.get("message") or "").partition("\n")[0]

    def _follow(self, name: str, advance: Any) -> dict[str, Any]:
        """Wait for the end of a job, and return Ray's record of it."""
        seen_s = time.monotonic()
        read_s = 0.0
        while True:
            try:
                record: dict[str, Any] = self._dashboard.read(job_path(name))
                if self._field(record, "status") in _ENDED:
                    return record
                if (seen_s := time.monotonic()) >= read_s:
                    advance(self._log(name).count(f"\n{ray_tasks.RUN} "))
                    # The log comes whole each time: a long one is read less often.
                    read_s = seen_s + _LOG_SHARE * (time.monotonic() - seen_s)
            except OutOfSight:
                if time.monotonic() - seen_s > self._patience_s:
                    raise
            time.sleep(self._poll_s)

    def _log(self, name: str) -> str:
        return str(self._field(self._dashboard.read(job_path(name, "/logs")), "logs") or "")

    def _field(self, found: Any, name: str) -> Any:
        """A field of an answer; one without it is not Ray's."""
        if not isinstance(found, dict) or name not in found:
            raise UserError(f"{self._dashboard.address} does not answer as Ray's dashboard does: check --on.")
        return found[name]


def read_outcomes(log: str) -> dict[int, Outcome]:
    """The outcomes in a driver's log, by number; lost ones are left out. Raises what a run raised."""
    found: dict[int, Outcome] = {}
    for number, what, content in _lines(log):
        match what:
            case ray_tasks.DONE:
                found[number] = unpack_outcome(content)
            case ray_tasks.REFUSED:
                raise UserError(content.decode("utf-8", "replace"))
            case ray_tasks.UNLIKE:
                raise UserError(
                    f"The Ray cluster needs the same Horae as this machine, {fingerprint()}: "
                    f"{content.decode('utf-8', 'replace')}. "
                    "Install the same one there, or run without --on."
                )
            case ray_tasks.BROKEN:
                raise RuntimeError(f"A run failed on Ray:\n{content.decode('utf-8', 'replace')}")
    return found


def _lines(log: str) -> Iterator[tuple[int, str, bytes]]:
    """What the log says of runs. Other lines are Ray's own; one that is still being written, or broken, is left out."""
    for line in log.splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and len(words) == 4 and words[0] == ray_tasks.RUN and words[1].isdecimal():
            try:
                content = base64.b64decode(words[3], validate=True)
            except ValueError:
                continue
            yield int(words[1]), words[2], content


def _package(files: dict[str, bytes]) -> bytes:
    """A zip file that is the same for the same content."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return out.getvalue()
