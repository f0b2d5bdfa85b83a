"""The true label of a photograph for an expert: what the rules make of the name of its folder. Nothing is guessed.

A label of the expert is that label, and any other where its one expert knows nothing but good and not. `good` is the
one label that passes, or `none` where a detector that sees nothing passes; `bad` is the one label that does not. A
label of an expert that follows is the label that leads to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from coe.board.rules import Rules
from coe.board.steps import Component, Step, labels_of
from coe.core import NOTHING, Expert, Verdict
from coe.errors import ConfigError, did_you_mean, list_few
from coe.pictures import photographs, split_making
from coe.pictures.formats import EXTENSIONS
from coe.pictures.found_image import Components
from coe.pictures.label_folders import BAD, GOOD, is_undecided, letters
from coe.pictures.photo_split import Purpose
from coe.pictures.photographs import LAYOUT, LabelledPhotograph, Photograph
from coe.spelling import composed

_PARTS = ("train", "val", "test")
_FAULTS = 20
"""So many folders whose meaning is not clear are named."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of an expert that speak for a part, and those that speak against it: its labels, and `none`."""

    good: tuple[str, ...]
    bad: tuple[str, ...]

    @classmethod
    def of_steps(cls, steps: Sequence[Step], expert: Expert) -> Answers:
        """Return what all steps of an expert make of its labels, and of `none` if they say what follows that."""
        answers = [one for one in (*expert.labels, NOTHING) if all(one in step.outcomes for step in steps)]
        bad = [one for one in answers if any(step.outcomes[one] in (Verdict.NG, Verdict.REVIEW) for step in steps)]
        return cls(tuple(one for one in answers if one not in bad), tuple(bad))

    @property
    def knows_good_alone(self) -> bool:
        """Whether the one label says that a part is not as good parts are, whatever it is."""
        return self.good == (NOTHING,) and len(self.bad) == 1

    @classmethod
    def of_labels(cls, expert: Expert) -> Answers:
        """Return what the labels of an expert say by themselves, where no rules are at hand."""
        bad = [one for one in expert.labels if (one in expert.reject if expert.reject else letters(one) not in GOOD)]
        return cls(tuple(one for one in expert.labels if one not in bad), tuple(bad))

    def of_word(self, word: str) -> str:
        """Return the answer that a word for good or bad means; raises ConfigError unless it is one alone."""
        meant = self.good if letters(word) in GOOD else self.bad
        if len(meant) == 1:
            return meant[0]
        said = f"may mean {' or '.join(meant)}" if meant else "means none of the labels"
        raise ConfigError(f"'{word}' {said}; name such folders after labels")


def served(components: Mapping[str, Component], expert: str) -> dict[str, Component]:
    """Return the components that an expert inspects."""
    return {
        name: component
        for name, component in components.items()
        if any(step.expert == expert for step in component.root.walk())
    }


def names_faults(component: Component, experts: Mapping[str, Expert]) -> bool:
    """Tell whether folders of a component have names of faults: its one expert knows nothing but good and not."""
    steps = _steps_of(component)
    return len(steps) == 1 and all(Answers.of_steps(own, experts[id]).knows_good_alone for id, own in steps.items())


def known_to(board: Rules) -> Components:
    """Return the components of a board, and what folders in theirs may be called."""
    faults = [name for name, one in board.components.items() if names_faults(one, board.experts)]
    return Components(board.components, labels_of(board.components.values()), faults)


def of_component(component: Component, experts: Mapping[str, Expert], word: str) -> dict[str, str]:
    """Return the true label for each expert of a component of which the name of a folder says something.

    Raises ConfigError for a name that is no label, and for a word for good or bad that may mean several labels.
    """
    steps = _steps_of(component)
    word = composed(word)
    if saying := [id for id in steps if word in experts[id].labels]:
        return _with_those_before(steps, dict.fromkeys(saying, word))
    answers = {id: Answers.of_steps(own, experts[id]) for id, own in steps.items()}
    if names_faults(component, experts) and letters(word) not in GOOD and not is_undecided(word):
        return {id: own.bad[0] for id, own in answers.items()}
    if letters(word) not in GOOD | BAD:
        known = {label for id in steps for label in experts[id].labels}
        raise ConfigError(f"'{component.name}': '{word}' is no label{did_you_mean(word, {*known, 'good', 'bad'})}")
    try:
        if letters(word) in GOOD:
            return {id: own.of_word(word) for id, own in answers.items()}
        against = {id: own for id, own in answers.items() if own.bad}
        together = Answers((), tuple(answer for own in against.values() for answer in own.bad))
        return _with_those_before(steps, dict.fromkeys(against, together.of_word(word)))
    except ConfigError as error:
        raise ConfigError(f"'{component.name}': {error}") from error


def _steps_of(component: Component) -> dict[str, list[Step]]:
    steps: dict[str, list[Step]] = {}
    for step in component.root.walk():
        steps.setdefault(step.expert, []).append(step)
    return steps


def is_good(board: Rules, component: str, label: str) -> bool:
    """Tell whether pictures in a folder of a label show good parts of a component; those in none do.

    Raises ConfigError for a name that says nothing.
    """
    shown = board.components[component]
    known = labels_of([shown])
    for word in label.split("/") if label else ():
        if word in known or letters(word) not in GOOD | BAD:
            steps = {step.expert: step for step in shown.root.walk()}
            truths = of_component(shown, board.experts, word)
            if any(Answers.of_steps([steps[id]], board.experts[id]).bad.count(truth) for id, truth in truths.items()):
                return False
        elif letters(word) in BAD:
            return False
    return True


def _with_those_before(steps: Mapping[str, Sequence[Step]], truths: dict[str, str]) -> dict[str, str]:
    """Return true labels with those of the experts before, whose one label leads to experts with a true label."""
    while True:
        led = {
            id: next(iter(leading))
            for id, own in steps.items()
            if id not in truths and len(leading := {label for step in own for label in _leading(step, truths)}) == 1
        }
        if not led:
            return truths
        truths = truths | led


def _leading(step: Step, truths: Collection[str]) -> Iterator[str]:
    for label, outcome in step.outcomes.items():
        if isinstance(outcome, tuple) and any(following.expert in truths for following in outcome):
            yield label


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
    is_of_others = found and not any(one.component in own or not one.component for one in found)
    if board is not None and is_of_others and not may_lack:
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
    if loose := sorted(name for name in inside if (root / name).suffix.lower() in EXTENSIONS):
        raise ConfigError(f"'{root}' holds {loose[0]} beside the folders of labels; put each picture into one of them")
    for part in _PARTS:
        if (root / part).is_dir():
            for one in read(root / part, expert, board, components=components, may_lack=part != "train"):
                yield replace(one, name=f"{part}/{one.name}", part=part)


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
        steps = [step for step in component.root.walk() if step.expert == self.expert.id]
        return label, label in Answers.of_steps(steps, self.expert).good
