"""`coe-bench resident`: measures how many images a core inspects with an expert in memory, in each precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from coe import config
from coe.cli.common import err
from coe.cli.console import table_of
from coe.cli.options import WORK, JsonOption, Options, WorkOption, check_json, option, words_of
from coe.errors import ConfigError
from coe.inspector.precision import MODES
from coe.lab.cli.bench_out import choices, show_figures

if TYPE_CHECKING:
    from coe.lab.resident import ResidentTimes


class Resident(Options):
    """Measure how many images a second one core inspects with an expert that stays in memory.

    The expert has random weights; one executor with one thread runs it. Columns of processor time per image: "line" in
    all threads, "device" in the executor, "bare" in a plain onnxruntime loop with the int8 model. "x fp32" is the speed
    divided by that of fp32.

    Example: coe-bench resident --kind resnet18,yolov5n:320
    """

    kind: str = option(
        "Kinds, separated by commas, each with an optional input size: yolov5n:640.",
        "resnet18,resnet101,yolov5n:320,yolov5n:640",
        metavar="LIST",
    )
    precision: str = option("fp32, mixed or both.", "fp32,mixed", metavar="LIST")
    images: int = option("Images of each precision in a round.", 16, min=1, max=config.MAX_COUNT)
    repeats: int = option("Rounds; precisions take turns.", 5, min=1, max=config.MAX_COUNT)
    work: WorkOption = WORK
    json_to: JsonOption = None

    def run(self) -> None:
        from coe.lab import resident as measuring

        check_json(self.json_to)
        chosen = choices("--precision", self.precision, MODES)
        rows = [
            row
            for name, size in map(_sized, words_of(self.kind))
            for row in measuring.resident(
                self.work, name, size, chosen, images=self.images, rounds=self.repeats, say=err.print
            )
        ]
        show_figures(_table(rows), rows, self.json_to)


def _sized(word: str) -> tuple[str, int]:
    """Read a kind and its input size; raises ConfigError."""
    name, colon, size = word.partition(":")
    if not colon:
        return name, 224
    if not size.isdecimal() or not 32 <= int(size) <= config.MAX_INPUT:
        raise ConfigError(f"--kind: '{word}' has no input size from 32 to {config.MAX_INPUT}; write it as yolov5n:640")
    return name, int(size)


def _table(rows: Sequence[ResidentTimes]) -> Table:
    headings = ("kind", "input", "precision", "runs", "batch", "line", "device", "bare", "device/bare")
    more = ("images/s", "x fp32", "wall", "again")
    table = table_of(*headings, *more, left=("kind", "precision", "runs"))
    for row in rows:
        table.add_row(
            row.kind,
            f"{row.input_size}",
            row.precision,
            ",".join(row.variants),
            f"{row.batch:.1f}",
            f"{row.line_ms:.2f} ms",
            f"{row.device_ms:.2f} ms",
            "-" if row.bare_ms is None else f"{row.bare_ms:.2f} ms",
            "-" if row.bare_ms is None else f"{row.device_ms / row.bare_ms:.2f}",
            f"{1e3 / row.line_ms:.1f}",
            f"{row.images_over_fp32:.2f}",
            f"{row.wall_ms:.2f} ms",
            f"{row.again:.0%}",
        )
    return table
