"""The half of `coe-board new` that begins with photographs: the commands that learn from them, judge, and inspect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from coe import config
from coe.cli.first_board import FirstBoard, MakeBoard
from coe.cli.tool_options import PolarityOption
from coe.errors import ConfigError, list_few
from coe.pictures import photographs
from coe.pictures.label_folders import GOOD, letters
from coe.strict_model import name_fault

_LEAST = 6
"""With fewer pictures of a label there is hardly one each to learn from, to verify with and to test on."""


def photographed(
    photos: Annotated[
        Path | None,
        typer.Option("--photos", metavar="FOLDER", help="Photographs of components: <component>/<label>/<image>."),
    ] = None,
    polarity: PolarityOption = None,
) -> MakeBoard | None:
    """Return what makes a board from photographs; None without any."""
    if photos is None:
        return None

    def make(name: str, to: Path) -> FirstBoard:
        shown = look(photos)
        rules = to / config.RULES_FOLDER / f"{name}.yaml"
        for folder in (rules.parent, to / name):
            folder.mkdir(parents=True, exist_ok=True)
        board, images = str(rules), str(photos)
        said = () if polarity is None else ("--polarity", polarity)
        choose = ("coe-experts", "choose", board, "--images", images, "--no-prepare", *said)
        commands = (
            ("coe-experts", "split", images),
            choose,
            ("coe-experts", "evaluate", board, "--images", images, "--report", str(to / name / "evaluation.html")),
            ("coe-inspect", "--board", board, "--images", images, "--out", str(to / name / "run")),
        )
        return FirstBoard({}, tuple(notes(shown)), commands, images, choose)

    return make


def look(photos: Path) -> dict[str, Counter[str]]:
    """Return how many pictures a folder of photographs shows, by component and folder of a label ("" for none).

    Raises ConfigError for pictures that lie elsewhere, and for a component none of whose folders means good.
    """
    found = photographs.of_components(photos)
    if loose := [one.name for one in found if not one.component or "/" in one.label]:
        raise ConfigError(f"{photos}: {list_few(loose)}: expected {photographs.LAYOUT}")
    photographs.expect_decided(photos, found)
    shown: dict[str, Counter[str]] = {}
    for one in found:
        shown.setdefault(one.component, Counter())[one.label] += 1
    if fault := name_fault(shown):
        raise ConfigError(f"{photos}: folders of components: {fault}")
    if without := [name for name, counts in shown.items() if not any(map(_is_good, counts))]:
        raise ConfigError(f"{photos}: no good parts of {', '.join(without)}; put pictures into {without[0]}/good")
    return shown


def _is_good(label: str) -> bool:
    return not label or letters(label) in GOOD


def notes(shown: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return sentences about what the photographs lack."""
    said = []
    for name, counts in shown.items():
        if few := [f"{number} of {label}" for label, number in counts.items() if label and number < _LEAST]:
            said.append(f"{name}: only {', '.join(few)}: too few to learn, verify and test; give {_LEAST} or more")
        if counts.get("") and len(counts) > 1:
            said.append(f"{name}: {counts['']} pictures in no folder of a label count as good; put them into good")
    return said
