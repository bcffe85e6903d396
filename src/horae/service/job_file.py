"""What a user sends to have a job run: a YAML file, or the same as JSON. Both have this form and no other keys."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    model_validator,
)

from horae.backends.task import Task
from horae.core.cluster import Cluster
from horae.core.errors import UserError, did_you_mean, in_plain_words
from horae.core.job import DEFAULT_QUEUE, MAX_SECONDS, MAX_STEPS, JobSpec

#: What a job that tells nothing of its length is believed to take, and the steps its progress is counted in.
GUESSED_S, GUESSED_STEPS = 3600.0, 1e6
#: What jobs may say of their length and weight: policies weigh one job's against another's, and numbers that are
#: farther apart than these would not be told from nothing beside each other.
LEAST_S, LEAST_WEIGHT = 0.001, 1e-6
#: Limits of what one request may hold.
MOST_WORDS, MOST_TEXT, MOST_VARIABLES = 1000, 100_000, 200

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")
_GPUS = re.compile(r"(?:([A-Za-z][\w.-]{0,40}):)?(\d{1,6})")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,38}[a-z0-9])?")
_QUEUE, _APP = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*"), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")


class BadJobFile(UserError):
    """A job that is not described as it should be."""


def seconds(text: Any) -> Any:
    """A length of time such as 90, 30m, 4h or 1h30m, in seconds."""
    if not isinstance(text, str):
        return text
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError(f"{text!r} is no length of time; write it like 90, 30m, 4h or 1h30m")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def plain_text(text: str) -> str:
    """A text that programs, files and databases can all be given."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it holds characters that no program can be given")
    return text


def _signal(name: str) -> str:
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        raise ValueError(f"{name!r} is no signal that a program can catch; SIGUSR1 is the usual one")
    return name


def _name(name: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name:
        raise ValueError(
            f"{name!r} is no name: use up to 40 of a-z, 0-9, dot, dash and underscore, a letter or digit at either end"
        )
    return name


def queue_path(path: str) -> str:
    """The path of a queue, as jobs name it and operators set it."""
    if not _QUEUE.fullmatch(path) or any(not part.strip(".") for part in path.split("/")):
        raise ValueError(
            f"{path!r} is no queue: use a path such as org/team, of letters, digits, dot, dash, underscore"
        )
    return path


def _app(name: str) -> str:
    if name and not _APP.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an app: use letters, digits, dot, dash and underscore")
    return name


def _folder(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} depends on where the service was started: write it in full, such as /home/ana/work")
    return path


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} is no name of an environment variable")
    return name


Text = Annotated[str, Field(max_length=MOST_TEXT), AfterValidator(plain_text)]
Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=MAX_SECONDS)]
Variable = Annotated[str, AfterValidator(_variable)]
GpuText = Annotated[str, Field(max_length=60)]
QueuePath = Annotated[str, Field(max_length=200), AfterValidator(queue_path)]

# What may have several forms is judged by the one it has. Tags in brackets are no part of the place of an error.
_TEXT, _LIST, _MAP, _NUMBER = "[text]", "[list]", "[map]", "[number]"


def _form(value: Any) -> str:
    """Which form of a command, or of a number of GPUs, was chosen."""
    if isinstance(value, list):
        return _LIST
    if isinstance(value, dict | BaseModel):
        return _MAP
    return _TEXT if isinstance(value, str) else _NUMBER


def _run_form(value: Any) -> str:
    return _LIST if _form(value) == _LIST else _TEXT


def _gpus_form(value: Any) -> str:
    return _NUMBER if _form(value) == _LIST else _form(value)


Run = Annotated[
    Annotated[Text, Field(min_length=1), Tag(_TEXT)]
    | Annotated[list[Text], Field(min_length=1, max_length=MOST_WORDS), Tag(_LIST)],
    Discriminator(_run_form),
]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(_Form):
    """GPUs of whichever of these types serves best."""

    any_of: list[GpuText] = Field(min_length=1, max_length=62)


Gpus = Annotated[
    Annotated[int, Tag(_NUMBER)] | Annotated[GpuText, Tag(_TEXT)] | Annotated[Choice, Tag(_MAP)],
    Discriminator(_gpus_form),
]


class Resources(_Form):
    """How many GPUs, and of which type; the least that the job can do with, where nothing else is said."""

    gpus: Gpus = 1
    gpus_min: int = Field(default=0, ge=0, le=1_000_000)
    gpus_max: int = Field(default=0, ge=0, le=1_000_000)

    def wanted(self) -> tuple[int, tuple[str, ...]]:
        """Number of GPUs and the types that will do; none named means any."""
        gpus = self.gpus if "gpus" in self.model_fields_set else self.gpus_min or self.gpus
        words = gpus.any_of if isinstance(gpus, Choice) else [str(gpus)]
        parts = [_GPUS.fullmatch(word) for word in words]
        if not all(parts):
            bad = next(word for word, part in zip(words, parts, strict=True) if not part)
            raise ValueError(f"{bad!r} is no number of GPUs; write 4 or v100:4")
        found = [(part[1] or "", int(part[2])) for part in parts if part]
        if len({count for _, count in found}) > 1:
            raise ValueError("the same number of GPUs must do for every type in any_of")
        if len(found) > 1 and not all(kind for kind, _ in found):
            raise ValueError("every entry of any_of needs a type, such as v100:4")
        return found[0][1], tuple(kind for kind, _ in found if kind)

    @model_validator(mode="after")
    def _check(self) -> Resources:
        self.wanted()
        return self


class Checkpoint(_Form):
    """How the job is told to save and go, and where it saves."""

    signal: Annotated[str, AfterValidator(_signal)] = "SIGUSR1"
    grace: Annotated[Seconds, Field(le=3600)] = 30.0
    dir: Text = ""


class Recovery(_Form):
    """When a job that failed is run again."""

    max_restarts: int = Field(default=0, ge=0, le=1000)
    on_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(default_factory=list, max_length=255)


class Estimate(_Form):
    """What the user knows of the job's length; measured speeds replace it."""

    steps: Annotated[float, Field(ge=1, le=MAX_STEPS)] | None = None
    duration: Annotated[Seconds, Field(ge=LEAST_S)] | None = None
    throughput: dict[str, Annotated[float, Field(gt=0, le=1e15)]] = Field(default_factory=dict, max_length=62)


class JobFile(_Form):
    """One job. Everything but `run` has a default."""

    name: Annotated[str, AfterValidator(_name)] = "job"
    run: Run
    queue: QueuePath = DEFAULT_QUEUE
    app: Annotated[str, Field(max_length=60), AfterValidator(_app)] = ""
    app_scheduler: str = Field(default="", max_length=200)
    processes: Literal["node", "gpu"] = "node"
    resources: Resources = Resources()
    envs: dict[Variable, Text] = Field(default_factory=dict, max_length=MOST_VARIABLES)
    secrets: list[Variable] = Field(default_factory=list, max_length=MOST_VARIABLES)
    workdir: Annotated[Text, AfterValidator(_folder)] = ""
    setup: Text = ""
    max_duration: Annotated[Seconds, Field(ge=LEAST_S)] | None = None
    min_runtime: Seconds = 0.0
    preemptible: bool = True
    deadline: Seconds | None = None
    weight: float = Field(default=1.0, ge=LEAST_WEIGHT, le=1e6, description="Above 1 for admins alone.")
    checkpoint: Checkpoint = Checkpoint()
    recovery: Recovery = Recovery()
    estimate: Estimate = Estimate()
    job_class: str = Field(default="", max_length=100, alias="class")

    @model_validator(mode="after")
    def _check(self) -> JobFile:
        if any(name.startswith("HORAE_") for name in self.envs):
            raise ValueError("variables that begin with HORAE_ are set by Horae")
        return self

    def argv(self) -> tuple[str, ...]:
        """The command, word by word; a text is for the shell that the user wrote it for."""
        return ("bash", "-c", self.run) if isinstance(self.run, str) else tuple(self.run)


def class_of(user: str, name: str) -> str:
    """The class of jobs of one user that say, by this name, that they are alike: nobody's speeds are another's."""
    return f"{user}/{name}"


def spec_of(job: JobFile, job_id: str, user: str, now_s: float, cluster: Cluster) -> JobSpec:
    """What the engine has to know of a job. Progress is in steps, or in millionths where nobody knows any.

    Measured speeds are for the jobs of one user that say that they are alike, by a class or an app.
    """
    gpus, types = job.resources.wanted()
    types = _known(types, cluster)
    work = job.estimate.steps or GUESSED_STEPS
    return JobSpec(
        id=job_id,
        submit_s=now_s,
        gpus=gpus,
        work=work,
        unit="steps",
        gpus_min=job.resources.gpus_min,
        gpus_max=job.resources.gpus_max,
        job_class=class_of(user, job.job_class or job.app) if job.job_class or job.app else job_id,
        gpu_types=types,
        throughput=_throughput(job, work, types, cluster),
        weight=job.weight,
        app=job.app,
        app_scheduler=job.app_scheduler,
        queue=job.queue,
        min_runtime_s=job.min_runtime if job.preemptible else MAX_SECONDS,
        deadline_s=job.deadline,
        max_restarts=job.recovery.max_restarts,
        retry_exit_codes=tuple(job.recovery.on_exit_codes),
    )


def _known(types: tuple[str, ...], cluster: Cluster) -> tuple[str, ...]:
    """GPU types as the cluster spells them; one that it has not is refused."""
    names = {name.lower(): name for name in cluster.gpu_types}
    for kind in types:
        if kind.lower() not in names:
            raise BadJobFile(
                f"No GPU here is a {kind}.{did_you_mean(kind, names)} There are {', '.join(cluster.gpu_types)}."
            )
    return tuple(names[kind.lower()] for kind in types)


def _throughput(job: JobFile, work: float, types: tuple[str, ...], cluster: Cluster) -> dict[str, float]:
    """Steps/s by GPU type: as the user says, or as if all types were alike."""
    accepted = types or cluster.gpu_types
    told = {_known((kind,), cluster)[0]: rate for kind, rate in job.estimate.throughput.items()}
    for kind, rate in told.items():
        _check_length(work / rate, kind)
    if told and not set(told) & set(accepted):
        raise BadJobFile(f"estimate.throughput tells of no GPU type that the job accepts ({', '.join(accepted)}).")
    guess = max(told.values()) if told else work / (job.estimate.duration or job.max_duration or GUESSED_S)
    return {kind: told.get(kind, guess) for kind in accepted}


def _check_length(length_s: float, kind: str) -> None:
    """Refuse steps and a throughput that do not go together."""
    if not LEAST_S <= length_s <= MAX_SECONDS:
        raise BadJobFile(
            f"By its estimate the job takes {length_s:.3g} s on {kind}: steps over throughput must be {LEAST_S:g} to "
            f"{MAX_SECONDS:g} s."
        )


def task_of(job: JobFile, job_id: str, user: str, work: float) -> Task:
    """What a backend has to know of a job."""
    return Task(
        job=job_id,
        user=user,
        name=job.name,
        run=job.argv(),
        work=work,
        setup=job.setup,
        workdir=job.workdir,
        env=dict(job.envs),
        secrets=tuple(job.secrets),
        processes=job.processes,
        stop_signal=job.checkpoint.signal,
        grace_s=job.checkpoint.grace,
        checkpoint_dir=job.checkpoint.dir,
        max_duration_s=job.max_duration,
    )


def read_job(said: Any, where: str = "the job") -> JobFile:
    """A job as somebody described it; what is wrong is told with a hint at what may be meant."""
    if not isinstance(said, dict):
        raise BadJobFile(f"{where} is not a map of keys such as `run: python train.py`.")
    try:
        return JobFile.model_validate(said)
    except ValidationError as error:
        first = most_telling(error.errors())
        raise BadJobFile(f"{where}: {complaint(first['loc'], first['type'], first['msg'])}") from None


def most_telling(errors: Sequence[Any]) -> Any:
    """Of all that is wrong, what to tell: a key that is not known may be the misspelt one that is missing."""
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])


def complaint(loc: Sequence[int | str], kind: str, message: str) -> str:
    """What is wrong at a place in a job file, with a hint at the key that may be meant."""
    path = [str(part) for part in loc if "[" not in str(part)]
    place = ".".join(path) or "it"
    if kind == "extra_forbidden":
        return f"{place} is not a key of a job.{_meant(path)}"
    return f"{place}: {in_plain_words(message).rstrip('.')}."


def _meant(path: list[str]) -> str:
    """A hint at the key that may be meant: the same in another section, or one like it in this."""
    *section, key = path
    known = {".".join(one): one for one in _keys(JobFile)}
    elsewhere = next((name for name, one in known.items() if one[-1] == key), None)
    if elsewhere:
        return f" Did you mean {elsewhere!r}?"
    return did_you_mean(key, [one[-1] for one in known.values() if one[:-1] == section])


def _keys(form: type[BaseModel], *above: str) -> Iterator[list[str]]:
    """Every key of a form, and below each those of the forms that it may have."""
    for name, field in form.model_fields.items():
        path = (*above, field.alias or name)
        yield [*path]
        for inner in _forms(field.annotation):
            yield from _keys(inner, *path)


def _forms(annotation: Any) -> Iterator[type[BaseModel]]:
    """The forms among which a value may choose."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _forms(inner)


def load_job_file(path: Path) -> dict[str, Any]:
    """The keys of a YAML job file, not yet checked."""
    import yaml

    try:
        said = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadJobFile(f"The job file {path} cannot be read ({error.__class__.__name__}).") from None
    except yaml.YAMLError as error:
        raise BadJobFile(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(said, dict):
        raise BadJobFile(f"{path} is not a map of keys such as `run: python train.py`.")
    return said
