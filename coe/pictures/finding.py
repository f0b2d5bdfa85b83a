"""The pictures of a folder as rows (`coe.pictures.photographs`): what names of folders and files say of each.

`find` is for runs: `<component>/<image>`, also with folders of labels, `<serial>/<refdes>__<component>.<ext>`, and a
table `images.csv`. An image that fits no layout, or whose names disagree, becomes a row with an `error`, so that it
gets a result like every other image. So does every file that lies where an image belongs and cannot be read, whatever
its ending is (`coe.pictures.picture_names`). No image is dropped, and nothing is guessed.

`labelled` is for whoever learns from photographs, `<component>/<label>/*`, or measures by them. What a label means for
an expert, the rules say (`coe.board.photo_labels`). A date says nothing of parts, so such a folder is as good as the
one in which it lies. Pictures straight in the folder of a component have no label.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from coe.core import NOTHING, Failure, FailureKind
from coe.errors import ConfigError, list_few, readable
from coe.helpers.spelling import composed
from coe.pictures.folder import EntryKind, FolderEntry, walk, why_no_file
from coe.pictures.formats import EXTENSIONS
from coe.pictures.label_folders import BAD, GOOD, Components, is_undecided, letters, says_label, spelling
from coe.pictures.photographs import TABLE, Photograph, Skipped, natural, printable, read_table
from coe.pictures.picture_names import (
    RAW_BESIDE,
    bare,
    goes_with_pictures,
    holds_picture,
    is_called_picture,
    is_temporary,
    other_format,
    raw_beside,
    stem,
    unfinished,
)

LAYOUT = "<component>/<label>/<picture>, where a label may be good or bad"
LAYOUTS = (
    "expected <component>/<image>, <component>/<label>/<image>, <serial>/<refdes>__<component>.<ext>, or a table "
    f"{TABLE}"
)
_SHOWN = 3
_MASKS = "groundtruth"
"""The name of folders in which masks lie beside pictures, by its `letters`."""


def find(source: Path, components: Components | Collection[str]) -> tuple[list[Photograph], list[Skipped]]:
    """Return the images in a folder, a table or a single file, in natural order (R2 before R10).

    The labels of `components` may name folders in theirs, as may words for good and bad, and dates. If a folder holds a
    table `images.csv`, only the images in the table are inspected, each as the component that the table states. Names
    meet whether they are in NFC or NFD. Raises ConfigError if `source` does not exist, cannot be read or holds no
    image, and if the table is no file, has no usable header or names an image twice.
    """
    known = components if isinstance(components, Components) else Components(components)
    items: list[Photograph]
    skipped: list[Skipped] = []
    with readable(source):
        if not source.exists():
            raise ConfigError(f"{source}: there is no such folder or file; give --images a folder of images")
        table = source / TABLE if source.is_dir() else source
        if source.is_dir() and not os.path.lexists(table):
            items, skipped = _rows(source, known)
            items = list(_on_boards(items))
        elif source.is_dir() or source.suffix.lower() == ".csv":
            _must_be_file(table)
            header = "the first line must be path,component,serial,refdes (and reference, sha256, if images bring them)"
            items = read_table(table, ("path", "component"), header, lambda one: known.fault(one.component))
        elif is_called_picture(source.name) or holds_picture(source) or other_format(source):
            _must_be_file(source)
            items = [_row(FolderEntry(source, EntryKind.FILE), source.parent, known)]
        else:
            forms = " ".join(sorted(EXTENSIONS))
            raise ConfigError(f"{source} is not an image ({forms}), a folder or a .csv table; unpack an archive first")
    if not items:
        others = f" (only {len(skipped)} other files)" if skipped else ""
        raise ConfigError(f"{source} holds no images{others}; {LAYOUTS}")
    return items, skipped


def image_at(entry: FolderEntry, folder: Path, known: Components) -> Photograph | None:
    """Return the image of one entry of a folder, as `find` would; None if it is none. Its neighbours do not count.

    What lies in a folder that is no component, and tells neither serial nor component, belongs to that board.
    """
    item = _row(entry, folder, known)
    inside = PurePosixPath(entry.path.relative_to(folder).as_posix())
    if (entry.kind is EntryKind.FILE and goes_with_pictures(entry.path)) or not _is_image(item, entry, inside.parent):
        return None
    if len(inside.parts) > 1 and not item.serial and not item.component and composed(inside.parts[0]) not in known:
        return replace(item, serial=printable(composed(inside.parts[0])))
    return item


def serial_in(path: Path) -> str:
    """Return the serial that the name of a whole board's picture is."""
    return printable(composed(stem(path.name)))


def _must_be_file(path: Path) -> None:
    if reason := why_no_file(path):
        raise ConfigError(f"{path} {reason}; give --images a folder of images, an image or a table")


def _rows(folder: Path, known: Components | None) -> tuple[list[Photograph], list[Skipped]]:
    """Return what is or may be a picture in a folder, in natural order, and what else lies there; raises OSError.

    Rows have components and boards if components are `known`.
    """
    items: list[Photograph] = []
    notes: list[Photograph] = []
    skipped: list[Skipped] = []
    entries = list(walk(folder, hidden=True))
    raw = raw_beside(entry.path for entry in entries)
    for entry in entries:
        inside = PurePosixPath(entry.path.relative_to(folder).as_posix())
        item = _row(entry, folder, known)
        if entry.path in raw:
            skipped.append(Skipped(entry.path, RAW_BESIDE))
        elif entry.kind is EntryKind.FILE and goes_with_pictures(entry.path):
            notes.append(item)
        elif _is_image(item, entry, inside.parent):
            items.append(item)
        else:
            reason = entry.reason or "does not have a picture's name, and is where no picture belongs"
            board = composed(inside.name) if entry.kind is EntryKind.EMPTY and len(inside.parts) == 1 else ""
            skipped.append(Skipped(entry.path, reason, "" if known is None or board in known else printable(board)))
    items = list(_told_apart(items))
    shown = {(item.serial, item.refdes) for item in items}
    for note in notes:
        is_place = known is not None and note.serial and note.component in known and not note.path.name.startswith(".")
        if is_place and (note.serial, note.refdes) not in shown:
            reason = f"belongs to a picture of {note.refdes}, which does not exist"
            items.append(replace(note, failure=Failure(FailureKind.IMAGE, reason)))
        else:
            skipped.append(Skipped(note.path, f"'{printable(note.path.suffix)}' is not the extension of an image"))
    items.sort(key=lambda item: natural(item.name))
    return items, sorted(skipped, key=lambda other: natural(str(other.path)))


def _row(entry: FolderEntry, folder: Path, known: Components | None) -> Photograph:
    """Return the row of an entry, which has a failure if it cannot be the picture that its name is about."""
    inside = PurePosixPath(entry.path.relative_to(folder).as_posix())
    # Hidden folders do not count in its place: programs write uploads there.
    shown = [part for part in inside.parts[:-1] if not part.startswith(".")]
    item = Photograph(entry.path)
    if known is not None:
        item = _place(entry.path, PurePosixPath(*shown, inside.name), Path(os.path.abspath(folder)), known)
    hidden = "is in a hidden folder, like an upload under way; wait for the picture, or move it"
    reason = entry.reason or (hidden if len(shown) < len(inside.parts) - 1 else "")
    reason = reason or unfinished(inside.name) or other_format(entry.path)
    failure = Failure(FailureKind.IMAGE, reason) if reason else item.failure
    return replace(item, name=printable(str(inside)), failure=failure)


def _is_image(item: Photograph, entry: FolderEntry, parent: PurePosixPath) -> bool:
    """Tell whether an entry is an image, or may have been one: by its ending, its place, or its content."""
    name, kind = entry.path.name, entry.kind
    if kind is EntryKind.LEFT:
        return False
    refdes, _, component = stem(name).partition("__")
    if is_called_picture(name) or (refdes and component):
        return True
    if kind is EntryKind.FILE and (any(map(is_called_picture, parent.parts)) or (parent.name and is_temporary(name))):
        return True
    if name.startswith("."):
        return kind is EntryKind.FILE and ("upload" in name.lower() or holds_picture(entry.path))
    if kind is EntryKind.EMPTY:
        return False
    # In the folder of a component names are free. What cannot be looked into may be a folder of images.
    return kind is EntryKind.UNREADABLE or (
        kind is EntryKind.FILE and (item.component != "" or holds_picture(entry.path))
    )


def _told_apart(items: Sequence[Photograph]) -> Iterator[Photograph]:
    """Give images an error whose names are one name in NFC: they look the same, and nobody could tell their results."""
    names: dict[str, list[str]] = defaultdict(list)
    for item in items:
        names[composed(item.name)].append(item.name)
    for item in items:
        same = names[composed(item.name)]
        reason = f"has a name that exists in two spellings, {' and '.join(map(ascii, same))}; rename one of them"
        yield item if len(same) == 1 else replace(item, failure=Failure(FailureKind.IMAGE, reason))


def _on_boards(items: Sequence[Photograph]) -> Iterator[Photograph]:
    """Give images without serial and component to the board in whose folder they lie: it is not OK without them."""
    serials = {item.serial for item in items if item.serial}
    for item in items:
        parent, mark, _ = composed(item.name).partition("/")
        lies_there = mark and not item.serial and not item.component and parent in serials
        yield replace(item, serial=parent) if lies_there else item


def _place(path: Path, inside: PurePosixPath, folder: Path, known: Components) -> Photograph:
    """Return the item of an image by its name; `inside` is its path relative to `folder`, which is absolute."""
    own, folders = composed(folder.name), [composed(part) for part in inside.parts[:-1]]
    parent, label = known.said_by(own, folders)
    refdes, mark, component = composed(_named(inside.name, known)).partition("__")
    is_inside = parent in folders[:1] or not (folders and mark) or says_label(folders[0], known.labels)
    if not parent or not is_inside or any(name in known for name in folders[1:]):
        if len(folders) > 1:
            # cookie/good/a.png, as <component>/<label>/<image>, is of a component that the board lacks.
            is_labelled = len(folders) == 2 and not mark and folders[1] not in known
            reason = known.unknown(folders[0]) if is_labelled else "is too deep in the folder"
            return _unclear(path, f"{reason}; {LAYOUTS}")
        parent, label = folders[0] if folders else own, ""
    of_folder, stated = known.spelt(parent), known.spelt(component)
    if parent in known:
        # In the folder of a component names are free, and most state no component; R1__C5 and R1__C5__2 do.
        stated = next(filter(None, map(known.spelt, (component, *component.split("__")))), None)
    if stated not in (None, of_folder) and of_folder is not None:
        # We do not guess which of two names is right: the image counts for neither component. A serial hardly has the
        # name of a component, as in c0/R1__C5.
        return _unclear(
            path,
            f"its folder says component '{parent}' and its name says '{stated}'; rename one of them, or list the image "
            f"in a table {TABLE}",
        )
    if parent in known:
        return Photograph(path, parent, label=label)
    serial, refdes, component = printable(parent), printable(refdes), printable(component)
    if not mark:
        hint = known.hint(parent) or f"; {LAYOUTS}"
        return _unclear(path, f"its folder '{serial}' is not a component of the board{hint}")
    failure = None if component in known else Failure(FailureKind.RULES, known.unknown(component))
    return Photograph(path, component, serial, refdes, failure=failure)


def _named(name: str, known: Components) -> str:
    """Return a file's name without what does not belong to a component; names of components may have dots."""
    whole = bare(name)
    return next(
        (text for text in (whole, whole.rpartition(".")[0]) if composed(text).partition("__")[2] in known), stem(name)
    )


def _unclear(path: Path, reason: str) -> Photograph:
    return Photograph(path, failure=Failure(FailureKind.RULES, reason))


# Photographs with labels


def expect_decided(root: Path, found: Sequence[Photograph]) -> None:
    """Raise ConfigError with the folders that lie where those of labels do, and are undecided, or called nearly alike.

    Folders of labels in the place of those of components are refused. So is `none`: before a board says what a detector
    answers, it may as well mean that the part is missing.
    """
    said = sorted({one.component for one in found if letters(one.component) in GOOD | BAD})
    if said and not any(one.label for one in found):
        raise ConfigError(
            f"{root}: '{said[0]}' means good or bad, but the name of a component is expected; put these folders into "
            f"one that is named after the component, e.g. {root / 'R0402' / said[0]}"
        )
    called: dict[tuple[str, str], str] = {}
    for one in found:
        former = called.setdefault((one.component, spelling(one.label)), one.label)
        if former != one.label and letters(former) not in GOOD | BAD:
            raise ConfigError(
                f"{root}: '{former}' and '{one.label}' of {one.component or 'one component'} are two spellings of "
                "one label; put their pictures into one folder"
            )
    labelled = (one for one in found if one.label)
    undecided = {one.folder for one in labelled if is_undecided(one.label) or letters(one.label) == NOTHING}
    if undecided:
        raise ConfigError(
            f"{root}: {', '.join(sorted(undecided))}: is that good or bad? Sort these pictures into folders of labels, "
            "rename a folder after what is wrong with its parts, or remove them"
        )


def photographs_in(root: Path, components: Collection[str] = (), labels: Collection[str] = ()) -> list[Photograph]:
    """Return what is or may be a picture in a folder of photographs, in natural order; raises OSError.

    The folder holds a folder of each component, or is that of one component, or holds folders of labels alone.
    """
    rows, known, own = [], Components(components, labels), composed(root.resolve().name)
    for one in _rows(root, None)[0]:
        component, label = known.said_by(own, [composed(name) for name in one.path.relative_to(root).parts[:-1]])
        rows.append(replace(one, component=component, label=label))
    return rows


def labelled(root: Path, components: Collection[str] = (), labels: Collection[str] = ()) -> list[Photograph]:
    """Return the pictures in a folder of photographs, in natural order.

    Raises ConfigError for masks, and with whatever is no picture, or not for what its name says; OSError.
    """
    found = photographs_in(root, components, labels)
    _expect_no_masks(root, [one.path.relative_to(root) for one in found])
    odd = "does not have a picture's extension; rename it to .png or .jpg"
    why = {one.path: one.error or ("" if one.path.suffix.lower() in EXTENSIONS else odd) for one in found}
    if faults := [
        f"{path} {error}{'' if ';' in error else '; correct it or remove it'}" for path, error in why.items() if error
    ]:
        raise ConfigError(list_few(faults, _SHOWN, "; "))
    return found


def pictures(root: Path) -> list[Path]:
    """Return the pictures in a folder and its folders; raises as `labelled` does."""
    return [one.path for one in labelled(root)]


def of_components(root: Path) -> list[Photograph]:
    """Return the pictures of a folder of folders of components, before any rules name these.

    Raises ConfigError if there are none, or if the folder cannot be read.
    """
    if not root.is_dir():
        raise ConfigError(f"'{root}' is not a folder; expected {LAYOUT}")
    with readable(root):
        folders = {composed(path.name) for path in root.iterdir() if path.is_dir()}
        found = labelled(root, folders)
    if not found:
        raise ConfigError(f"'{root}' holds no pictures; expected {LAYOUT}")
    return found


def _expect_no_masks(root: Path, files: Sequence[Path]) -> None:
    """Raise ConfigError if a folder in `root` holds masks, as those of MVTec AD and its relatives do.

    It lies beside `train` or `test`, or holds what is called a mask; others are a user's own.
    """
    folders = {folder for file in files for folder in file.parents}
    masks = {folder for file in files if file.stem.endswith("_mask") for folder in file.parents}
    for folder in sorted(folder for folder in folders if letters(folder.name) == _MASKS):
        if folder in masks or not folders.isdisjoint((folder.parent / "train", folder.parent / "test")):
            raise ConfigError(
                f"{root}: '{folder.as_posix()}' holds masks, as in MVTec AD, and no photographs; remove it, and put "
                "the folders of 'train' and 'test' side by side, as <component>/good/<picture> and "
                "<component>/<defect>/<picture> (`coe-experts boxes` makes boxes of masks)"
            )
