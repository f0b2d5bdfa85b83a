"""`coe-experts crop`: cuts the components out of pictures of whole boards, as photographs to learn from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from PIL import Image

from coe.board import rules
from coe.board.board_spec import label_fault
from coe.cli.common import Exit, complain, counting, out, wide
from coe.cli.console import table_of
from coe.cli.inspect_source import WholeBoards
from coe.cli.options import takes
from coe.cli.placing import layout_of
from coe.core import Result
from coe.errors import ConfigError
from coe.files import replacing, writing
from coe.pictures.label_folders import BAD, GOOD, letters
from coe.placement.board_layout import Layout


@takes("layout", layout_of)
def crop(
    board: Annotated[
        str | None,
        typer.Argument(
            help="Board: a name or a YAML file of routing rules, whose components the recipe must name. Default: none "
            "yet, and the components of the recipe are taken."
        ),
    ] = None,
    *,
    images_at: Annotated[Path, typer.Option("--images", help="Pictures of whole boards: a folder, or one picture.")],
    layout: Layout | None,
    to: Annotated[Path, typer.Option("--out", help="The folder of photographs. Pictures there are never replaced.")],
    label: Annotated[
        str,
        typer.Option(
            help="What is true of all parts of these boards, as good: the name of the folder in that of the component. "
            "Default: none, and a person sorts the crops into such folders."
        ),
    ] = "",
) -> None:
    """Cut the components out of pictures of whole boards: OUT/<component>/<label>/<refdes>-<serial>.png.

    These are the photographs that `reference`, `train`, `calibrate` and `evaluate` take. Exit status 1 if a component
    of a board could not be cut out, which is named.

    Example: coe-experts crop line7 --placements pnp.csv --recipe line7/recipe.yaml --images boards --out photos
    """
    if layout is None:
        raise ConfigError("give --placements and --recipe: where the components lie on a board")
    if label and (fault := label_fault([label]) or ("it names a folder in a folder" if "/" in label else None)):
        raise ConfigError(f"--label: {fault}")
    bits = None
    if board is not None:
        loaded = rules.load(board)
        bits = loaded.bits
        layout.check(loaded.components, loaded.board)
        labels = {one for expert in loaded.experts.values() for one in expert.labels}
        if label and label not in labels and letters(label) not in GOOD | BAD:
            raise ConfigError(
                f"--label '{label}': give good, bad, or a label of the board: {', '.join(sorted(labels))}"
            )

    boards = WholeBoards(layout, images_at, bits)
    cut: Counter[str] = Counter()
    present, lost = 0, Counter[str]()
    with counting("cutting") as bar:
        for one in bar.track(boards.feed(boards.items, None), total=len(boards.items)):
            if isinstance(one, Result):
                why = one.failure.reason if one.failure is not None else one.findings[0].doubt
                lost[f"{one.request.serial}: {why}"] += 1
                continue
            place = to / one.component / label / f"{one.refdes}-{one.serial}.png"
            if place.exists():
                present += 1
                continue
            with writing(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                with replacing(place) as file:
                    Image.fromarray(np.ascontiguousarray(np.asarray(one.image)[:, :, ::-1])).save(file, "PNG")
            cut[one.component] += 1
    for reason, number in lost.items():
        complain(f"{reason} ({number} components)")
    table = table_of("component", "crops", left=("component",))
    for component, number in sorted(cut.items()):
        table.add_row(component, str(number))
    wide(out).print(table)
    there = f"; {present} were there already, and stay" if present else ""
    out.print(f"{to}: {cut.total()} crops of {len({item.path for item in boards.items})} pictures{there}")
    raise typer.Exit(Exit.NOT_GOOD if lost else Exit.OK)
