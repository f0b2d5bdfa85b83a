"""The half of `coe-board new` that begins with a placement file: a board file, and a recipe that finds its parts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coe import config
from coe.board.drafting import TODO
from coe.cli.first_board import FirstBoard, MakeBoard
from coe.cli.placing import BomOption, DialectOption, UnitsOption, YesOption, confirm, with_bom
from coe.errors import ConfigError

if TYPE_CHECKING:
    from coe.placement.draft_recipe import BoardPlan, Mark

_UM_PER_PIXEL = 20.0
EXPERT = "first-look"
_HEAD = """\
# A first board file: one expert compares each part with that of a good board. docs/rules.md explains it.
board: {name}
experts:
  {expert}: {{kind: difference, labels: [different], input: 160, reject: [different], then: {{none: OK}}}}
components:
"""


def placed(
    placements: Annotated[
        Path | None,
        typer.Option(
            "--placements", metavar="FILE", help="A placement (pick-and-place) file: a board of whole pictures."
        ),
    ] = None,
    dialect: DialectOption = None,
    units: UnitsOption = None,
    yes: YesOption = False,
    bom: BomOption = None,
    side: Annotated[str, typer.Option(help="The side that the camera sees: top or bottom.")] = "top",
) -> MakeBoard | None:
    """Return what makes a board from the options; None without a placement file."""
    if placements is None:
        return None

    def make(name: str, to: Path) -> FirstBoard:
        from coe.placement import Side, read_file
        from coe.placement.draft_recipe import plan
        from coe.placement.package_sizes import LIBRARY, read_library

        if side not in set(Side):
            raise ConfigError(f"--side '{side}' is not known; give top or bottom")
        file = read_file(placements, dialect or "generic", units or "")
        if dialect is None or units is None:
            confirm(placements, file, yes=yes)
        library = read_library(Path(LIBRARY)) if Path(LIBRARY).is_file() else ()
        drawn = plan(with_bom(file.placements, bom), Side(side), library)
        return _board(name, to, drawn)

    return make


def _board(name: str, to: Path, drawn: BoardPlan) -> FirstBoard:
    from coe.placement.board_recipe import CameraSpec
    from coe.placement.recipe_text import recipe_text

    marks = fiducials(drawn.marks)
    todo = f"{TODO}: how many micrometres a pixel is on the board"
    text = recipe_text(f"{name}-{drawn.side}", drawn, _UM_PER_PIXEL, CameraSpec(), marks, todo=todo)
    files = {
        to / config.RULES_FOLDER / f"{name}.yaml": rules_text(name, drawn).encode(),
        to / name / "recipe.yaml": text.encode(),
    }
    return FirstBoard(files, (), ())


def rules_text(name: str, drawn: BoardPlan) -> str:
    """Return the board file: each component is compared with its reference."""
    lines = [
        f"  {part.name}: {{count: {len(part.refdes)}, inspect: {EXPERT}, reference: {part.name}}}\n"
        for part in drawn.parts
    ]
    return _HEAD.format(name=name, expert=EXPERT) + "".join(lines)


def fiducials(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """Return the marks that a recipe searches: all of one diameter and look, fiducials rather than holes.

    Raises ConfigError if there are not two.
    """
    kinds = {(mark.look, mark.diameter_mm) for mark in marks}
    groups = [tuple(m for m in marks if (m.look, m.diameter_mm) == kind) for kind in sorted(kinds)]
    best = max(groups, key=lambda group: (len(group) >= 3, group[0].look == "bright", len(group)), default=())
    if len(best) < 2:
        raise ConfigError(
            "the placement file has no two fiducials (FID1, FID2, ...) or mounting holes (H1, H2, ... of a package "
            "MountingHole); export them too, or add lines for them: a designator, x and y"
        )
    return best
