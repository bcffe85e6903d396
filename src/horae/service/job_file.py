"""The job file: a job as the user describes it, in YAML or JSON. Public: keys change by addition."""

from __future__ import annotations

import math
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
from horae.core.durations import seconds_of
from horae.core.errors import UserError, did_you_mean, in_plain_words
from horae.core.job import ANY_TYPE, DEFAULT_QUEUE, MAX_SECONDS, MAX_STEPS, JobSpec, problem_of_nodes

#: Assumed duration (s) of a job without an estimate, and the steps by which its progress is counted.
DEFAULT_DURATION_S, DEFAULT_STEPS = 3600.0, 1e6
#: Least duration (s) and weight of a job. Policies compare these numbers between jobs; with a larger ratio the
#: smaller number would be lost in rounding.
MIN_DURATION_S, MIN_WEIGHT = 0.001, 1e-6
#: Limits of one job: words of the command, characters of a text, environment variables.
MAX_WORDS, MAX_TEXT, MAX_VARIABLES = 1000, 100_000, 200

#: Most CPUs for each GPU, and most memory for each GPU, in MiB.
MAX_CPUS_PER_GPU, MAX_MEMORY_MB = 4096, 2**30

_GPUS = re.compile(r"(?:([A-Za-z][\w.-]{0,40}):)?(\d{1,6})")
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,38}[a-z0-9])?")
_QUEUE, _APP = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*"), re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,100}")
_MEMORY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([KMGT]i?B?)", re.IGNORECASE)
_IMAGE = re.compile(r"[A-Za-z0-9/][!-~]{0,499}")


class BadJobFile(UserError):
    """A job file with a mistake."""


def seconds(value: Any) -> Any:
    """A duration in seconds, if it is written as a text; other values stay, for the validator to judge."""
    return seconds_of(value) if isinstance(value, str) else value


#: Longest text of an amount of memory, in characters.
_LONGEST_MEMORY = 40


def memory_mb(value: Any) -> Any:
    """Memory in MiB, rounded up, of a text such as 16GiB, 16G (both 1024-based) or 16GB (1000-based)."""
    if not isinstance(value, str):
        raise ValueError("it needs a unit: write it like 16GiB")
    return math.ceil(size_bytes(value) / 2**20)


def size_bytes(text: str) -> float:
    """Bytes of a text such as 16GiB, 16G (both 1024-based) or 16GB (1000-based)."""
    match = _MEMORY.fullmatch(text.strip()) if len(text) <= _LONGEST_MEMORY else None
    if not match:
        raise ValueError(f"{text[:_LONGEST_MEMORY]!r} is not an amount of memory; write it like 16GiB or 512MiB")
    base = 1000 if match[2].upper() in ("KB", "MB", "GB", "TB") else 1024
    unit: int = base ** ("KMGT".index(match[2][0].upper()) + 1)
    return float(match[1]) * unit


def _image(name: str) -> str:
    if name and not _IMAGE.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} cannot be the name of an image: use letters, digits and / : @ . _ -, no spaces"
        )
    return name


def plain_text(text: str) -> str:
    """Refuse characters that programs, files or databases cannot store."""
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ValueError("it has characters that cannot be passed to a program")
    return text


def _signal(name: str) -> str:
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        raise ValueError(f"{name!r} is not a signal that a program can catch; SIGUSR1 is the usual one")
    return name


def _name(name: str) -> str:
    if not _NAME.fullmatch(name) or ".." in name:
        raise ValueError(
            f"{name!r} cannot be a name: use up to 40 of a-z, 0-9, dot, dash and underscore, and start and end with a "
            "letter or digit"
        )
    return name


def queue_path(path: str) -> str:
    """Check the path of a queue, such as org/team."""
    if not _QUEUE.fullmatch(path) or any(not part.strip(".") for part in path.split("/")):
        raise ValueError(
            f"{path!r} cannot be a queue: use a path such as org/team, of letters, digits, dot, dash, underscore"
        )
    return path


def _app(name: str) -> str:
    if name and not _APP.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an app: use letters, digits, dot, dash and underscore")
    return name


def _folder(path: str) -> str:
    if path and not path.startswith("/"):
        raise ValueError(f"{path!r} is a relative path: write the full path, such as /home/ana/work")
    return path


def _variable(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of an environment variable")
    return name


Text = Annotated[str, Field(max_length=MAX_TEXT), AfterValidator(plain_text)]
Seconds = Annotated[float, BeforeValidator(seconds), Field(ge=0, le=MAX_SECONDS)]
MemoryMb = Annotated[int, BeforeValidator(memory_mb, json_schema_input_type=str), Field(ge=1, le=MAX_MEMORY_MB)]
Variable = Annotated[str, AfterValidator(_variable)]
GpuText = Annotated[str, Field(max_length=60)]
QueuePath = Annotated[str, Field(max_length=200), AfterValidator(queue_path)]

# A value with several allowed types is checked against the type that it has. Tags in brackets are not shown in errors.
_TEXT, _LIST, _MAP, _NUMBER = "[text]", "[list]", "[map]", "[number]"


def _form(value: Any) -> str:
    """Tag of the type of a value: text, list, map or number."""
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
    | Annotated[list[Text], Field(min_length=1, max_length=MAX_WORDS), Tag(_LIST)],
    Discriminator(_run_form),
]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(_Section):
    """GPUs of one of several types; the policy chooses."""

    any_of: list[GpuText] = Field(min_length=1, max_length=62)


Gpus = Annotated[
    Annotated[int, Tag(_NUMBER)] | Annotated[GpuText, Tag(_TEXT)] | Annotated[Choice, Tag(_MAP)],
    Discriminator(_gpus_form),
]


class Resources(_Section):
    """GPU count, GPU types and number of nodes of a job, and what comes with each GPU.

    Without `gpus`, `gpus_min` counts.
    """

    gpus: Gpus = 1
    gpus_min: int = Field(default=0, ge=0, le=1_000_000)
    gpus_max: int = Field(default=0, ge=0, le=1_000_000)
    nodes: int | None = Field(default=None, ge=1, le=1_000_000)
    cpus_per_gpu: int | None = Field(default=None, ge=1, le=MAX_CPUS_PER_GPU)
    memory_per_gpu: MemoryMb | None = None
    image: Annotated[str, Field(max_length=500), AfterValidator(_image)] = ""

    def beside_gpus(self) -> list[str]:
        """Keys of what the job asks for beside GPUs."""
        return [key for key in ("cpus_per_gpu", "memory_per_gpu", "image") if getattr(self, key)]

    def wanted(self) -> tuple[int, tuple[str, ...]]:
        """GPU count and accepted GPU types; no types means all."""
        gpus = self.gpus if "gpus" in self.model_fields_set else self.gpus_min or self.gpus
        words = gpus.any_of if isinstance(gpus, Choice) else [str(gpus)]
        parts = [_GPUS.fullmatch(word) for word in words]
        if not all(parts):
            bad = next(word for word, part in zip(words, parts, strict=True) if not part)
            raise ValueError(f"{bad!r} is not a number of GPUs; write 4 or v100:4")
        found = [(part[1] or "", int(part[2])) for part in parts if part]
        if len({count for _, count in found}) > 1:
            raise ValueError("every type in any_of must have the same number of GPUs")
        if len(found) > 1 and not all(gpu_type for gpu_type, _ in found):
            raise ValueError("every entry of any_of needs a type, such as v100:4")
        return found[0][1], tuple(gpu_type for gpu_type, _ in found if gpu_type)

    @model_validator(mode="after")
    def _check(self) -> Resources:
        gpus, _ = self.wanted()
        elastic = (self.gpus_min or gpus) != (self.gpus_max or gpus)
        if problem := problem_of_nodes(self.nodes or 0, gpus, elastic):
            raise ValueError(problem)
        return self


class Checkpoint(_Section):
    """Stop signal, grace period and folder of checkpoints."""

    signal: Annotated[str, AfterValidator(_signal)] = "SIGUSR1"
    grace: Annotated[Seconds, Field(le=3600)] = 30.0
    dir: Text = ""


class Recovery(_Section):
    """When a failed job is restarted."""

    max_restarts: int = Field(default=0, ge=0, le=1000)
    on_exit_codes: list[Annotated[int, Field(ge=1, le=255)]] = Field(default_factory=list, max_length=255)


class Estimate(_Section):
    """The user's estimate of steps, duration and speed. Measured speeds replace it."""

    steps: Annotated[float, Field(ge=1, le=MAX_STEPS)] | None = None
    duration: Annotated[Seconds, Field(ge=MIN_DURATION_S)] | None = None
    throughput: dict[str, Annotated[float, Field(gt=0, le=1e15)]] = Field(default_factory=dict, max_length=62)


class JobFile(_Section):
    """One job. Everything except `run` has a default."""

    name: Annotated[str, AfterValidator(_name)] = "job"
    run: Run
    queue: QueuePath = DEFAULT_QUEUE
    app: Annotated[str, Field(max_length=60), AfterValidator(_app)] = ""
    app_scheduler: str = Field(default="", max_length=200)
    processes: Literal["node", "gpu"] = "node"
    resources: Resources = Resources()
    envs: dict[Variable, Text] = Field(default_factory=dict, max_length=MAX_VARIABLES)
    secrets: list[Variable] = Field(default_factory=list, max_length=MAX_VARIABLES)
    workdir: Annotated[Text, AfterValidator(_folder)] = ""
    setup: Text = ""
    max_duration: Annotated[Seconds, Field(ge=MIN_DURATION_S)] | None = None
    min_runtime: Seconds = 0.0
    preemptible: bool = True
    deadline: Seconds | None = None
    weight: float = Field(default=1.0, ge=MIN_WEIGHT, le=1e6, description="Only admins may set a weight above 1.")
    checkpoint: Checkpoint = Checkpoint()
    recovery: Recovery = Recovery()
    estimate: Estimate = Estimate()
    job_class: str = Field(default="", max_length=100, alias="class")

    @model_validator(mode="after")
    def _check(self) -> JobFile:
        if any(name.startswith("HORAE_") for name in self.envs):
            raise ValueError("names of variables must not begin with HORAE_")
        return self

    def argv(self) -> tuple[str, ...]:
        """The command as words; a text is run by bash."""
        return ("bash", "-c", self.run) if isinstance(self.run, str) else tuple(self.run)


def class_of(user: str, name: str) -> str:
    """Job class of a user's jobs under this name. Speeds are never shared between users."""
    return f"{user}/{name}"


def spec_of(job: JobFile, job_id: str, user: str, now_s: float, cluster: Cluster) -> JobSpec:
    """The schedulable half of a job, for the engine. Work is in steps, or in millionths if the steps are unknown.

    Measured speeds are shared by the jobs of one user that have the same class or app.
    """
    gpus, types = job.resources.wanted()
    types = _in_cluster_spelling(types, cluster)
    work = job.estimate.steps or DEFAULT_STEPS
    return JobSpec(
        id=job_id,
        submit_s=now_s,
        gpus=gpus,
        work=work,
        unit="steps",
        gpus_min=job.resources.gpus_min,
        gpus_max=job.resources.gpus_max,
        nodes=job.resources.nodes or 0,
        cpus_per_gpu=job.resources.cpus_per_gpu or 0,
        memory_mb_per_gpu=job.resources.memory_per_gpu or 0,
        job_class=class_of(user, job.job_class or job.app) if job.job_class or job.app else job_id,
        gpu_types=types,
        throughput=_throughput(job, work, types, cluster),
        weight=job.weight,
        app=job.app,
        app_scheduler=job.app_scheduler,
        queue=job.queue,
        user=user,
        min_runtime_s=job.min_runtime if job.preemptible else MAX_SECONDS,
        deadline_s=job.deadline,
        max_restarts=job.recovery.max_restarts,
        retry_exit_codes=tuple(job.recovery.on_exit_codes),
    )


def _in_cluster_spelling(types: tuple[str, ...], cluster: Cluster) -> tuple[str, ...]:
    """GPU types as the cluster spells them. Unknown types are refused."""
    if types and not cluster.nodes:
        raise BadJobFile(
            f"No node was seen yet, so nobody knows whether there is a GPU of type {types[0]}: leave the type out, or "
            "submit the job when `horae nodes` lists some."
        )
    names = {name.lower(): name for name in cluster.gpu_types}
    for gpu_type in types:
        if gpu_type.lower() not in names:
            raise BadJobFile(
                f"There is no GPU of type {gpu_type}.{did_you_mean(gpu_type, names)} "
                f"There are GPUs of {'type' if len(cluster.gpu_types) == 1 else 'the types'} "
                f"{', '.join(cluster.gpu_types)}."
            )
    return tuple(names[gpu_type.lower()] for gpu_type in types)


def _throughput(job: JobFile, work: float, types: tuple[str, ...], cluster: Cluster) -> dict[str, float]:
    """Steps/s by GPU type: the user's estimate; types without one are assumed as fast as the fastest.

    A job that names no types can also use types that join the cluster later.
    """
    accepted = types or cluster.gpu_types
    given = {_in_cluster_spelling((gpu_type,), cluster)[0]: rate for gpu_type, rate in job.estimate.throughput.items()}
    for gpu_type, rate in given.items():
        _check_length(work / rate, gpu_type)
    if given and accepted and not set(given) & set(accepted):
        raise BadJobFile(f"estimate.throughput names no GPU type that the job accepts ({', '.join(accepted)}).")
    guess = max(given.values()) if given else work / (job.estimate.duration or job.max_duration or DEFAULT_DURATION_S)
    others = {} if types else {**given, ANY_TYPE: guess}
    return {**others, **{gpu_type: given.get(gpu_type, guess) for gpu_type in accepted}}


def _check_length(length_s: float, gpu_type: str) -> None:
    """Refuse an estimate of steps and throughput whose duration is out of range."""
    if not MIN_DURATION_S <= length_s <= MAX_SECONDS:
        raise BadJobFile(
            f"By its estimate the job takes {length_s:.3g} s on {gpu_type}: steps divided by throughput must be "
            f"{MIN_DURATION_S:g} to {MAX_SECONDS:g} s."
        )


def task_of(job: JobFile, job_id: str, user: str, work: float) -> Task:
    """The runnable half of a job, for the backend."""
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
        cpus_per_gpu=job.resources.cpus_per_gpu,
        memory_mb_per_gpu=job.resources.memory_per_gpu,
        image=job.resources.image,
    )


def read_job(document: Any, where: str = "the job") -> JobFile:
    """Check a job; the error names the place and suggests a key. `where` names the file or job in errors."""
    if not isinstance(document, dict):
        raise BadJobFile(f"{where} is not a map of keys such as `run: python train.py`.")
    try:
        return JobFile.model_validate(document)
    except ValidationError as error:
        first = most_helpful_error(error.errors())
        raise BadJobFile(f"{where}: {error_sentence(first['loc'], first['type'], first['msg'])}") from None


#: Most characters of a key that are repeated in an error.
_LONGEST_KEY = 100


def most_helpful_error(errors: Sequence[Any]) -> Any:
    """The error to report: an unknown key first, since it may be the misspelt key that is missing."""
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])


def error_sentence(loc: Sequence[int | str], error_type: str, message: str) -> str:
    """A validation error as a sentence, with the place and a suggested key."""
    path = [str(part)[:_LONGEST_KEY] for part in loc if "[" not in str(part)]
    place = ".".join(path) or "it"
    if error_type == "extra_forbidden":
        return f"{place} is not a key of a job.{_key_hint(path)}"
    return f"{place}: {in_plain_words(message).rstrip('.')}."


def _key_hint(path: list[str]) -> str:
    """Suggest a key: the same key in another section, or a similar key in this section."""
    *section, key = path
    keys = {".".join(path): path for path in _keys(JobFile)}
    elsewhere = next((name for name, path in keys.items() if path[-1] == key), None)
    if elsewhere:
        return f" Did you mean {elsewhere!r}?"
    return did_you_mean(key, [path[-1] for path in keys.values() if path[:-1] == section])


def _keys(form: type[BaseModel], *above: str) -> Iterator[list[str]]:
    """Paths of all keys of a section and of the sections in it."""
    for name, field in form.model_fields.items():
        path = (*above, field.alias or name)
        yield [*path]
        for inner in _forms(field.annotation):
            yield from _keys(inner, *path)


def _forms(annotation: Any) -> Iterator[type[BaseModel]]:
    """The models in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _forms(inner)


def load_job_file(path: Path) -> dict[str, Any]:
    """The content of a YAML job file, not checked yet."""
    import yaml

    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadJobFile(f"The job file {path} cannot be read ({error.__class__.__name__}).") from None
    except yaml.YAMLError as error:
        raise BadJobFile(f"{path} is not YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(document, dict):
        raise BadJobFile(f"{path} is not a map of keys such as `run: python train.py`.")
    return document
