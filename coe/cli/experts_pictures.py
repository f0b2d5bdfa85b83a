"""`coe-experts split`, `boxes`, `overlay` and `crop`: pictures for experts, and what is cut out of whole boards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
from PIL import Image
from rich.progress import BarColumn

from coe.board import rules
from coe.board.board_spec import label_fault
from coe.cli.common import Exit, complain, counting, err, out, point_out
from coe.cli.console import Progress, words
from coe.cli.options import A_BOARD, Options, Record, SeedOption, argument, option, words_of
from coe.cli.placing import Placing, notes
from coe.config import counted
from coe.core import Result
from coe.errors import ConfigError
from coe.helpers.files import replacing, writing
from coe.helpers.spelling import composed
from coe.pictures import finding, photographs
from coe.pictures.label_folders import BAD, GOOD, letters
from coe.pictures.photographs import SPLIT, Purpose, printable
from coe.placement.run_source import WholeBoards


class Split(Options):
    """Write PHOTOS/split.csv, which divides pictures into training, verification and test.

    All pictures of one part get the same purpose. Existing lines do not change: run the command again after you add
    pictures. `reference` and `train` use the training pictures, `calibrate` the verification pictures, and `evaluate`
    the test pictures.

    Example: coe-experts split photos
    """

    photos: Path = argument("Photographs: <component>/<label>/<image>.", ...)
    verify: float = option("Share of verification pictures, for `calibrate`.", 0.2, min=0, max=0.9)
    test: float = option("Share of test pictures, for `evaluate`.", 0.2, min=0, max=0.9)
    group: str = option(
        "Regular expression, e.g. '(SN[0-9]+)': pictures show the same part if it finds the same text in their "
        "paths. Default: the same component, and the same file name up to '__'.",
        "",
    )
    seed: SeedOption = 0

    def run(self) -> Record:
        photos, verify, test = self.photos, self.verify, self.test
        if verify + test >= 1:
            raise ConfigError(f"--verify {verify:g} and --test {test:g} leave no training pictures")
        if (photos / "train").is_dir():
            raise ConfigError(f"{photos} has a folder 'train', which already gives the purpose of its pictures")
        found, before = finding.of_components(photos), photographs.Split.beside(photos)
        shares = {Purpose.LEARN: 1 - verify - test, Purpose.VERIFY: verify, Purpose.TEST: test}
        rows = photographs.split(photos, found, shares, pattern=self.group, seed=self.seed)
        counts: dict[tuple[str, str], Counter[Purpose | None]] = {}
        for one in rows:
            counts.setdefault((one.component, one.label), Counter())[one.purpose] += 1
        if before is not None and (gone := sorted(set(before.rows) - {composed(one.name) for one in rows})):
            point_out("note", f"{counted(len(gone), 'picture')} missing, such as {gone[0]}")
        out.print(
            f"{photos / SPLIT}: {counted(len(rows), 'picture')} in {counted(len({one.part for one in rows}), 'group')}"
        )
        return Record(
            [
                {"component": component, "label": label, **{f"to {each}": of[each] for each in Purpose}}
                for (component, label), of in counts.items()
            ]
        )


SHEET = "sheet.png"


class Boxes(Options):
    """Make a YOLO data set from another program's boxes, or from masks.

    A picture is good if the annotations name it without a box, or if its mask is all 0. Polygons and rotated boxes
    become upright boxes. If a file, picture, label or box cannot be used, the command lists all such faults and writes
    nothing. Check sheet.png, which shows the boxes, before you train.

    Example: coe-experts boxes result.json --images photos --to joints
    """

    annotations: Path = argument("COCO JSON, Pascal VOC XML (a file or a folder of them), or a folder of masks.", ...)
    images: Path = option("Folder with the pictures; subfolders are included.", ..., metavar="FOLDER")
    to: Path = option("New folder, for images/, labels/, data.yaml and sheet.png.", ..., metavar="FOLDER")
    labels: str | None = option(
        "Labels in the order of the board file; required for masks. In a mask, value 1 means the first label, 2 the "
        "second; with a single label, every value but 0 means it. Default: the labels of the annotation file.",
        metavar="LIST",
    )
    clip: bool = option("Cut boxes off at the edge of their picture.", False)
    unmarked_good: bool = option(
        "Treat pictures that the annotations do not name as good. Default: leave them out.", False
    )

    def run(self) -> Record:
        from coe.annotations import annotation_file, yolo_folder
        from coe.annotations.marked import Findings

        to, findings = self.to, Findings()
        yolo_folder.check_new(to)
        named = tuple(composed(word) for word in words_of(self.labels)) if self.labels is not None else ()
        choices = annotation_file.ReadingChoices(named, self.clip, self.unmarked_good)
        with Progress(words("reading", style="bold"), BarColumn(), console=err, transient=True) as bar:
            bar.add_task("", total=None)
            form, marked = annotation_file.read(self.annotations, self.images, choices, findings)
        sheet, shown = yolo_folder.draw(marked), len(yolo_folder.chosen(marked))
        with counting("copying", transient=True) as bar:
            task = bar.add_task("", total=len(marked.pictures))
            data = yolo_folder.write(marked, self.images, to, tick=lambda: bar.advance(task))
        counts = Counter(composed(box.label) for picture in marked.pictures for box in picture.boxes)
        on = Counter(label for picture in marked.pictures for label in {composed(box.label) for box in picture.boxes})
        good = sum(not picture.boxes for picture in marked.pictures)
        for note, count in findings.notes.items():
            point_out("note", f"{count} {note}")
        sheet.save(to / SHEET)
        out.print(
            f"{form}: {counted(len(marked.pictures), 'picture')}, {counted(sum(counts.values()), 'box', 'boxes')}"
        )
        next_command = f"coe-experts train BOARD/NAME --kind yolov5n --data {data}"
        out.print(f"confirm by {to / SHEET} ({counted(shown, 'picture')}), then: {next_command}")
        rows = [{"label": label, "boxes": counts[label], "pictures": on[label]} for label in marked.labels]
        return Record([*rows, {"label": "(no box: good)", "boxes": 0, "pictures": good}])


class Overlay(Placing):
    """Draw on a board's picture what will be cut out: crops, reference designators, pin 1 of each part, fiducials.

    Check the drawing before you inspect: each outline must lie on its part, and each dot at the corner of pin 1.
    Exit status 1 if the board was not found, or if a crop lies partly outside the picture; 3 if the picture cannot
    be read.

    Example: coe-experts overlay SN1.png --board line7 --recipe line7/recipe.yaml
    """

    picture: Path = argument("Picture of a whole board.", ...)
    board: str = option(A_BOARD, ...)
    to: Path = option("PNG file to write.", Path("overlay.png"), "--out")
    side: int = option(
        "Longer side of the drawing in pixels; smaller pictures keep their size.", 1600, min=200, max=20_000
    )

    def run(self) -> Exit:
        layout, to, loaded = self.layout(), self.to, rules.load(self.board)
        if layout is None:
            raise ConfigError("give --recipe: where the components lie on a board")
        if to.suffix.lower() != ".png":
            raise ConfigError(f"--out {to} is not a .png")
        layout.check(loaded.components, loaded.board)

        from coe.placement.board_pictures import read_board
        from coe.placement.overlay_picture import overlay_of

        name = self.picture.name
        read = read_board(self.picture, layout, printable(self.picture.stem), name=name, bits=loaded.bits)
        drawn = Image.fromarray(overlay_of(read, self.side, "RGB"))
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
            return Exit.NOT_GOOD
        refused = [result for result in read.results() if result.verdict is not None]
        for result in refused:
            out.print(f"{result.request.refdes}: {result.findings[0].doubt}")
        residual = "held" if location.residual_um is None else f"residual {location.residual_um:.1f} um"
        out.print(
            f"{counted(len(layout.sites), 'component')}, {residual}, {location.fit.um_per_pixel:.4f} um a "
            f"pixel, rotated by {location.fit.turn_deg:.2f} degrees; look at {to}"
        )
        return Exit.NOT_GOOD if refused else Exit.OK


class Crop(Placing):
    """Cut the components out of pictures of whole boards: OUT/<component>/<label>/<refdes>-<serial>.png.

    `reference`, `train`, `calibrate` and `evaluate` use these photographs. Exit status 1 if a part could not be cut
    out; the output gives the reason.

    Example: coe-experts crop line7 --recipe line7/recipe.yaml --images boards --out photos
    """

    board: str | None = argument("Board whose file must have each component that is cut out. Default: no check.")
    images_at: Path = option("Pictures of whole boards: a folder, or one picture.", ..., "--images")
    to: Path = option("Folder for the photographs; existing pictures are kept.", ..., "--out")
    label: str = option(
        "Label of all parts of these boards, e.g. good. Default: none; then sort the crops into folders of labels "
        "yourself.",
        "",
    )

    def run(self) -> Record:
        layout, label, bits = self.layout(), self.label, None
        if layout is None:
            raise ConfigError("give --recipe: where the components lie on a board")
        if label and (fault := label_fault([label]) or ("it names a folder in a folder" if "/" in label else None)):
            raise ConfigError(f"--label: {fault}")
        if self.board is not None:
            loaded = rules.load(self.board)
            bits = loaded.bits
            layout.check(loaded.components, loaded.board)
            labels = {one for expert in loaded.experts.values() for one in expert.labels}
            if label and label not in labels and letters(label) not in GOOD | BAD:
                known = ", ".join(sorted(labels))
                raise ConfigError(f"--label '{label}': give good, bad, or a label of the board: {known}")
        boards = WholeBoards(layout, self.images_at, bits)
        cut, lost, present = Counter[str](), Counter[str](), 0
        with counting("cutting") as bar:
            for one in bar.track(boards.feed(boards.items, None), total=len(boards.items)):
                if isinstance(one, Result):
                    why = one.failure.reason if one.failure is not None else one.findings[0].doubt
                    lost[f"{one.request.serial}: {why}"] += 1
                    continue
                place = self.to / one.component / label / f"{one.refdes}-{one.serial}.png"
                if place.exists():
                    present += 1
                    continue
                with writing(place):
                    place.parent.mkdir(parents=True, exist_ok=True)
                    with replacing(place) as file:
                        Image.fromarray(np.ascontiguousarray(np.asarray(one.image)[:, :, ::-1])).save(file, "PNG")
                cut[one.component] += 1
        for reason, number in lost.items():
            complain(f"{reason} ({counted(number, 'component')})")
        there = f"; {present} existed already, and were kept" if present else ""
        out.print(f"{self.to}: {cut.total()} crops of {len({item.path for item in boards.items})} pictures{there}")
        rows = [{"component": component, "crops": number} for component, number in sorted(cut.items())]
        return Record(rows, Exit.NOT_GOOD if lost else Exit.OK)
