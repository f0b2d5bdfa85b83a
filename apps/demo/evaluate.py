"""Measure how well the demo board is inspected, on boards that no expert was trained on.

`python -m apps.demo.evaluate` renders two lots and inspects them through the public API. In the first, as on a
production line, most parts are good. In the second every third part has a defect, so that each defect occurs often
enough to count. A verdict is right if it is OK for a good part and NG for a bad one; REVIEW is never right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple
from pathlib import Path

from rich.table import Table

from apps.demo.production import BoardPlace, lot, take
from apps.demo.verdicts import Count
from coe import Inspector, Picture
from coe.cli.console import Console
from coe.core import Result, Verdict

FIRST_SEED = 9001
"""The first seed of lots for evaluation, far from the seeds of training and of the demo's boards."""


Counts = dict[str, Count]


def inspect(line: Inspector, places: Iterable[BoardPlace]) -> Iterator[tuple[BoardPlace, Result]]:
    """Photograph and inspect places; yield each place with its result as soon as the result is ready."""
    under_way: dict[str, BoardPlace] = {}

    def pictures() -> Iterator[Picture]:
        for place in places:
            under_way[place.file] = place
            yield Picture(take(place), place.component, place.serial, place.refdes, place.file, "RGB")

    for result in line.stream(pictures()):
        yield under_way.pop(result.request.image), result


def tally(results: Iterable[tuple[BoardPlace, Result]]) -> tuple[Counts, Counts]:
    """Count results by component and by defect ("ok" for none)."""
    by_component: Counts = {}
    by_defect: Counts = {}
    for place, result in results:
        by_component.setdefault(place.component, Count()).add(place.defect, result)
        by_defect.setdefault(place.defect or "ok", Count()).add(place.defect, result)
    return by_component, by_defect


def total(counts: Counts) -> Count:
    """Return the sum of counts."""
    return Count(*map(sum, zip(*map(astuple, counts.values()), strict=True)))


def _table(title: str, counts: Counts) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True, min_width=14)
    for name in ("good", "bad", "escapes", "false calls", "review: good", "review: bad", "right"):
        table.add_column(name, justify="right")
    for name, count in [*sorted(counts.items()), ("all", total(counts))]:
        numbers = (count.good, count.bad, count.escapes, count.false_calls, count.good_reviewed, count.bad_reviewed)
        table.add_row(name, *map(str, numbers), f"{count.accuracy:.2%}", style="bold" if name == "all" else "")
    return table


def _show(
    console: Console, title: str, by_component: Counts, by_defect: Counts, outcomes: list[tuple[BoardPlace, Result]]
) -> None:
    console.print(_table(f"{title}: by component", by_component))
    console.print(_table(f"{title}: by defect", by_defect))
    for place, result in outcomes:
        if result.verdict is not (Verdict.NG if place.defect else Verdict.OK):
            findings = ", ".join(f"{f.expert} {f.label} {f.score:.2f}" for f in result.findings)
            console.print(f"  {place.file} {place.defect or 'ok'}: {result.verdict} ({findings or result.error})")


def main(arguments: list[str] | None = None) -> None:
    """Evaluate and print; exit status 1 if fewer than `--at-least` of the verdicts are right."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.evaluate", description=__doc__)
    parser.add_argument("--board", default="demo", help="the board: demo, or first_look (%(default)s)")
    parser.add_argument("--store", type=Path, help="the expert store (default: $COE_STORE, or ./store)")
    parser.add_argument("--boards", type=int, default=12, help="boards of each lot (%(default)s)")
    parser.add_argument("--seed", type=int, default=FIRST_SEED, help="seed of the boards (%(default)s)")
    parser.add_argument("--memory", default="1.5GiB", help="memory of the line (%(default)s)")
    parser.add_argument(
        "--at-least", type=float, default=0.97, metavar="SHARE", help="exit status 1 below this accuracy (%(default)s)"
    )
    parser.add_argument(
        "--precision",
        default="fp32",
        help="fp32 or mixed; fp32,mixed inspects the same lots in both and lists verdicts that differ",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args(arguments)
    console = Console(width=120)
    report: dict[str, dict[str, object]] = {}
    lots = {
        "as on a line": lot(options.boards, options.seed),
        "every third part defective": lot(options.boards, options.seed + 1, defective=1 / 3),
    }
    shares: list[float] = []
    verdicts: dict[str, dict[tuple[str, str], Verdict | None]] = {}
    precisions = options.precision.split(",")
    for precision in precisions:
        settings = {"store": options.store, "memory": options.memory, "precision": precision}
        with Inspector(options.board, allow_kinds=["apps.demo"], **settings) as line:
            for name, places in lots.items():
                outcomes = list(inspect(line, places))
                said = {(name, place.file): result.verdict for place, result in outcomes}
                verdicts.setdefault(precision, {}).update(said)
                by_component, by_defect = tally(outcomes)
                whole = total(by_component)
                shares.append(whole.accuracy)
                title = name if len(precisions) == 1 else f"{name}, {precision}"
                report[title] = {"images": whole.images, "accuracy": whole.accuracy, **asdict(whole)}
                if not options.json:
                    _show(console, title, by_component, by_defect, outcomes)
            if not options.json:
                metrics = line.metrics()
                console.print(
                    f"precision {precision}: {metrics.escalated} of {metrics.stages} findings were second looks, "
                    f"{metrics.changed} changed"
                )
    if len(precisions) > 1 and not options.json:
        first, last = verdicts[precisions[0]], verdicts[precisions[-1]]
        other = [place for place, verdict in first.items() if last[place] is not verdict]
        console.print(f"{len(first) - len(other)} of {len(first)} verdicts are equal ({options.precision})")
        for name, file in other:
            console.print(f"  {name}, {file}: {first[name, file]}, then {last[name, file]}")
    if options.json:
        print(json.dumps(report, indent=2))
    sys.exit(0 if min(shares) >= options.at_least else 1)


if __name__ == "__main__":
    main()
