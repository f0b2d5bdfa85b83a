"""`coe-experts boxes`: boxes from other programs, or masks, become a data set that detectors learn from."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn

from coe.cli.common import counting, err, out, point_out, wide
from coe.cli.console import Progress, table_of, words
from coe.cli.tool_options import words_of
from coe.spelling import composed

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
