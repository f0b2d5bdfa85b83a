"""Make the board file of a large production board: `python -m apps.boards.make --board A --seed 1 --out FILE`.

The two boards are as large as those of the CoServe paper (section 5.1): A has 352 component types, B has 342; each
type has its own ResNet101 classifier, and about a third lead to YOLOv5 detectors that several types share.
Every choice comes from the seed, through `random.Random.random()` alone, whose sequence Python guarantees.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from random import Random

from apps.boards.catalogue import COMMON, DETECTORS, FAMILIES, Family

TYPES = {"A": 352, "B": 342}
LEFT_OUT: dict[str, frozenset[str]] = {"A": frozenset(), "B": frozenset({"J-USB", "SH", "U-BGA"})}
"""Families that a board does not have; detectors that no type then needs are left out, too."""
TOP_COUNT, ZIPF, HEAD = 180, 1.25, 5
"""Counts fall as 1 / (rank + HEAD) ** ZIPF from TOP_COUNT (Zipf's law with Mandelbrot's flatter head)."""


@dataclass(frozen=True, slots=True)
class ComponentType:
    """One component type of a board: how many a board carries, its classifier, and the detectors behind it."""

    name: str
    expert: str
    labels: tuple[str, ...]
    count: int
    ok_share: float
    then: tuple[str, ...]


def components(board: str, seed: int) -> list[ComponentType]:
    """Choose the component types of a board, the most frequent first."""
    rng = Random(seed)
    families = [family for family in FAMILIES if family.prefix not in LEFT_OUT[board]]
    chosen: list[tuple[float, Family, str, str, str, bool]] = []
    for family, wanted in zip(families, _quotas(families, TYPES[board]), strict=True):
        types = sorted(family.types(), key=lambda row: rng.random() - (f"{row[1]}-{row[2]}" in COMMON))[:wanted]
        chained = max(round(wanted * family.chained), int(family.chained > 0))
        for place, (name, package, value) in enumerate(types):
            rank = family.popular * (0.2 + rng.random()) * (0.2 if f"{package}-{value}" in COMMON else 1.0)
            chosen.append((rank, family, name, package, value, place < chained))
    chosen.sort(key=lambda row: (row[0], row[2]))
    return [
        ComponentType(
            name=name,
            expert=f"{family.noun}-{package}-{value}".lower(),
            labels=family.labels,
            count=max(1, round(TOP_COUNT * (HEAD / (rank + HEAD)) ** ZIPF)),
            ok_share=round(0.94 + 0.05 * rng.random(), 2),
            then=family.then if chained else (),
        )
        for rank, (_, family, name, package, value, chained) in enumerate(chosen)
    ]


def _quotas(families: list[Family], total: int) -> list[int]:
    """Share `total` types among the families by largest remainder; no family gives more types than it has."""
    whole = sum(family.share for family in families)
    exact = [min(total * family.share / whole, len(family.types())) for family in families]
    quotas = [int(number) for number in exact]
    by_rest = sorted(range(len(families)), key=lambda i: (quotas[i] - exact[i], i))
    while sum(quotas) < total:
        for i in by_rest:
            if sum(quotas) < total and quotas[i] < len(families[i].types()):
                quotas[i] += 1
    return quotas


def board_file(board: str, seed: int) -> str:
    """Return the text of the board file."""
    parts = components(board, seed)
    used = {name for part in parts for name in part.then}
    detectors = {name: detector for name, detector in DETECTORS.items() if name in used}
    chained = sum(bool(part.then) for part in parts)
    lines = [
        f"# Board {board}: {len(parts)} component types, {sum(part.count for part in parts)} components, "
        f"{len(parts) + len(detectors)} experts ({len(detectors)} shared detectors behind {chained} types).",
        f"# Made in the source folder by: python -m apps.boards.make --board {board} --seed {seed} "
        f"--out routing_rules/board_{board.lower()}.yaml",
        f"board: board_{board.lower()}",
        "",
        "experts:",
        "  # detectors, shared by several component types",
    ]
    for name, detector in detectors.items():
        lines.append(
            f"  {name}: {{kind: {detector.kind}, labels: {_flow(detector.labels)}, input: {detector.input_size}, "
            f"reject: {_flow(detector.reject)}, then: {{none: REVIEW}}}}"
        )
    lines.append("  # classifiers, one for each component type")
    lines += [
        f"  {part.expert}: {{kind: resnet101, labels: {_flow(part.labels)}, input: 224, "
        f"reject: {_flow(part.labels[1:])}}}"
        for part in sorted(parts, key=lambda part: part.expert)
    ]
    lines += ["", "components:  # the most frequent first"]
    for part in parts:
        then = f", then: {{ok: {part.then[0] if len(part.then) == 1 else _flow(part.then)}}}" if part.then else ""
        lines.append(
            f"  {part.name}: {{count: {part.count}, inspect: {part.expert}, min_score: 0.8, "
            f"shares: {{ok: {part.ok_share:.2f}}}{then}}}"
        )
    return "\n".join(lines) + "\n"


def _flow(words: tuple[str, ...]) -> str:
    return "[" + ", ".join(words) + "]"


def main(arguments: list[str] | None = None) -> None:
    """Write the board file that the options ask for."""
    parser = argparse.ArgumentParser(prog="python -m apps.boards.make", description=__doc__)
    parser.add_argument("--board", choices=sorted(TYPES), required=True, help="board to make")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices (default: 1)")
    parser.add_argument("--out", type=Path, required=True, help="YAML file to write")
    options = parser.parse_args(arguments)
    options.out.write_text(board_file(options.board, options.seed), encoding="utf-8")
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
