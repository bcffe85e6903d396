"""`horae catalogue`: GPU types and models, and how fast the one should train the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horae.cli.options import OutputOption
from horae.cli.output import Output, note, print_csv, print_json, print_rich, table
from horae.core.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from horae.workload.catalogue import GpuType, Model
    from horae.workload.roofline import Precision, SpeedEstimate

_GPU_COLUMNS = {
    "gpu": "name",
    "memory GB": "memory_gb",
    "GB/s": "bandwidth_gb_s",
    "fp32 TFLOP/s": "fp32_tflops",
    "tensor TFLOP/s": "tensor_tflops",
    "format": "tensor_format",
    "between GPUs": "link",
    "GB/s one way": "link_gb_s",
    "US$/h": "price_per_hour",
    "source": "source",
}
_MODEL_COLUMNS = {
    "model": "name",
    "parameters": "parameters",
    "tensors": "tensors",
    "skew": "skew",
    "when spread": "when_spread",
    "GFLOP a sample": "gflops_per_sample",
    "MB a sample": "mb_per_sample",
    "sample": "sample",
    "source": "source",
}
_ESTIMATE_COLUMNS = {
    "model": "model",
    "gpu": "gpu",
    "precision": "precision",
    "steps/s": "steps_per_s",
    "samples/s": "samples_per_s",
    "bound by": "bound",
    "memory GB": "memory_gb",
    "of": "gpu_memory_gb",
}
_PRICE_NOTE = "Prices are an order of magnitude: what an hour costs on demand differs by a factor of four."
_ESTIMATE_NOTE = "Estimates, from data sheets and tensor sizes; measure where it matters (--throughputs)."


def command(
    gpus: Annotated[bool, typer.Option("--gpus", help="List the GPU types only.")] = False,
    models: Annotated[bool, typer.Option("--models", help="List the models only.")] = False,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="One model, and its speed on every GPU type.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option("--gpu", metavar="NAME", help="One GPU type, and the speed of every model on it.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", metavar="N", min=1, help="Samples a step on each GPU.  [default: 32]")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="GPUs of the job, in one node.  [default: 1]")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option("--precision", metavar="NAME", help="fp32 or mixed.  [default: mixed where the GPU can]"),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List GPU types and models, or estimate how fast a model trains on a GPU.

    With --model and --gpu, one estimate in full. Steps/s are a roofline estimate from data sheets and tensor sizes,
    marked as estimated wherever they go.
    """
    if model is None and gpu is None:
        if (batch, count, precision) != (None, None, None):
            raise UserError("--batch, --count and --precision need something to estimate; add --model, --gpu or both.")
        _print_lists(gpus or not models, models or not gpus, output)
        return
    if gpus or models:
        raise UserError("--gpus and --models list everything; leave them out, or leave out --model and --gpu.")
    _print_estimates(model, gpu, batch, count or 1, precision, output)


# Lists


def _print_lists(gpus: bool, models: bool, output: Output) -> None:
    from horae.workload import catalogue

    gpu_records = [_gpu_record(one) for one in catalogue.gpu_types().values()] if gpus else []
    model_records = [_model_record(catalogue.model(name)) for name in catalogue.MODELS] if models else []
    match output:
        case Output.JSON:
            lists = {"gpus": gpu_records, "models": model_records}
            print_json({name: records for name, records in lists.items() if records})
        case Output.CSV:
            if gpus and models:
                raise UserError("CSV holds one table; add --gpus or --models.")
            print_csv(gpu_records or model_records)
        case Output.TABLE:
            if gpus:
                print_rich(_table(_GPU_COLUMNS, gpu_records), _PRICE_NOTE)
            if models:
                print_rich(_table(_MODEL_COLUMNS, model_records), "horae catalogue --model NAME tells more about one.")


def _gpu_record(gpu: GpuType) -> dict[str, Any]:
    return asdict(gpu)


def _model_record(model: Model) -> dict[str, Any]:
    from horae.workload.skew import consolidates

    return {
        "name": model.name,
        "title": model.title,
        "parameters": model.parameters,
        "tensors": len(model.tensors),
        "largest_tensor": model.largest,
        "skew": round(model.skew, 4),
        "when_spread": "suffers" if consolidates(model.skew) else "at home",
        "gflops_per_sample": model.flops_per_sample / 1e9,
        "mb_per_sample": 4 * model.moves_per_sample / 1e6,
        "update_mb": model.update_bytes / 1e6,
        "sample": model.sample,
        "source": model.source,
        "note": model.note,
    }


# Estimates


def _print_estimates(
    model: str | None, gpu: str | None, batch: int | None, gpus: int, precision: str | None, output: Output
) -> None:
    from horae.workload import catalogue
    from horae.workload.roofline import DEFAULT_BATCH

    models = [catalogue.model(model)] if model else [catalogue.model(name) for name in catalogue.MODELS]
    types = [catalogue.gpu_type(gpu)] if gpu else list(catalogue.gpu_types().values())
    batch = batch or (catalogue.batch_size(model) if model else None) or DEFAULT_BATCH
    found = _estimates(models, types, batch, gpus, _precision(precision))
    records = [_estimate_record(one) for one in found]
    if output is Output.CSV:
        print_csv(records)
    elif model and gpu:
        _print_one(found[0], output)
    else:
        subject = _described(models[0]) if model else _gpu_record(types[0])
        _print_many(subject, records, f"{batch} samples a step on each of {gpus} GPUs" if gpus > 1 else "", output)
    if model and models[0].note:
        note(f"{models[0].title}: {models[0].note}; its estimates are too high.")


def _precision(name: str | None) -> Precision | None:
    from horae.core.errors import did_you_mean
    from horae.workload.roofline import Precision

    known = [one.value for one in Precision]
    if name is not None and name not in known:
        raise UserError(f"No precision is called {name!r}.{did_you_mean(name, known)} There are {' and '.join(known)}.")
    return Precision(name) if name else None


def _estimates(
    models: Sequence[Model], types: Sequence[GpuType], batch: int, gpus: int, precision: Precision | None
) -> list[SpeedEstimate]:
    """One estimate for each model and GPU type; in a list, types that lack the precision are left out."""
    from horae.workload.roofline import Precision, estimate

    if len(types) > 1 and precision is Precision.MIXED:
        types = [one for one in types if one.tensor_tflops]
    return [estimate(model, gpu, batch, gpus, precision) for model in models for gpu in types]


def _estimate_record(found: SpeedEstimate) -> dict[str, Any]:
    return {
        "model": found.model.name,
        "gpu": found.gpu.name,
        "batch": found.batch,
        "gpus": found.gpus,
        "precision": found.precision.value,
        "steps_per_s": found.steps_per_s,
        "samples_per_s": found.samples_per_s,
        "origin": found.origin.value,
        "bound": found.bound,
        "step_s": {
            "all": found.step_s,
            "compute": found.compute_s,
            "memory": found.memory_s,
            "calls": found.calls_s,
            "exchange": found.exchange_s,
        },
        "memory_gb": found.memory_gb,
        "gpu_memory_gb": found.gpu.memory_gb,
    }


def _print_one(found: SpeedEstimate, output: Output) -> None:
    if output is Output.JSON:
        print_json({**_estimate_record(found), "source": [found.gpu.source, found.model.source]})
        return
    print_rich(*_account(found))
    if found.memory_gb > found.gpu.memory_gb:
        note(f"It needs about {found.memory_gb:,.0f} GB, and a {found.gpu.title} has {found.gpu.memory_gb:,.0f}.")


def _account(found: SpeedEstimate) -> list[RenderableType]:
    """An estimate with what it is made of and where that comes from."""
    from horae.workload.roofline import CALL_S, LINK_SHARE, MEMORY_SHARE, compute_peak

    tflops, share = compute_peak(found.gpu, found.precision)
    rows = [
        ("compute", found.compute_s, f"layers bound by arithmetic, at {share:.0%} of {tflops:g} TFLOP/s"),
        (
            "memory",
            found.memory_s,
            f"layers bound by memory, at {MEMORY_SHARE:.0%} of {found.gpu.bandwidth_gb_s:g} GB/s",
        ),
        (
            "calls",
            found.calls_s,
            f"{1e6 * CALL_S:.0f} microseconds for each call of a layer; counts if longer than both",
        ),
        ("exchange", found.exchange_s, f"of gradients, at {LINK_SHARE:.0%} of {found.gpu.link_gb_s:g} GB/s"),
        ("step", found.step_s, f"one batch of {found.batch} on each GPU; bound by {found.bound}"),
    ]
    title = f"{found.model.title} on {found.gpus} x {found.gpu.title}, {found.precision}"
    speed = f"{found.steps_per_s:,.4g} steps/s, {found.samples_per_s:,.4g} samples/s (estimated)"
    sources = f"From: {found.gpu.source}; {found.model.source} (one sample: {found.model.sample})."
    milliseconds = [(name, 1e3 * seconds, why) for name, seconds, why in rows]
    return [title, speed, table(("part", "ms", "how"), milliseconds), sources]


def _described(model: Model) -> dict[str, Any]:
    return {**_model_record(model), "tensors": {name: list(shape) for name, shape in model.tensors.items()}}


def _print_many(subject: Mapping[str, Any], records: Sequence[Mapping[str, Any]], what: str, output: Output) -> None:
    if output is Output.JSON:
        print_json({**subject, "estimates": records})
        return
    facts = [
        (key.replace("_", " "), len(value) if isinstance(value, dict) else value) for key, value in subject.items()
    ]
    shown = [(key, value) for key, value in facts if value not in ("", None)]
    print_rich(table(("", ""), shown), _table(_ESTIMATE_COLUMNS, records, what or None), _ESTIMATE_NOTE)


def _table(
    columns: Mapping[str, str], records: Sequence[Mapping[str, Any]], title: str | None = None
) -> RenderableType:
    from horae.report.formatting import NOTHING

    rows = [[NOTHING if record[key] in (None, "") else record[key] for key in columns.values()] for record in records]
    return table(list(columns), rows, title)
