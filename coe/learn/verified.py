"""Verified pictures: each with the expert that shall judge it, and the label that is true. Nothing is guessed.

Photographs of components, `<component>/<label>/<picture>` (`coe.pictures.photographs`), of which a picture may say
something of several experts; `<expert>/<label>/<picture>`; or a table `images.csv` with the columns path, expert and
label, and if wanted reference (the picture of a good part) and sha256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board import photo_labels
from coe.board.steps import Component
from coe.core import NOTHING, Expert
from coe.errors import ConfigError, did_you_mean, list_few, readable
from coe.helpers import regular
from coe.helpers.spelling import composed
from coe.pictures import photographs, split_making
from coe.pictures.finding import TABLE
from coe.pictures.image_table import checksum_of, file_at, leaves, read_rows, reference_at
from coe.pictures.photo_split import Purpose
from coe.pictures.picture_file import PictureFile

COLUMNS = ("path", "expert", "label")
LAYOUTS = (
    f"expected {photographs.LAYOUT}, <expert>/<label>/<picture>, or a table {TABLE} with the columns "
    f"{', '.join(COLUMNS)}"
)

_FAULTS = 20
"""So many folders whose meaning is not clear are named."""


@dataclass(frozen=True, slots=True)
class VerifiedPicture:
    """A picture and the true label for its expert, which is `none` for a detector that shall see nothing.

    `component` is what it shows, "" where any component that the expert inspects may be meant.
    """

    path: Path
    name: str
    expert: str
    label: str
    reference: Path | None = None
    sha256: str = ""
    component: str = ""

    @property
    def file(self) -> PictureFile:
        """The file to be read; with a checksum it is read only if that fits."""
        return PictureFile(self.path, self.sha256)


def digest_of_files(pictures: Iterable[VerifiedPicture]) -> str:
    """Return a SHA-256 of the files of pictures, their labels and references; raises ConfigError."""
    lines = sorted(
        f"{one.label} {regular.sha256(one.path)} {regular.sha256(one.reference) if one.reference else ''}"
        for one in pictures
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def find(
    source: Path,
    experts: Mapping[str, Expert],
    components: Mapping[str, Component] | None = None,
    alone: str = "",
    purpose: Purpose | None = None,
) -> list[VerifiedPicture]:
    """Return the verified pictures of a folder or a table, in natural order; raises ConfigError for what is unclear.

    `components` are those of the board, if there is one: the name of an expert goes before that of a component. With
    `alone`, an expert's name, pictures in `<label>/<picture>` are that expert's. `purpose` chooses among photographs
    with a split.
    """
    table = source / TABLE if source.is_dir() else source
    with readable(source):
        if table.is_file() and table.suffix.lower() == ".csv":
            verified = list(_rows(table, experts))
        elif source.is_dir():
            verified = _walked(source, experts, components or {}, alone)
            if purpose is not None:
                verified = split_making.of_purpose(source, verified, purpose)
        else:
            raise ConfigError(f"{source}: there is no such folder or table; {LAYOUTS}")
    if not verified:
        raise ConfigError(f"{source} holds no pictures; {LAYOUTS}")
    return verified


def by_expert(pictures: Iterable[VerifiedPicture]) -> dict[str, list[VerifiedPicture]]:
    """Return the pictures of each expert."""
    of_experts: dict[str, list[VerifiedPicture]] = {}
    for picture in pictures:
        of_experts.setdefault(picture.expert, []).append(picture)
    return of_experts


def _walked(
    root: Path, experts: Mapping[str, Expert], components: Mapping[str, Component], alone: str
) -> list[VerifiedPicture]:
    labels = {label for expert in experts.values() for label in expert.labels}
    truths: dict[tuple[str, str], dict[str, str]] = {}
    faults: dict[str, None] = {}
    verified = []
    for photograph in photographs.find(root, components, labels, strict=True):
        component, label = photograph.component, photograph.label
        folders = [*filter(None, (component, *label.split("/")))]
        if alone and len(folders) == 1:
            folders = [alone, *folders]
        where = photograph.name.rpartition("/")[0] or photograph.name
        try:
            if len(folders) != 2:
                raise ConfigError(f"{LAYOUTS}{', or <label>/<picture>' if alone else ''}")
            if alone and folders[0] not in experts:
                raise ConfigError(f"these pictures are of '{alone}' if you give {root / folders[0]}, <label>/<picture>")
            named = experts.get(folders[0])
            if not component or (named is not None and label in (*named.labels, NOTHING)):
                of_expert = VerifiedPicture(photograph.path, photograph.name, folders[0], folders[1])
                verified.append(_checked(of_expert, experts))
                continue
            if (component, label) not in truths:
                truths[component, label] = photo_labels.of_component(components[component], experts, label)
        except ConfigError as error:
            faults[f"{where}: {error}"] = None
            truths[component, label] = {}
        verified += [
            VerifiedPicture(photograph.path, photograph.name, expert, label, component=component)
            for expert, label in truths[component, label].items()
        ]
    if faults:
        raise ConfigError(f"{root}: {list_few(faults, _FAULTS, '; ')}")
    return verified


def _rows(table: Path, experts: Mapping[str, Expert]) -> Iterator[VerifiedPicture]:
    lines: dict[tuple[str, str], int] = {}
    for row in read_rows(table, COLUMNS, LAYOUTS):
        where = f"{table.name}:{row.number}"
        inside, expert, label = (row.cells.get(column, "") for column in COLUMNS)
        path = file_at(table.parent, inside) if inside and not leaves(inside) else table.parent
        if not path.is_file():
            raise ConfigError(f"{where}: there is no picture '{inside}' in the folder of the table")
        if earlier := lines.get((inside, expert)):
            raise ConfigError(f"{where}: '{inside}' is listed for '{expert}' already in line {earlier}")
        lines[inside, expert] = row.number
        reference, fault = reference_at(table.parent, row.cells.get("reference", ""))
        sha256, wrong = checksum_of(row.cells.get("sha256", ""))
        if fault := fault or wrong:
            raise ConfigError(f"{where}: {fault}")
        try:
            yield _checked(VerifiedPicture(path, inside, expert, label, reference, sha256), experts)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error


def _checked(picture: VerifiedPicture, experts: Mapping[str, Expert]) -> VerifiedPicture:
    """Return the picture; raises ConfigError if the board does not know its expert or label."""
    if picture.expert not in experts:
        raise ConfigError(f"'{picture.expert}' is not an expert{did_you_mean(picture.expert, experts)}")
    labels = [*experts[picture.expert].labels, NOTHING]
    picture = replace(picture, label=composed(picture.label))  # macOS spells the names of folders in another way
    if picture.label not in labels:
        hint = did_you_mean(picture.label, labels)
        raise ConfigError(f"'{picture.label}' is not a label of '{picture.expert}'{hint}")
    return picture
