"""The true label for an expert that the name of a folder means: what the rules make of it. Nothing is guessed.

A label of the expert is that label, and any other where its one expert knows nothing but good and not. `good` is the
one label that passes, or `none` where a detector that sees nothing passes; `bad` is the one label that does not. A
label of an expert that follows is the label that leads to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coe.board.rules import Rules
from coe.board.steps import Component, Step, labels_of
from coe.core import NOTHING, Expert, Verdict
from coe.errors import ConfigError, did_you_mean
from coe.helpers.spelling import composed
from coe.pictures.label_folders import BAD, GOOD, Components, is_undecided, letters


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
        said = f"may mean {' or '.join(meant)}" if meant else "matches none of the labels"
        raise ConfigError(f"'{word}' {said}; name such folders after labels")


def served(components: Mapping[str, Component], expert: str) -> dict[str, Component]:
    """Return the components that an expert inspects."""
    return {name: component for name, component in components.items() if component.steps_of(expert)}


def alone(expert: Expert) -> Component:
    """Return a component that an expert inspects alone: what its labels say by themselves, where no rules are."""
    good = Answers.of_labels(expert).good
    outcomes = {label: Verdict.OK if label in good else Verdict.NG for label in (*expert.labels, *expert.reject)}
    return Component(expert.id, 1, Step(expert.id, 0.0, outcomes))


def known_to(board: Rules) -> Components:
    """Return the components of a board, and the labels of its experts."""
    return Components(board.components, labels_of(board.components.values()))


def of_component(component: Component, experts: Mapping[str, Expert], word: str) -> dict[str, str]:
    """Return the true label for each expert of a component of which the name of a folder says something.

    Raises ConfigError for a name that is no label, and for a word for good or bad that may mean several labels.
    """
    steps, word = _steps_of(component), composed(word)
    if saying := [id for id in steps if word in experts[id].labels]:
        return _with_those_before(steps, dict.fromkeys(saying, word))
    answers = {id: Answers.of_steps(own, experts[id]) for id, own in steps.items()}
    own = next(iter(answers.values()))
    knows_good_alone = len(answers) == len(own.bad) == 1 and own.good == (NOTHING,)
    if knows_good_alone and letters(word) not in GOOD and not is_undecided(word):  # it names what is wrong
        return {id: own.bad[0] for id, own in answers.items()}
    try:
        if letters(word) in GOOD:
            return {id: own.of_word(word) for id, own in answers.items()}
        if letters(word) not in BAD:
            known = {"good", "bad", *(label for id in steps for label in experts[id].labels)}
            raise ConfigError(f"'{word}' is not a label{did_you_mean(word, known)}")
        against = {id: own.bad for id, own in answers.items() if own.bad}
        together = Answers((), tuple(answer for bad in against.values() for answer in bad))
        return _with_those_before(steps, dict.fromkeys(against, together.of_word(word)))
    except ConfigError as error:
        raise ConfigError(f"'{component.name}': {error}") from error


def _steps_of(component: Component) -> dict[str, list[Step]]:
    steps: dict[str, list[Step]] = {}
    for step in component.root.walk():
        steps.setdefault(step.expert, []).append(step)
    return steps


def is_good(shown: Component, experts: Mapping[str, Expert], label: str) -> bool:
    """Tell whether pictures in a folder of a label show good parts of a component; those in none do.

    Raises ConfigError for a name that says nothing.
    """
    known, steps = {*map(letters, labels_of([shown]))}, {step.expert: step for step in shown.root.walk()}
    if NOTHING not in known and NOTHING in map(letters, label.split("/")):
        raise ConfigError(f"'{label}' may mean that parts are good, or missing; name it good or bad")
    for word in label.split("/") if label else ():
        if letters(word) in (GOOD | BAD) - known:
            if letters(word) in BAD:
                return False
            continue
        truths = of_component(shown, experts, word)
        if any(truth in Answers.of_steps([steps[id]], experts[id]).bad for id, truth in truths.items()):
            return False
    return True


def _with_those_before(steps: Mapping[str, Sequence[Step]], truths: dict[str, str]) -> dict[str, str]:
    """Return true labels with those of the experts before, whose one label leads to experts with a true label."""
    while True:
        leading: dict[str, set[str]] = {}
        for id, step in ((id, step) for id, own in steps.items() if id not in truths for step in own):
            for label, outcome in step.outcomes.items():
                if isinstance(outcome, tuple) and any(following.expert in truths for following in outcome):
                    leading.setdefault(id, set()).add(label)
        led = {id: labels.pop() for id, labels in leading.items() if len(labels) == 1}
        if not led:
            return truths
        truths = truths | led
