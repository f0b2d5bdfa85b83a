"""Photographs with the true labels for experts, as the names of folders or a table give them. Nothing is guessed.

Folders are `<component>/<label>/<picture>` (`coe.pictures.finding`), of which a picture may say something of several
experts, by the rules of the board (`coe.board.photo_labels`); or `<expert>/<label>/<picture>`. A table is `images.csv`
with the columns path, expert and label, and if wanted reference (the picture of a good part) and sha256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from coe.board import photo_labels
from coe.board.photo_labels import Answers
from coe.board.rules import Rules
from coe.board.steps import Component, labels_of
from coe.core import NOTHING, Expert
from coe.errors import ConfigError, did_you_mean, list_few, readable
from coe.helpers import regular
from coe.helpers.spelling import composed
from coe.pictures import finding, photographs
from coe.pictures.finding import LAYOUT
from coe.pictures.formats import EXTENSIONS
from coe.pictures.label_folders import BAD, GOOD, TO_CHOOSE, letters
from coe.pictures.photographs import TABLE, Photograph, Purpose, read_table

COLUMNS = ("path", "expert", "label")
LAYOUTS = f"expected {LAYOUT}, <expert>/<label>/<picture>, or a table {TABLE} with the columns {', '.join(COLUMNS)}"
_PARTS = {"train": Purpose.LEARN, **dict.fromkeys(TO_CHOOSE, Purpose.VERIFY), "test": Purpose.TEST}
"""What the pictures in folders of a data set are for."""
_FAULTS = 20
"""So many folders whose meaning is not clear are named, and so many lines of a table that are wrong."""

Row = tuple[str, str, str, bool | None]
"""Component ("": any that the expert inspects), expert, true label, and whether that speaks for the part, if known."""


def digest_of_files(pictures: Iterable[Photograph]) -> str:
    """Return a SHA-256 of the files of pictures, their labels and references; raises ConfigError."""
    lines = sorted(
        f"{one.label} {regular.sha256(one.path)} {regular.sha256(one.reference) if one.reference else ''}"
        for one in pictures
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def by_expert(pictures: Sequence[Photograph]) -> dict[str, list[Photograph]]:
    """Return the pictures of each expert."""
    experts = dict.fromkeys(one.expert for one in pictures)
    return {expert: [one for one in pictures if one.expert == expert] for expert in experts}


def find(
    source: Path,
    experts: Mapping[str, Expert],
    components: Mapping[str, Component] | None = None,
    alone: str = "",
    purpose: Purpose | None = None,
    others: Collection[str] = (),
) -> list[Photograph]:
    """Return the pictures of a folder or a table that experts shall judge, in natural order.

    `components` are those of the board, if there is one: the name of an expert goes before that of a component. With
    `alone`, an expert's name, pictures in `<label>/<picture>` are that expert's. `purpose` chooses among photographs
    with a split. Rows of a table about `others`, names of experts too, are left out. Raises ConfigError for what is
    unclear, and if there is no picture.
    """
    table = source / TABLE if source.is_dir() else source
    with readable(source):
        if table.is_file() and table.suffix.lower() == ".csv":
            left_out = {*others} - experts.keys()
            rows = read_table(
                table,
                COLUMNS,
                LAYOUTS,
                lambda one: "" if one.expert in left_out else _fault(experts, one.expert, one.label),
            )
            if faults := [one.error for one in rows if one.error]:
                raise ConfigError(list_few(faults, _FAULTS, "; "))
            if left_out:  # of one expert there may be no picture
                return [one for one in rows if one.expert not in left_out]
        elif source.is_dir():
            labels = {label for expert in experts.values() for label in expert.labels}
            found = finding.labelled(source, components or {}, labels)
            rows = _with_truths(source, found, _of_any(source, experts, components or {}, alone))
            if purpose is not None:
                rows = photographs.of_purpose(source, rows, purpose)
        else:
            raise ConfigError(f"{source}: there is no such folder or table; {LAYOUTS}")
    if not rows:
        raise ConfigError(f"{source} holds no pictures; {LAYOUTS}")
    return rows


def of_expert(
    root: Path,
    expert: Expert,
    board: Rules | None = None,
    *,
    good_only: bool = False,
    components: Collection[str] = (),
    may_lack: bool = False,
) -> tuple[Photograph, ...]:
    """Return the photographs of a folder from which an expert may learn, in natural order.

    Without `board`, the labels of the expert alone tell what folders mean, and `components` may name folders. For an
    expert that learns from good parts alone (`good_only`), pictures straight in the folder of a component, or in
    `root`, are good, and no picture has a label; folders `train`, `val` and `test`, which say what pictures are for,
    are for the others.

    Of photographs with a split, those to learn from are returned. Raises ConfigError with all folders whose meaning is
    not clear, and if no component of the expert is shown, unless it `may_lack`; OSError.
    """
    if not root.is_dir():
        raise ConfigError(f"'{root}' is not a folder; expected {LAYOUT}, or a folder of pictures for each label")
    if not good_only and (root / "train").is_dir():
        return tuple(_of_data_set(root, expert, board, components))
    experts: Mapping[str, Expert] = {expert.id: expert} if board is None else board.experts
    if board is None:
        own, names = dict.fromkeys(("", *components), photo_labels.alone(expert)), {*components}
    else:
        own, names = photo_labels.served(board.components, expert.id), {*board.components}
    labels = {*map(composed, expert.labels), *expert.reject, *labels_of(own.values())}
    folders = {composed(path.name) for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if not good_only and folders == set(map(composed, expert.labels)):
        names = set()  # a label may be called as a component is
    found = finding.labelled(root, names, labels)
    if any(one.component for one in found) and composed(root.resolve().name) not in names:
        others = sorted({one.name.partition("/")[0] for one in found if not one.component})
        if others:
            hint = did_you_mean(others[0], names)
            raise ConfigError(
                f"'{root}' holds {list_few(others, _FAULTS)}, which is not a component of the board{hint}"
            )
    if found and all(one.component and one.component not in own for one in found) and not may_lack:
        raise ConfigError(f"'{root}' shows no {' or '.join(own) or 'component'}, which expert '{expert.id}' inspects")
    learned = photographs.of_purpose(root, found, Purpose.LEARN)
    return tuple(_with_truths(root, learned, _of_one(expert, experts, own, good_only=good_only)))


def _with_truths(
    root: Path, found: Iterable[Photograph], meaning: Callable[[str, str], Iterable[Row]]
) -> list[Photograph]:
    """Return a row of each photograph for each expert of which its folders say something.

    `meaning` says what a component and a label mean; ConfigError is raised with all folders that are unclear.
    """
    known: dict[tuple[str, str], tuple[Row, ...]] = {}
    faults: dict[str, None] = {}
    rows = []
    for one in found:
        key = one.component, one.label
        if key not in known:
            known[key] = ()
            try:
                known[key] = tuple(meaning(*key))
            except ConfigError as error:
                faults[f"{one.folder}: {error}"] = None
        rows += [replace(one, component=c, expert=e, label=label, good=good) for c, e, label, good in known[key]]
    if faults:
        raise ConfigError(f"'{root}': {list_few(faults, _FAULTS, '; ')}")
    return rows


def _of_any(
    root: Path, experts: Mapping[str, Expert], components: Mapping[str, Component], alone: str
) -> Callable[[str, str], Iterator[Row]]:
    """Return what the folders of a component and a label mean for all experts."""

    def meaning(component: str, label: str) -> Iterator[Row]:
        folders = [*filter(None, (component, *label.split("/")))]
        if alone and len(folders) == 1:
            folders = [alone, *folders]
        if len(folders) != 2:
            raise ConfigError(f"{LAYOUTS}{', or <label>/<picture>' if alone else ''}")
        if alone and folders[0] not in experts:
            raise ConfigError(f"these pictures are of '{alone}' if you give {root / folders[0]}, <label>/<picture>")
        named = experts.get(folders[0])
        if not component or (named is not None and label in (*named.labels, NOTHING)):
            if fault := _fault(experts, *folders):
                raise ConfigError(fault)
            yield "", folders[0], folders[1], None
        else:
            truths = photo_labels.of_component(components[component], experts, label)
            yield from ((component, expert, truth, None) for expert, truth in truths.items())

    return meaning


def _fault(experts: Mapping[str, Expert], expert: str, label: str) -> str:
    """Return what is wrong with a true label for an expert; "" if nothing is."""
    if expert not in experts:
        return f"'{expert}' is not an expert{did_you_mean(expert, experts)}"
    labels = [*experts[expert].labels, NOTHING]
    return "" if label in labels else f"'{label}' is not a label of '{expert}'{did_you_mean(label, labels)}"


def _of_data_set(root: Path, expert: Expert, board: Rules | None, components: Collection[str]) -> Iterator[Photograph]:
    inside = [path.name for path in root.iterdir() if not path.name.startswith(".")]
    if others := sorted(name for name in inside if (root / name).is_dir() and name not in _PARTS):
        raise ConfigError(f"'{root}' has 'train' and also {others}; only 'val' and 'test' may be there")
    if len(several := [name for name in inside if name in TO_CHOOSE]) > 1:
        raise ConfigError(f"'{root}' has {list_few(several)}, which mean the same; keep one of them")
    if loose := sorted(name for name in inside if (root / name).suffix.lower() in EXTENSIONS):
        raise ConfigError(f"'{root}' holds {loose[0]} beside the folders of labels; put each picture into one of them")
    for name, purpose in _PARTS.items():
        if (root / name).is_dir():
            for one in of_expert(root / name, expert, board, components=components, may_lack=name != "train"):
                yield replace(one, name=f"{name}/{one.name}", purpose=purpose)


def _of_one(
    expert: Expert, experts: Mapping[str, Expert], own: Mapping[str, Component], *, good_only: bool
) -> Callable[[str, str], Iterator[Row]]:
    """Return what the folders of a component and a label mean for an expert, which inspects the components `own`."""

    def meaning(component: str, label: str) -> Iterator[Row]:
        words = label.split("/")
        if component and component not in own:
            return
        if not label and not good_only:
            raise ConfigError("it is not in a folder of a label; put each picture into one")
        sorts = {letters(word) in GOOD for word in words}
        if len(words) > 1 and (len(sorts) > 1 or not all(letters(word) in GOOD | BAD for word in words)):
            raise ConfigError("the folder of a label contains a folder; move its pictures up, or remove it")
        meant = set[tuple[str, bool]]()
        for one in [own[component]] if component in own else own.values():
            if good_only:
                meant.add(("", photo_labels.is_good(one, experts, label)))
            elif truth := photo_labels.of_component(one, experts, words[0]).get(expert.id):
                meant.add((truth, truth in Answers.of_steps(one.steps_of(expert.id), expert).good))
        if len(meant) > 1:
            raise ConfigError(
                f"'{words[0]}' means different labels for {', '.join(own)}; put its pictures into their folders"
            )
        yield from ((component, expert.id, *one) for one in meant)

    return meaning
