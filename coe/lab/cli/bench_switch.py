"""`coe-bench switch`: measures how long this machine takes to make an expert ready to run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, astuple
from itertools import chain
from typing import TYPE_CHECKING, get_args

from rich.table import Table

from coe import config
from coe.cli.common import err, wide
from coe.cli.console import table_of
from coe.cli.options import WORK, JsonOption, Options, WorkOption, check_json, option, words_of, write_json
from coe.errors import ConfigError, did_you_mean
from coe.helpers.system import usable_cores
from coe.lab.cli.bench_out import beside, choices
from coe.store.blob_format import Variant

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from coe.lab.switch import Cycles, GpuSwitch
    from coe.lab.switch import Switch as CpuSwitch


REPEATS, EXPERTS = 7, 40
_WORDS = ("kind", "variant")
"""The columns of words, on the left."""


class Switch(Options):
    """Measure how long an expert with random weights takes to be ready, from disk and from memory.

    Column "cold" reads the file from disk, "warm" from the file cache; "memory to ready" begins with weights in memory.
    Each "x" divides the time before it by the least time: a plain read of the file (for int8 also opening a session),
    or for "memory to ready" a plain copy of the fp32 weights. "x cpu" is the same ratio for processor time.

    On a GPU, the least time for "host to ready" is a plain copy and the activation. "another x4" is the time of a batch
    of 4 images on a random expert in memory; its "x" divides it by the time on the expert that ran last.

    Example: coe-bench switch --kind resnet101,yolov5m --variant fp32
    """

    kind: str = option("Kinds, separated by commas.", "resnet101", metavar="LIST")
    input_size: int = option("Input size in pixels.", 224, "--input", min=32, max=config.MAX_INPUT)
    variant: str | None = option("Precisions to measure. Default: fp32,int8; on a GPU fp32,fp16,q8.", metavar="LIST")
    device: str = option("cpu, or cuda for the GPU.", "cpu")
    repeats: int | None = option(
        f"Number of measurements; their median is shown. Default: {REPEATS}.", min=1, max=config.MAX_COUNT
    )
    cycles: int | None = option(
        "Instead of measuring times, load, run and evict experts this many times, and show the memory that is not "
        "freed.",
        min=4,
        max=config.MAX_COUNT,
    )
    experts: int | None = option(
        f"With --cycles: number of experts, used in turn. Default: {EXPERTS}.", min=1, max=config.MAX_COUNT
    )
    threads: int | None = option("Threads of the CPU. Default: all cores.", min=1, max=config.MAX_THREADS)
    work: WorkOption = WORK
    json_to: JsonOption = None

    def run(self) -> None:
        from coe.lab.switch import on_cpu, on_gpu, turn_over
        from coe.runtime.cuda import torch_driver

        names = words_of(self.kind)
        check_json(self.json_to)
        if self.repeats is not None and self.cycles is not None:
            raise ConfigError("--repeats is for medians, and --cycles takes no medians; leave one of them out")
        if self.experts is not None and self.cycles is None:
            raise ConfigError("--experts has no effect without --cycles; give --cycles, too")
        if self.device not in ("cpu", "cuda"):
            raise ConfigError(f"--device: there is no '{self.device}'{did_you_mean(self.device, ('cpu', 'cuda'))}")
        if self.device == "cuda" and self.threads is not None:
            raise ConfigError("--threads is for the CPU; leave it out with --device cuda")
        wanted = _variants(self.variant, self.device)
        driver = torch_driver.driver() if self.device == "cuda" else None
        cores, times, count = self.threads or usable_cores(), self.repeats or REPEATS, self.experts or EXPERTS
        if self.cycles is not None:
            turns = [
                turn_over(self.work, name, self.input_size, v, self.cycles, count, cores, driver)
                for name in names
                for v in wanted
            ]
            _show(_cycles_table(turns), turns, self.json_to)
        elif driver is not None:
            measured = [on_gpu(self.work, name, self.input_size, wanted, times, driver, err.print) for name in names]
            switches = list(chain.from_iterable(measured))
            _show(_gpu_table(switches), switches, self.json_to)
        else:
            here = [on_cpu(self.work, name, self.input_size, wanted, times, cores, err.print) for name in names]
            results = list(chain.from_iterable(here))
            _show(_table(results), results, self.json_to)


def _variants(text: str | None, device: str) -> list[Variant]:
    known: tuple[Variant, ...] = ("fp32", "int8") if device == "cpu" else ("fp32", "fp16", "q8")
    if text is None:
        return list(known)
    wanted = [variant for name in choices("--variant", text, get_args(Variant)) for variant in known if variant == name]
    if len(wanted) < len(words_of(text)):
        raise ConfigError(f"--variant: {device} runs {', '.join(known)}; leave the others out, or change --device")
    return wanted


def _show(table: Table, figures: Sequence[DataclassInstance], json_to: str | None) -> None:
    """Print the table, and write the figures as JSON; figures of a GPU come last."""
    wide(beside(json_to)).print(table)
    rows = [asdict(figure) for figure in figures]
    for row in rows:
        row.update(row.pop("device", None) or {})
    write_json(json.dumps(rows, indent=2) + "\n", json_to)


def _table(switches: Sequence[CpuSwitch]) -> Table:
    table = table_of(
        "kind",
        "variant",
        "bytes",
        "cold",
        "x",
        "warm",
        "x",
        "x cpu",
        "memory to ready",
        "x",
        "eager",
        "/ warm",
        left=_WORDS,
    )
    for switch in switches:
        table.add_row(
            switch.kind,
            switch.variant,
            config.format_bytes(switch.bytes),
            *_compared(switch.load_cold_s, switch.read_cold_s, switch.bytes),
            *_compared(switch.load_warm_s, switch.read_warm_s, switch.bytes),
            f"{switch.load_warm_cpu_s / switch.read_warm_cpu_s:.2f}",
            f"{1e3 * switch.ready_s:.1f} ms",
            f"{switch.ready_s / switch.copy_s:.2f}",
            f"{1e3 * switch.eager_s:.0f} ms",
            f"{switch.eager_s / switch.load_warm_s:.0f}",
        )
    return table


def _compared(took_s: float | None, least_s: float | None, size: int) -> tuple[str, str]:
    if took_s is None or least_s is None:
        return "-", "-"
    return f"{1e3 * took_s:.1f} ms, {size / took_s / 1e9:.1f} GB/s", f"{took_s / least_s:.2f}"


def _gpu_table(switches: Sequence[GpuSwitch]) -> Table:
    sizes = list(switches[0].batch_s)
    batches = [heading for images in sizes for heading in (f"another x{images}", "x")]
    table = table_of(
        "kind",
        "variant",
        "bytes",
        "warm file to device",
        "host to device",
        "x",
        "activate",
        "host to ready",
        "x",
        *batches,
        left=_WORDS,
    )
    for switch in switches:
        switched = [(switch.switched_s[images], switch.batch_s[images]) for images in sizes]
        table.add_row(
            switch.kind,
            switch.variant,
            config.format_bytes(switch.bytes),
            f"{1e3 * switch.read_s:.2f} ms",
            f"{1e3 * switch.copy_s:.2f} ms",
            f"{switch.copy_s / switch.plain_copy_s:.2f}",
            f"{1e3 * switch.activate_s:.2f} ms",
            f"{1e3 * switch.ready_s:.2f} ms",
            f"{switch.ready_s / (switch.plain_copy_s + switch.activate_s):.2f}",
            *(cell for other, active in switched for cell in (f"{1e3 * other:.2f} ms", f"{other / active:.2f}")),
        )
    return table


def _cycles_table(turns: Sequence[Cycles]) -> Table:
    on_gpu = ("reserved at first", "at the end", "at most", "budget") if turns[0].device else ()
    table = table_of("kind", "variant", "experts", "cycles", "memory a cycle", "descriptors", *on_gpu, left=_WORDS)
    for turn in turns:
        counts = (f"{turn.experts:,}", f"{turn.cycles:,}", f"{turn.rss_slope_bytes / 1e3:+.2f} KB")
        reserved = map(config.format_bytes, astuple(turn.device)) if turn.device else ()
        descriptors = f"{turn.descriptors_before} to {turn.descriptors_after}"
        table.add_row(turn.kind, turn.variant, *counts, descriptors, *reserved)
    return table
