"""Photographs of a folder with their true labels for an expert, as the names of its folders say (`photo_labels`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board.photo_labels import Answers, of_component, served
from coe.board.rules import Rules
from coe.board.steps import Component, labels_of
from coe.core import NOTHING, Expert
from coe.errors import ConfigError, did_you_mean, list_few
from coe.helpers.spelling import composed
from coe.pictures import photographs, split_making
from coe.pictures.formats import EXTENSIONS
from coe.pictures.label_folders import BAD, GOOD, TO_CHOOSE, is_undecided, letters
from coe.pictures.photo_split import Purpose
from coe.pictures.photographs import LAYOUT, LabelledPhotograph, Photograph

_PARTS = {"train": "train", **dict.fromkeys(TO_CHOOSE, "val"), "test": "test"}
"""The part of a data set by the name of its folder."""
_FAULTS = 20
"""So many folders whose meaning is not clear are named."""


def read(
    root: Path,
    expert: Expert,
    board: Rules | None = None,
    *,
    good_only: bool = False,
    components: Collection[str] = (),
    may_lack: bool = False,
) -> tuple[LabelledPhotograph, ...]:
    """Return the photographs of a folder that say something of an expert, with its true labels, in natural order.

    Without `board`, the labels of the expert alone tell what folders mean, and `components` may name folders. For an
    expert that learns from good parts alone (`good_only`), pictures straight in the folder of a component, or in
    `root`, are good, and its labels are all against a part; folders `train`, `val` and `test` are for the others.

    Of photographs with a split, those to learn from are returned. Raises ConfigError with all folders whose meaning is
    not clear, and if no component of the expert is shown, unless it `may_lack`; OSError.
    """
    if not root.is_dir():
        raise ConfigError(f"'{root}' is not a folder; expected {LAYOUT}, or a folder of pictures for each label")
    if not good_only and (root / "train").is_dir():
        return tuple(_parts(root, expert, board, components))
    own = {} if board is None else served(board.components, expert.id)
    names = set(components) if board is None else set(board.components)
    labels = {*map(composed, expert.labels), *expert.reject, *labels_of(own.values())}
    folders = {composed(path.name) for path in root.iterdir() if path.is_dir() and not path.name.startswith(".")}
    if not good_only and folders == set(map(composed, expert.labels)):
        names = set()  # a label may be called as a component is
    found = photographs.find(root, names, labels, strict=False)
    if any(photograph.component for photograph in found) and composed(root.resolve().name) not in names:
        found = _of_components(root, found, board)
    shows_others_alone = bool(found) and all(one.component and one.component not in own for one in found)
    if board is not None and shows_others_alone and not may_lack:
        raise ConfigError(f"'{root}' shows no {' or '.join(own) or 'component'}, which expert '{expert.id}' inspects")
    learned = split_making.of_purpose(root, found, Purpose.LEARN)
    return _Meaning(expert, board, own, good_only=good_only).of_all(root, learned)


def _of_components(root: Path, found: Sequence[Photograph], board: Rules | None) -> list[Photograph]:
    """Return the photographs in folders of components; raises ConfigError for others where a board says what is one."""
    others = sorted({one.name.partition("/")[0] for one in found if not one.component})
    if others and board is not None:
        hint = did_you_mean(others[0], board.components)
        raise ConfigError(f"'{root}' holds {list_few(others, _FAULTS)}, which is no component of the board{hint}")
    return [one for one in found if one.component]


def _parts(
    root: Path, expert: Expert, board: Rules | None, components: Collection[str]
) -> Iterator[LabelledPhotograph]:
    inside = [path.name for path in root.iterdir() if not path.name.startswith(".")]
    photographs.expect_no_masks(root, inside)
    if others := sorted(name for name in inside if (root / name).is_dir() and name not in _PARTS):
        raise ConfigError(f"'{root}' has 'train', and beside it {others}; only 'val' and 'test' may stand there")
    if len(several := [name for name in inside if name in TO_CHOOSE]) > 1:
        raise ConfigError(f"'{root}' has {list_few(several)}, which mean the same; keep one of them")
    if loose := sorted(name for name in inside if (root / name).suffix.lower() in EXTENSIONS):
        raise ConfigError(f"'{root}' holds {loose[0]} beside the folders of labels; put each picture into one of them")
    for name, part in _PARTS.items():
        if (root / name).is_dir():
            for one in read(root / name, expert, board, components=components, may_lack=part != "train"):
                yield replace(one, name=f"{name}/{one.name}", part=part)


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What the names of folders mean for an expert, which inspects the components `own`."""

    expert: Expert
    board: Rules | None
    own: Mapping[str, Component]
    good_only: bool

    def of_all(self, root: Path, found: Iterable[Photograph]) -> tuple[LabelledPhotograph, ...]:
        """Return the photographs that say something of the expert; raises ConfigError with all unclear folders."""
        known: dict[tuple[str, str], tuple[str, bool] | None] = {}
        faults: dict[str, None] = {}
        labelled = []
        for one in found:
            key = one.component, one.label
            if key not in known:
                known[key] = None
                try:
                    known[key] = self._of_folder(*key)
                except ConfigError as error:
                    faults[f"{one.name.rpartition('/')[0] or one.name}: {error}"] = None
            if (meant := known[key]) is not None:
                labelled.append(LabelledPhotograph(one.path, one.name, one.component, *meant))
        if faults:
            raise ConfigError(f"'{root}': {list_few(faults, _FAULTS, '; ')}")
        return tuple(labelled)

    def _of_folder(self, component: str, label: str) -> tuple[str, bool] | None:
        """Return the true label, and whether it speaks for the part; None if the folder says nothing of the expert."""
        if self.board is not None and component and component not in self.own:
            return None
        words = label.split("/")
        if self.good_only:
            return "", self._is_good(words)
        if not label:
            raise ConfigError("it lies in no folder of a label; put each picture into one")
        sorts = {letters(word) in GOOD for word in words}
        if len(words) > 1 and (len(sorts) > 1 or not all(letters(word) in GOOD | BAD for word in words)):
            raise ConfigError("a folder of a label holds a folder; put its pictures among the others, or take it out")
        if self.board is None:
            return self._by_labels(words[0])
        meant = {self._by_rules(self.own[name], words[0]) for name in ([component] if component else self.own)}
        if len(meant) > 1:
            raise ConfigError(
                f"'{words[0]}' means another label for each of {', '.join(self.own)}; put it into folders of these"
            )
        return meant.pop() if meant else None

    def _is_good(self, words: Sequence[str]) -> bool:
        against = {letters(one) for one in (*self.expert.labels, *self.expert.reject)}
        names = [word for word in words if word]
        # Without rules that say that `none` passes it may as well mean that a part is missing.
        open_ = self.board is None and NOTHING in map(letters, names)
        if not open_ and all(letters(name) in GOOD - against for name in names):
            return True
        others = {letters(one) for one in labels_of(self.own.values())}
        if (
            len(names) == 1
            and not open_
            and (
                letters(names[0]) in BAD | against | others
                or (self.board is not None and letters(names[0]) not in GOOD and not is_undecided(names[0]))
            )
        ):
            return False
        raise ConfigError(
            f"nobody knows whether its parts are good, and expert '{self.expert.id}' learns from good parts alone; "
            "take it out, or name it good or bad"
        )

    def _by_labels(self, word: str) -> tuple[str, bool]:
        answers = Answers.of_labels(self.expert)
        by_spelling = {composed(label): label for label in self.expert.labels}
        if composed(word) not in by_spelling and letters(word) not in GOOD | BAD:
            raise ConfigError(
                f"'{word}' is no label of expert '{self.expert.id}'{did_you_mean(word, self.expert.labels)}"
            )
        label = by_spelling.get(composed(word)) or answers.of_word(word)
        return label, label in answers.good

    def _by_rules(self, component: Component, word: str) -> tuple[str, bool] | None:
        assert self.board is not None
        label = of_component(component, self.board.experts, word).get(self.expert.id)
        if label is None:
            return None
        return label, label in Answers.of_steps(component.steps_of(self.expert.id), self.expert).good
