"""`coe-bench switch`: what it costs to bring an expert to where it runs, on this machine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer
from rich.table import Table

from coe import config
from coe.cli.bench_out import STANDARD_OUTPUT, check_json, write_json
from coe.cli.common import err, out, wide
from coe.cli.options import WORK, JsonOption, WorkOption
from coe.errors import ConfigError, did_you_mean
from coe.store.blob_format import Variant

if TYPE_CHECKING:
    from coe.bench.switch import Cycles, Switch


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

    names, wanted = [name.strip() for name in kind.split(",")], _variants(variant)
    check_json(json_to)
    if repeats is not None and cycles is not None:
        raise ConfigError("--repeats are of medians, and --cycles takes none; leave one of them out")
    if experts is not None and cycles is None:
        raise ConfigError("--experts come in turn with --cycles only; give --cycles too")
    repeats, experts = repeats or REPEATS, experts or EXPERTS
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"--device: there is no '{device}'{did_you_mean(device, ('cpu', 'cuda'))}")
    if device == "cuda":
        if threads is not None:
            raise ConfigError("--threads are those of the CPU; leave it out with --device cuda")
        _on_gpu(work, names, input_size, wanted, repeats, cycles, experts, json_to)
        return
    each = threads or bench.cores()
    if cycles is not None:
        left = [bench.turn_over(work, name, input_size, v, cycles, experts, each) for name in names for v in wanted]
        rows = [{"kind": name, "variant": v} for name in names for v in wanted]
        _show(_cycles_table(rows, left), [{**row, **asdict(one)} for row, one in zip(rows, left, strict=True)], json_to)
        return
    found: list[Switch] = []
    for name in names:
        found += bench.measure(work, name, input_size, wanted, repeats, each, err.print)
    _show(_table(found), [asdict(one) for one in found], json_to)


def _on_gpu(
    work: Path,
    names: Sequence[str],
    input_size: int,
    wanted: Sequence[Variant],
    repeats: int,
    cycles: int | None,
    experts: int,
    json_to: str | None,
) -> None:
    from coe.bench import gpu

    if cycles is not None:
        left = [(name, v, gpu.turn_over(work, name, input_size, v, cycles, experts)) for name in names for v in wanted]
        table = _new("kind", "variant", "cycles", "reserved at first", "at the end", "at most", "budget")
        for name, v, one in left:
            counts = (one.reserved_before, one.reserved_after, one.peak_reserved, one.budget)
            table.add_row(name, v, f"{one.cycles:,}", *(config.format_bytes(count) for count in counts))
        _show(table, [{"kind": name, "variant": v, **asdict(one)} for name, v, one in left], json_to)
        return
    found = [one for name in names for one in gpu.measure(work, name, input_size, wanted, repeats, err.print)]
    batches = [heading for images in gpu.BATCHES for heading in (f"another x{images}", "x")]
    table = _new("kind", "variant", "bytes", "warm file to device", "host to device", "x", *batches)
    for each in found:
        table.add_row(
            each.kind,
            each.variant,
            config.format_bytes(each.bytes),
            f"{1e3 * each.read_s:.2f} ms",
            f"{1e3 * each.copy_s:.2f} ms",
            f"{each.copy_s / each.plain_copy_s:.2f}",
            *(
                cell
                for images in gpu.BATCHES
                for cell in (
                    f"{1e3 * each.switched_s[images]:.2f} ms",
                    f"{each.switched_s[images] / each.batch_s[images]:.2f}",
                )
            ),
        )
    _show(table, [asdict(each) for each in found], json_to)


def _variants(text: str) -> list[Variant]:
    known: tuple[Variant, ...] = get_args(Variant)
    found: list[Variant] = []
    for name in text.split(","):
        if not (fitting := [one for one in known if one == name.strip()]):
            raise ConfigError(f"--variant: there is no '{name.strip()}'{did_you_mean(name, known)}")
        found += fitting
    return found


def _show(table: Table, rows: Sequence[dict[str, object]], json_to: str | None) -> None:
    wide(err if json_to == STANDARD_OUTPUT else out).print(table)
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


def _cycles_table(rows: Sequence[dict[str, str]], left: Sequence[Cycles]) -> Table:
    table = _new("kind", "variant", "experts", "cycles", "memory a cycle", "descriptors")
    for row, one in zip(rows, left, strict=True):
        counts = (f"{one.experts:,}", f"{one.cycles:,}", f"{one.rss_slope_bytes / 1e3:+.2f} KB")
        table.add_row(row["kind"], row["variant"], *counts, f"{one.descriptors_before} to {one.descriptors_after}")
    return table
