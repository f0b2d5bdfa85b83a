"""`coe-bench switch`: what it costs to bring an expert to where it runs, on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple
from itertools import chain
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.table import Table

from coe import config
from coe.cli.bench_out import STANDARD_OUTPUT, check_json, write_json
from coe.cli.common import err, out, wide
from coe.cli.options import WORK, JsonOption, WorkOption
from coe.errors import ConfigError, did_you_mean
from coe.store.blob_format import Variant
from coe.system import usable_cores

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from coe.bench.cycles import Cycles
    from coe.bench.switch import GpuSwitch, Switch


REPEATS, EXPERTS = 7, 40


def switch(  # noqa: PLR0913
    kind: Annotated[str, typer.Option(metavar="LIST", help="One or more, separated by commas.")] = "resnet101",
    input_size: Annotated[
        int, typer.Option("--input", min=32, max=config.MAX_INPUT, help="Input size in pixels.")
    ] = 224,
    variant: Annotated[str, typer.Option(metavar="LIST", help="Precisions to prepare and measure.")] = "fp32,bf16,q8",
    device: Annotated[str, typer.Option(help="cpu, or cuda for the GPU; that runs fp32, fp16 and q8.")] = "cpu",
    repeats: Annotated[
        int | None, typer.Option(min=1, max=config.MAX_COUNT, help=f"Medians of so many. Default: {REPEATS}.")
    ] = None,
    cycles: Annotated[
        int | None,
        typer.Option(min=4, max=config.MAX_COUNT, help="Instead: load, run and evict so often; what is left behind?"),
    ] = None,
    experts: Annotated[
        int | None,
        typer.Option(
            min=1, max=config.MAX_COUNT, help=f"With --cycles: how many experts come in turn. Default: {EXPERTS}."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=config.MAX_THREADS, help="Of torch. Default: all cores.")
    ] = None,
    work: WorkOption = WORK,
    json_to: JsonOption = None,
) -> None:
    """Measure switches on experts of random weights: from disk and from memory until they run.

    "x" is the time over the least that this machine could do, measured in the same turns: a plain read of the same
    file into memory that is reused; for "memory to ready", a plain copy of the weights' bytes in fp32. "cold" is from
    the disk, "warm" from the system's cache. On a GPU, "another x4" is a batch of 4 on another resident expert each
    time, and "x" that time over a batch on one that is active already.

    Example: coe-bench switch --kind resnet101,yolov5m --variant fp32,q8
    """
    from coe.bench import switch as bench
    from coe.bench.cycles import turn_over
    from coe.runtime.cuda import torch_driver

    names, wanted = [name.strip() for name in kind.split(",")], _variants(variant)
    check_json(json_to)
    if repeats is not None and cycles is not None:
        raise ConfigError("--repeats are of medians, and --cycles takes none; leave one of them out")
    if experts is not None and cycles is None:
        raise ConfigError("--experts come in turn with --cycles only; give --cycles too")
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device: there is no '{device}'{did_you_mean(device, ('cpu', 'cuda'))}")
    if device == "cuda" and threads is not None:
        raise ConfigError("--threads are those of the CPU; leave it out with --device cuda")
    driver = torch_driver.driver() if device == "cuda" else None
    cores, times, count = threads or usable_cores(), repeats or REPEATS, experts or EXPERTS
    if cycles is not None:
        turns = [turn_over(work, name, input_size, v, cycles, count, cores, driver) for name in names for v in wanted]
        _show(_cycles_table(turns), turns, json_to)
    elif driver is not None:
        on_gpu = [bench.on_gpu(work, name, input_size, wanted, times, driver, err.print) for name in names]
        switches = list(chain.from_iterable(on_gpu))
        _show(_gpu_table(switches), switches, json_to)
    else:
        on_cpu = [bench.on_cpu(work, name, input_size, wanted, times, cores, err.print) for name in names]
        found = list(chain.from_iterable(on_cpu))
        _show(_table(found), found, json_to)


def _variants(text: str) -> list[Variant]:
    known: tuple[Variant, ...] = get_args(Variant)
    found: list[Variant] = []
    for name in text.split(","):
        if not (fitting := [one for one in known if one == name.strip()]):
            raise ConfigError(f"--variant: there is no '{name.strip()}'{did_you_mean(name, known)}")
        found += fitting
    return found


def _show(table: Table, found: Sequence[DataclassInstance], json_to: str | None) -> None:
    """Print the table, and write the figures that there are as JSON; what one of them has on a GPU stands behind."""
    wide(err if json_to == STANDARD_OUTPUT else out).print(table)
    rows = [asdict(one) for one in found]
    for row in rows:
        row.update(row.pop("device", None) or {})
    write_json(json.dumps(rows, indent=2) + "\n", json_to)


def _new(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="left" if number < 2 else "right")
    return table


def _table(found: Sequence[Switch]) -> Table:
    table = _new("kind", "variant", "bytes", "cold", "x", "warm", "x", "memory to ready", "x", "usual way", "/ warm")
    for one in found:
        table.add_row(
            one.kind,
            one.variant,
            config.format_bytes(one.bytes),
            *_against(one.load_cold_s, one.read_cold_s, one.bytes),
            *_against(one.load_warm_s, one.read_warm_s, one.bytes),
            f"{1e3 * one.ready_s:.1f} ms",
            f"{one.ready_s / one.copy_s:.2f}",
            f"{1e3 * one.usual_s:.0f} ms",
            f"{one.usual_s / one.load_warm_s:.0f}",
        )
    return table


def _against(took_s: float | None, least_s: float | None, size: int) -> tuple[str, str]:
    if took_s is None or least_s is None:
        return "-", "-"
    return f"{1e3 * took_s:.1f} ms, {size / took_s / 1e9:.1f} GB/s", f"{took_s / least_s:.2f}"


def _gpu_table(found: Sequence[GpuSwitch]) -> Table:
    sizes = list(found[0].batch_s)
    batches = [heading for images in sizes for heading in (f"another x{images}", "x")]
    table = _new("kind", "variant", "bytes", "warm file to device", "host to device", "x", *batches)
    for one in found:
        switched = [(one.switched_s[images], one.batch_s[images]) for images in sizes]
        table.add_row(
            one.kind,
            one.variant,
            config.format_bytes(one.bytes),
            f"{1e3 * one.read_s:.2f} ms",
            f"{1e3 * one.copy_s:.2f} ms",
            f"{one.copy_s / one.plain_copy_s:.2f}",
            *(cell for other, active in switched for cell in (f"{1e3 * other:.2f} ms", f"{other / active:.2f}")),
        )
    return table


def _cycles_table(found: Sequence[Cycles]) -> Table:
    on_gpu = ("reserved at first", "at the end", "at most", "budget") if found[0].device else ()
    table = _new("kind", "variant", "experts", "cycles", "memory a cycle", "descriptors", *on_gpu)
    for one in found:
        counts = (f"{one.experts:,}", f"{one.cycles:,}", f"{one.rss_slope_bytes / 1e3:+.2f} KB")
        reserved = map(config.format_bytes, astuple(one.device)) if one.device else ()
        descriptors = f"{one.descriptors_before} to {one.descriptors_after}"
        table.add_row(one.kind, one.variant, *counts, descriptors, *reserved)
    return table
