"""Shared by the commands of `coe-bench`: lists of words, and the output of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.table import Table

from coe.cli.common import err, out, wide
from coe.cli.console import Console
from coe.cli.options import STANDARD_OUTPUT, words_of, write_json
from coe.errors import ConfigError, did_you_mean
from coe.lab.rows import Row, to_json, to_table
from coe.scheduler.strategies import Strategy, check_hurry

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def choices(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Read a list of known words, or "all" of them, each once; raises ConfigError that names the option."""
    known = list(known)
    words = known if text.strip() == "all" else words_of(text)
    for word in words:
        if word not in known:
            raise ConfigError(f"{option}: there is no '{word}'{did_you_mean(word, known)}")
    return list(dict.fromkeys(words))


def heeded(max_wait_s: float | None, chosen: Sequence[Strategy]) -> float | None:
    """Return how long images may wait; raises ConfigError if it is no time, or if no strategy heeds it."""
    heeding = [strategy for strategy in chosen if strategy.hurries] or chosen
    for strategy in heeding[:1]:
        check_hurry(strategy, max_wait_s=max_wait_s)
    return max_wait_s


def beside(json_to: str | None) -> Console:
    """Return where tables and sentences go: to standard error if the JSON goes to standard output."""
    return err if json_to == STANDARD_OUTPUT else out


def show_figures(table: Table, figures: Sequence[DataclassInstance], json_to: str | None) -> None:
    """Print a table, and write its figures as a JSON list."""
    wide(beside(json_to)).print(table)
    write_json(json.dumps([asdict(figure) for figure in figures], indent=2) + "\n", json_to)


def show(rows: Sequence[Row], json_to: str | None) -> None:
    """Print the table, and write the rows as JSON."""
    console = wide(beside(json_to))
    table = to_table(rows)
    if Measurement.get(console, console.options.update_width(1000), table).maximum > console.width:
        table = to_table(rows, upright=True)
    console.print(table)
    write_json(to_json(rows), json_to)
