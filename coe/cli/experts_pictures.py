"""`coe-experts split`, `boxes`, `overlay` and `crop`: pictures for experts, and what is cut out of whole boards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from PIL import Image
from rich.progress import BarColumn

from coe.board import rules
from coe.board.board_spec import label_fault
from coe.cli.common import Exit, complain, counting, err, out, point_out, wide
from coe.cli.console import Progress, table_of, words
from coe.cli.inspect_source import WholeBoards
from coe.cli.options import takes
from coe.cli.placing import layout_of, notes
from coe.cli.tool_options import SeedOption, words_of
from coe.core import Result
from coe.errors import ConfigError
from coe.helpers.files import replacing, writing
from coe.helpers.spelling import composed
from coe.pictures import photographs, split_making
from coe.pictures.finding import printable
from coe.pictures.label_folders import BAD, GOOD, letters
from coe.pictures.photo_split import SPLIT, Purpose, Split
from coe.placement.board_layout import Layout

if TYPE_CHECKING:
    from coe.placement.board_layout import Layout


def split(
    photos: Annotated[Path, typer.Argument(help="Photographs: <component>/<label>/<image>.")],
    verify: Annotated[
        float, typer.Option(min=0, max=0.9, help="The share of pictures to verify with: `calibrate` takes them.")
    ] = 0.2,
    test: Annotated[
        float, typer.Option(min=0, max=0.9, help="The share of pictures to test on: `evaluate` takes them.")
    ] = 0.2,
    group: Annotated[
        str,
        typer.Option(
            help="A regular expression that finds in a path what pictures of one part have in common, as '(SN[0-9]+)'. "
            "Default: the component and the file's name up to '__'."
        ),
    ] = "",
    seed: SeedOption = 0,
) -> None:
    """Write PHOTOS/split.csv: which pictures are to learn from, to verify with, and to test on.

    Pictures of one part stay together. What the file says of a picture stays: run it again after pictures were added.
    `reference` and `train` then take the pictures to learn from, `calibrate` those to verify with, `evaluate` those to
    test on.

    Example: coe-experts split photos
    """
    if verify + test >= 1:
        raise ConfigError(f"--verify {verify:g} and --test {test:g} leave nothing to learn from")
    if (photos / "train").is_dir():
        raise ConfigError(f"{photos} has a folder 'train', which says already what its pictures are for")
    found = photographs.of_components(photos)
    before = Split.beside(photos)
    shares = {Purpose.LEARN: 1 - verify - test, Purpose.VERIFY: verify, Purpose.TEST: test}
    after = split_making.extended(photos, found, shares, pattern=group, seed=seed)
    split_making.write(after)
    counts: dict[tuple[str, str], Counter[Purpose]] = {}
    for one in found:
        counts.setdefault((one.component, one.label), Counter())[after.rows[after.name_of(one.path)].purpose] += 1
    table = table_of("component", "label", *(f"to {purpose}" for purpose in Purpose), left=("component", "label"))
    for (component, label), of_purpose in counts.items():
        table.add_row(component, label, *(str(of_purpose[purpose]) for purpose in Purpose))
    wide(out).print(table)
    if before is not None and (gone := sorted(set(before.rows) - set(after.rows))):
        point_out("note", f"{len(gone)} pictures are not there any more, such as {gone[0]}")
    groups = len({row.group for row in after.rows.values()})
    out.print(f"{photos / SPLIT}: {len(found)} pictures in {groups} groups")
    raise typer.Exit(Exit.OK)


SHEET = "sheet.png"


def boxes(
    annotations: Annotated[
        Path, typer.Argument(help="COCO JSON, Pascal VOC XML (a file or a folder of them), or a folder of masks.")
    ],
    images: Annotated[Path, typer.Option(metavar="FOLDER", help="The pictures, with subfolders.")],
    to: Annotated[Path, typer.Option(metavar="FOLDER", help="A new folder: images/, labels/, data.yaml, sheet.png.")],
    labels: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="The labels in the order of the board's file. Masks: all that is not 0, or 1 is the first label, "
            "2 the second. Default: the labels of the file.",
        ),
    ] = None,
    clip: Annotated[
        bool, typer.Option("--clip", help="Cut boxes off that reach over the edge of their picture.")
    ] = False,
    unmarked_good: Annotated[
        bool,
        typer.Option("--unmarked-good", help="Pictures that the annotations do not name are good ones; else left out."),
    ] = False,
) -> None:
    """Make a YOLO data set of boxes that were drawn elsewhere, or of masks, and a sheet to confirm it by.

    A picture that is named and has no box is a good one. Polygons and turned boxes become the upright box around
    them. All that does not fit is named, and nothing is written then. Look at sheet.png before you train.

    Example: coe-experts boxes result.json --images photos --to joints
    """
    from coe.annotations import annotation_file, yolo_folder
    from coe.annotations.marked import Findings

    yolo_folder.check_new(to)
    findings = Findings()
    named = tuple(composed(word) for word in words_of(labels)) if labels is not None else ()
    choices = annotation_file.ReadingChoices(named, clip, unmarked_good)
    with Progress(words("reading", style="bold"), BarColumn(), console=err, transient=True) as bar:
        bar.add_task("", total=None)
        form, marked = annotation_file.read(annotations, images, choices, findings)
    sheet, shown = yolo_folder.draw(marked), len(yolo_folder.chosen(marked))
    with counting("copying", transient=True) as bar:
        task = bar.add_task("", total=len(marked.pictures))
        data = yolo_folder.write(marked, images, to, tick=lambda: bar.advance(task))
    table = table_of("label", "boxes", "pictures", left=["label"])
    counts = Counter(composed(box.label) for picture in marked.pictures for box in picture.boxes)
    on = Counter(label for picture in marked.pictures for label in {composed(box.label) for box in picture.boxes})
    for label in marked.labels:
        table.add_row(label, str(counts[label]), str(on[label]))
    table.add_row("(no box: good)", "", str(sum(not picture.boxes for picture in marked.pictures)))
    wide(out).print(table)
    for note, count in findings.notes.items():
        point_out("note", f"{count} {note}")
    sheet.save(to / SHEET)
    out.print(f"{form}: {len(marked.pictures)} pictures, {sum(counts.values())} boxes")
    out.print(
        f"confirm by {to / SHEET} ({shown} pictures), then: coe-experts train BOARD/NAME --kind yolov5n --data {data}"
    )


@takes("layout", layout_of)
def overlay(
    picture: Annotated[Path, typer.Argument(help="A picture of a whole board.")],
    board: Annotated[str, typer.Option(help="Board: a name or a YAML file of routing rules.")],
    *,
    layout: Layout | None,
    to: Annotated[Path, typer.Option("--out", help="The picture to write, a .png.")] = Path("overlay.png"),
    side: Annotated[
        int, typer.Option(min=200, max=20_000, help="The longer side of the picture in pixels; it is never enlarged.")
    ] = 1600,
) -> None:
    """Draw what will be cut out of a board: crops, reference designators, first pins, and the fiducials found.

    Look at it before you inspect: each outline must lie on its part, and each dot at the corner of its first pin. Exit
    status 1 if the board is not registered, or a crop lies partly outside of the picture; 3 if it cannot be read.

    Example: coe-experts overlay b.png --board demo --placements p.csv --dialect kicad --units mm --recipe r.yaml
    """
    loaded = rules.load(board)
    if layout is None:
        raise ConfigError("give --placements, --dialect, --units and --recipe")
    if to.suffix.lower() != ".png":
        raise ConfigError(f"--out {to} is not a .png")
    layout.check(loaded.components, loaded.board)

    from coe.placement.board_pictures import read_board
    from coe.placement.overlay_picture import overlay_of

    read = read_board(picture, layout, printable(picture.stem), name=picture.name, bits=loaded.bits)
    drawn = Image.fromarray(overlay_of(read, side, "RGB"))
    with writing(to), replacing(to) as file:
        drawn.save(file, "PNG")
    location = read.location
    assert location is not None
    for note in notes(layout):
        out.print(note)
    for unit, why in location.skipped.items():
        out.print(f"unit {unit} is skipped: {why}")
    if location.fit is None:
        out.print(f"not registered: {location.why}; see {to}")
        raise typer.Exit(Exit.NOT_GOOD)
    refused = [result for result in read.results() if result.verdict is not None]
    for result in refused:
        out.print(f"{result.request.refdes}: {result.findings[0].doubt}")
    residual = "held" if location.residual_um is None else f"residual {location.residual_um:.1f} um"
    out.print(
        f"{len(layout.sites)} components, {residual}, {location.fit.um_per_pixel:.4f} um a "
        f"pixel, turned by {location.fit.turn_deg:.2f} degrees; look at {to}"
    )
    raise typer.Exit(Exit.NOT_GOOD if refused else Exit.OK)


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
