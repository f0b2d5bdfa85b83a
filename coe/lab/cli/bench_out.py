"""Shared by the commands of `coe-bench`: lists of strategies, and the output of rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.measure import Measurement
from rich.table import Table

from coe.cli.common import err, out, wide
from coe.cli.console import Console
from coe.cli.tool_options import STANDARD_OUTPUT, words_of, write_json
from coe.errors import ConfigError, did_you_mean
from coe.lab.cli.bench_ways import EAGER, current
from coe.lab.rows import Row, seeds_json, seeds_table, to_json, to_table
from coe.lab.time_limits import Times
from coe.scheduler.strategies import Strategy, check_hurry, names, present_name
from coe.scheduler.strategies import strategy as named_strategy

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def strategies(text: str, *, also: Sequence[str] = (), eager: bool = False) -> list[str]:
    """Read a list such as "samba,coserve", or "all"; raises ConfigError for a name that does not exist.

    The list may hold names of `also`, which "all" does not include; with `eager`, also strategies that end in EAGER.
    """
    if text.strip() == "all":
        return names()
    chosen = [current(name) if eager else present_name(name) for name in words_of(text)]
    for name in chosen:
        plain = name.removesuffix(EAGER) if eager else name
        if plain in also and plain != name:
            raise ConfigError(
                f"there is no '{name}': '{plain}' is a configuration, not a strategy; name a strategy, as samba{EAGER}"
            )
        if plain not in also:
            named_strategy(plain)
    return chosen


def choices(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Read a list of known words, or "all" of them, each once; raises ConfigError that names the option."""
    known = list(known)
    words = known if text.strip() == "all" else words_of(text)
    for word in words:
        if word not in known:
            raise ConfigError(f"{option}: there is no '{word}'{did_you_mean(word, known)}")
    return list(dict.fromkeys(words))


def heeded(allowed: Times, chosen: Sequence[Strategy]) -> Times:
    """Return how long images may take; raises ConfigError if it is no time, or if no strategy heeds it."""
    heeding = [strategy for strategy in chosen if strategy.hurries] or chosen
    for strategy in heeding[:1]:
        check_hurry(strategy, max_wait_s=allowed.max_wait_s, within_s=allowed.within_s)
    return allowed


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


def show_seeds(rows_of_seeds: Sequence[Sequence[Row]], first: int, json_to: str | None) -> None:
    """Show rows, of several seeds with their spread; `first` is the first seed. JSON has each run."""
    if len(rows_of_seeds) == 1:
        show(rows_of_seeds[0], json_to)
        return
    wide(beside(json_to)).print(seeds_table(rows_of_seeds))
    write_json(seeds_json(rows_of_seeds, first), json_to)
