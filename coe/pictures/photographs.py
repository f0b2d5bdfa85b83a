"""The layout of photographs, `<component>/<label>/*`: what it says of a picture, for every command that reads it.

A folder of a label has the name of a label, or a usual word for good or bad; what that means for an expert, the rules
say (`coe.board.photo_labels`). A date says nothing of parts, so such a folder is as good as the one in which it lies.
Pictures straight in the folder of a component have no label. `split.csv` beside the folders of components says what
each picture is for (`coe.pictures.photo_split`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from coe.core import NOTHING
from coe.errors import ConfigError, list_few, readable
from coe.helpers.spelling import by_spelling, composed
from coe.pictures.folder import OF_SYSTEMS, EntryKind, walk
from coe.pictures.formats import EXTENSIONS
from coe.pictures.found_image import natural
from coe.pictures.label_folders import BAD, GOOD, is_undecided, letters, spelling, words
from coe.pictures.picture_names import goes_with_pictures, is_called_picture, other_format, raw_beside, unfinished

LAYOUT = "<component>/<label>/<picture>, where a label may be good or bad"
_SHOWN = 3
_MASKS = "groundtruth"
"""The name of folders in which masks lie beside pictures, by its `letters`."""


@dataclass(frozen=True, slots=True)
class Photograph:
    """A picture, and what its folders say of it.

    `name` is its path within the folder that was read. `label` is the name of its folder of a label as it stands, ""
    if there is none; several such folders within each other have a slash between their names.
    """

    path: Path
    name: str
    component: str
    label: str


@dataclass(frozen=True, slots=True)
class LabelledPhotograph(Photograph):
    """A picture with its true label for one expert, "" where all that is known is that the part is good.

    `good` tells whether the label speaks for the part. `part` is the folder `train`, `val` or `test` in which it lies.
    """

    good: bool
    part: str = ""


def expect_decided(root: Path, found: Iterable[Photograph]) -> None:
    """Raise ConfigError with the folders that lie where those of labels do, and are undecided, or called nearly alike.

    Folders of labels in the place of those of components are refused.
    So is `none`: before a board says what a detector answers, it may as well mean that the part is missing.
    """
    found = list(found)
    said = sorted({one.component for one in found if letters(one.component) in GOOD | BAD})
    if said and not any(one.label for one in found):
        raise ConfigError(
            f"{root}: '{said[0]}' says good or bad, where the name of a component is expected; put these folders into "
            f"one that is called as the component is, as {root / 'R0402' / said[0]}"
        )
    called: dict[tuple[str, str], str] = {}
    for one in found:
        former = called.setdefault((one.component, spelling(one.label)), one.label)
        if former != one.label and letters(former) not in GOOD | BAD:
            raise ConfigError(
                f"{root}: '{former}' and '{one.label}' of {one.component or 'one component'} are one label in two "
                "spellings; put their pictures into one folder"
            )
    open_ = (one for one in found if one.label and (is_undecided(one.label) or letters(one.label) == NOTHING))
    if undecided := sorted({one.name.rpartition("/")[0] for one in open_}):
        raise ConfigError(
            f"{root}: {', '.join(undecided)}: is that good or bad? Sort these pictures into folders of labels, rename "
            "a folder after what is wrong with its parts, or take them out"
        )


def find(root: Path, components: Collection[str], labels: Collection[str], *, strict: bool) -> list[Photograph]:
    """Return the pictures in a folder of photographs, in natural order.

    The folder holds a folder of each component, or is that of one component, or holds folders of labels alone. With
    `strict`, ConfigError is raised for what is called a picture and cannot be read for what its name says; else it is
    passed over. Raises OSError.
    """
    found = [_placed(root, path, components, labels) for path in pictures(root, strict=strict)]
    try:
        by_spelling({photograph.name.rpartition("/")[0] for photograph in found})
    except ValueError as error:
        raise ConfigError(f"'{root}': {error}") from error
    return sorted(found, key=lambda photograph: natural(photograph.name))


def of_components(root: Path) -> list[Photograph]:
    """Return the pictures of a folder of folders of components, before any rules name these.

    Raises ConfigError if there are none, or if the folder cannot be read.
    """
    if not root.is_dir():
        raise ConfigError(f"'{root}' is not a folder; expected {LAYOUT}")
    with readable(root):
        folders = {composed(path.name) for path in root.iterdir() if path.is_dir()}
        found = find(root, folders, (), strict=True)
    if not found:
        raise ConfigError(f"'{root}' holds no pictures; expected {LAYOUT}")
    return found


def without_pictures(root: Path, found: Iterable[Photograph]) -> list[str]:
    """Return the folders of components and of labels that hold no picture of those `found`, as they lie in `root`."""
    holding = {folder for one in found for folder in one.path.parents}
    empty = [path.relative_to(root) for path in (*root.glob("*/"), *root.glob("*/*/")) if path not in holding]
    meant = [path for path in empty if not any(part[0] == "." or OF_SYSTEMS.fullmatch(part) for part in path.parts)]
    return sorted((path.as_posix() for path in meant if path.parent not in empty), key=natural)


def _placed(root: Path, path: Path, components: Collection[str], labels: Collection[str]) -> Photograph:
    inside = path.relative_to(root)
    folders = [composed(name) for name in inside.parts[:-1]]
    component, own = "", composed(root.resolve().name)
    if folders and folders[0] in components:
        component, *folders = folders
    elif own in components:
        component = own
    return Photograph(path, inside.as_posix(), component, "/".join(words(folders, labels)))


def expect_no_masks(root: Path, folders: Iterable[str]) -> None:
    """Raise ConfigError if one of some folders in `root` holds masks, as those of MVTec AD and its relatives do."""
    if masks := sorted({name for name in folders if letters(PurePosixPath(name).name) == _MASKS}):
        raise ConfigError(
            f"{root}: '{masks[0]}' holds masks, as in MVTec AD, and no photographs; take it out, and put the folders "
            "of 'train' and 'test' side by side, as <component>/good/<picture> and <component>/<defect>/<picture> "
            "(`coe-experts boxes` makes boxes of masks)"
        )


def _may_hold_masks(files: Iterable[Path]) -> set[str]:
    """Return the folders that lie beside `train` or `test`, or hold what is called a mask; others are a user's own."""
    masks, folders = set[Path](), set[Path]()
    for file in files:
        folders.update(file.parents)
        if file.stem.endswith("_mask"):
            masks.update(file.parents)
    return {one.as_posix() for one in folders if one in masks or {one.parent / "train", one.parent / "test"} & folders}


def pictures(root: Path, *, strict: bool) -> Iterator[Path]:
    """Yield the pictures in a folder and its folders; `strict` as for `find`."""
    entries = list(walk(root, hidden=True))
    expect_no_masks(root, _may_hold_masks(entry.path.relative_to(root) for entry in entries))
    raw = raw_beside(entry.path for entry in entries)
    for entry in entries:
        inside = PurePosixPath(entry.path.relative_to(root).as_posix())
        hidden = any(name.startswith(".") for name in inside.parts)
        if entry.kind is EntryKind.EMPTY and entry.path.suffix.lower() in EXTENSIONS:
            raise ConfigError(f"{entry.path} is a folder, not a file; remove it")
        if entry.kind is EntryKind.EMPTY or (entry.kind is EntryKind.LEFT and not entry.path.is_symlink()):
            continue
        if entry.kind is EntryKind.FILE and (hidden or entry.path.suffix.lower() not in EXTENSIONS):
            if (
                strict
                and is_called_picture(inside.name)
                and entry.path not in raw
                and not goes_with_pictures(entry.path)
            ):
                why = unfinished(inside.name) or other_format(entry.path) or "is not read: its folder is hidden"
                raise ConfigError(f"{entry.path} {why}")
            continue
        if hidden:
            continue
        if entry.kind is not EntryKind.FILE:
            raise ConfigError(f"{entry.path} {entry.reason}; mend it or remove it")
        yield entry.path


def passed_over(paths: Iterable[Path], root: Path) -> str:
    """Name those of paths, notes aside, that are files without an ending of a picture, behind a sentence."""
    over = set()
    for path in paths:
        hidden = path.name.startswith(".")
        read = not hidden and path.suffix.lower() in EXTENSIONS
        meant = is_called_picture(path.name) or not hidden
        if meant and not read and not path.is_dir() and not goes_with_pictures(path):
            over.add(path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path))
    names = list_few(sorted(over, key=natural), _SHOWN)
    return f"; passed over {len(over)} files that are no pictures by their names: {names}" if over else ""
