"""The half of `coe-board new` that begins with photographs: a board file with an expert for each component."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.board.drafting import TODO, flow
from coe.cli.first_board import FirstBoard, MakeBoard
from coe.errors import ConfigError
from coe.pictures import photographs
from coe.pictures.photographs import BAD, GOOD, letters
from coe.spelling import composed

TELLS, COMPARES = "probe", "difference"
"""The kind that tells labels from each other, and the kind for components of which good parts alone are shown."""
_SIDES = (64, 96, 128, 160, 224)
_LEAST = 4
"""With fewer pictures of a label an expert cannot learn it."""
_HEAD = """\
# A first board file, from the photographs in {photos}. docs/rules.md explains it.
# `then` says what follows each label: OK, NG, REVIEW (a person looks), or the name of another expert.
board: {name}
experts:
"""


@dataclass(frozen=True, slots=True)
class PhotographedComponent:
    """What the photographs of a component show: how many of each folder ("" for none), and the longest side, pixels."""

    name: str
    counts: Mapping[str, int]
    side_px: int

    @property
    def labels(self) -> list[str]:
        """The folders of labels, what is good first."""
        return sorted(filter(None, self.counts), key=lambda label: (letters(label) not in GOOD, label))

    @property
    def tells(self) -> bool:
        """Whether there are labels to tell from each other."""
        return len(self.labels) > 1

    @property
    def input_px(self) -> int:
        """The side of an expert's input that shows all of most pictures."""
        return next((side for side in _SIDES if side >= self.side_px), _SIDES[-1])


def photographed(
    photos: Annotated[
        Path | None,
        typer.Option("--photos", metavar="FOLDER", help="Photographs of components: <component>/<label>/<image>."),
    ] = None,
) -> MakeBoard | None:
    """Return what makes a board from photographs; None without any."""
    if photos is None:
        return None

    def make(name: str, to: Path) -> FirstBoard:
        shown = look(photos)
        rules = to / config.RULES_FOLDER / f"{name}.yaml"
        return FirstBoard(
            {rules: rules_text(name, photos, shown).encode()},
            tuple(notes(shown)),
            _next(name, rules, to, photos, shown),
        )

    return make


def look(photos: Path) -> list[PhotographedComponent]:
    """Return what a folder of photographs shows, by component; raises ConfigError for what is in no such folder."""
    if not photos.is_dir():
        raise ConfigError(f"{photos} is not a folder; expected {photographs.LAYOUT}")
    components = {composed(path.name) for path in photos.iterdir() if path.is_dir() and not path.name.startswith(".")}
    try:
        found = photographs.find(photos, components, (), strict=True)
    except OSError as error:
        raise ConfigError(f"{error.filename or photos} cannot be read: {error.strerror or error}") from error
    if loose := [one.name for one in found if not one.component or "/" in one.label]:
        raise ConfigError(f"{photos}: {', '.join(loose[:5])}: expected {photographs.LAYOUT}")
    if not found:
        raise ConfigError(f"{photos} holds no pictures; expected {photographs.LAYOUT}")
    counts: dict[str, Counter[str]] = {}
    sides: dict[str, list[int]] = {}
    for one in found:
        counts.setdefault(one.component, Counter())[one.label] += 1
        if len(of_it := sides.setdefault(one.component, [])) < _LEAST:
            of_it.append(_side(one.path))
    return [
        PhotographedComponent(name, counts[name], sorted(sides[name])[len(sides[name]) // 2]) for name in sorted(counts)
    ]


def _side(path: Path) -> int:
    from coe.errors import ImageError
    from coe.pictures.decoding import decode

    try:
        return int(max(decode(path).shape[:2]))
    except ImageError as error:
        raise ConfigError(f"{path} {error}; remove it or save it again") from error


def rules_text(name: str, photos: Path, shown: list[PhotographedComponent]) -> str:
    """Return the board file: an expert for each component, of its labels; what nobody knows to be good is REVIEW."""
    lines = [_HEAD.format(photos=photos, name=flow(name))]
    for one in shown:
        kind, labels, more = TELLS, one.labels, ""
        if not one.tells:
            kind, labels, more = COMPARES, ["different"], ", reject: [different], then: {none: OK}"
        spec = f"kind: {kind}, labels: {flow(labels)}, input: {one.input_px}{more}"
        lines.append(f"  {flow(one.name)}: {{{spec}}}\n")
    lines.append("components:\n")
    for one in shown:
        lines.append(f"  {flow(one.name)}:\n    count: 1  # how many a board has\n    inspect: {flow(one.name)}\n")
        if not one.tells:
            lines.append(f"    reference: {flow(one.name)}\n")
            continue
        lines.append("    then:\n")
        decided = any(letters(label) in GOOD for label in one.labels)
        for label in one.labels:
            verdict = "OK" if letters(label) in GOOD else "NG" if letters(label) in BAD else "REVIEW"
            mark = "" if verdict != "REVIEW" else "  # OK, NG or REVIEW" if decided else f"  # {TODO}: OK, NG or REVIEW"
            lines.append(f"      {flow(label)}: {verdict}{mark}\n")
    return "".join(lines)


def notes(shown: list[PhotographedComponent]) -> list[str]:
    """Return sentences about what the photographs lack."""
    said = []
    for one in shown:
        if one.tells and (few := [label for label in one.labels if one.counts[label] < _LEAST]):
            said.append(
                f"{one.name}: fewer than {_LEAST} pictures of {', '.join(few)}: too few to learn, verify and test"
            )
        if one.tells and one.counts.get(""):
            said.append(f"{one.name}: {one.counts['']} pictures lie in no folder of a label; put them into one")
        if not one.tells and len(one.labels) == 1 and letters(one.labels[0]) not in GOOD:
            said.append(f"{one.name}: no good parts, only {one.labels[0]}; put some into {one.name}/good")
    return said


def _next(
    name: str, rules: Path, to: Path, photos: Path, shown: list[PhotographedComponent]
) -> tuple[tuple[str, ...], ...]:
    board, images = str(rules), str(photos)
    commands: list[tuple[str, ...]] = [("coe-experts", "split", images)]
    if any(not one.tells for one in shown):
        commands.append(("coe-experts", "reference", board, "--images", images))
    commands += [
        (
            "coe-experts",
            "train",
            f"{name}/{one.name}",
            "--board",
            board,
            "--data",
            images,
            "--epochs",
            "1",
            "--no-prepare",
        )
        for one in shown
    ]
    commands += [
        ("coe-experts", "evaluate", board, "--images", images, "--report", str(to / name / "evaluation.html")),
        ("coe-inspect", "--board", board, "--images", images, "--out", str(to / name / "run")),
    ]
    return tuple(commands)
