"""Which kind of expert suits a component: what each learns from its photographs, and how it judges others.

Kinds are compared on the same pictures, each judged by an expert that learned without it, its copies and its series
(stratified cross-validation). Such figures are of experts that saw a part of the pictures; the one that is kept sees
all of them.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from coe import config
from coe.board.board_spec import label_fault
from coe.core import NOTHING, Expert, Shown
from coe.errors import CoeError, ConfigError, ImageError, TooFewPictures, list_few
from coe.helpers.rates import Rate
from coe.learn import backbones, learning
from coe.learn.data_set import STRANGE
from coe.pictures import alike, finding, label_folders, photographs
from coe.pictures.decoding import decode
from coe.pictures.finding import LAYOUT
from coe.pictures.folder import EntryKind, walk
from coe.pictures.photographs import Photograph, Purpose
from coe.store.exam import ExamItem, added
from coe.store.expert_id import ExpertId
from coe.store.kinds import Comparing, ExpertInput, Image, Kind, ModuleKind, Trained, TrainingPlan
from coe.store.learned import digest_of
from coe.store.store import Store
from coe.variants import agreement
from coe.variants.fold import network

_CHANCE = 0.05
"""The largest probability with which a kind that sees nothing may judge pictures as well."""
GOOD = "good"
"""The label of a good part."""
_MOST_NEIGHBOURS = 32
_ESCAPE = 4.0
"""An escape weighs as much as so many false calls: a person looks at what is called, and nobody at what passes."""
_FOLDS, _FOLDS_OF_MANY, _MANY = 5, 3, 80
"""So many folds, and fewer from so many pictures on: experts then learn from enough."""
_FEW = 10
"""Of fewer parts of each label one is out at a time: the others are hardly enough to learn from."""


@dataclass(frozen=True, slots=True)
class CandidateKind:
    """A kind that may inspect a component, how it learns, and what it starts from."""

    kind: Kind
    expert: Expert
    plan: TrainingPlan
    start: str | None

    @property
    def name(self) -> str:
        """The kind, for people."""
        return f"{self.kind.name} (turned)" if self.plan.turned and self.kind.learns_turned else self.kind.name


@dataclass(frozen=True, slots=True)
class SeenPhotograph:
    """How a photograph looks: the digest of its pixels, the colours of its cells, and its longer side in pixels."""

    digest: int
    look: alike.Look
    longer: int


@dataclass(frozen=True, slots=True)
class CrossValidated:
    """How a kind judged each picture (n,): whether it passed it, and whether that is right.

    `seconds` is how long one learning took, `exam` what its experts let pass that must not. `failure` says why there
    are no answers.
    """

    candidate: CandidateKind
    passed: tuple[bool, ...] = ()
    right: tuple[bool, ...] = ()
    seconds: float = 0.0
    failure: str = ""
    exam: tuple[ExamItem, ...] = ()

    def rates(self, photographs: Sequence[Photograph]) -> tuple[Rate | None, Rate | None]:
        """Return escapes of the bad and false calls of the good; None where there are no such pictures."""
        bad = [passed for one, passed in zip(photographs, self.passed, strict=True) if not one.good]
        good = [not passed for one, passed in zip(photographs, self.passed, strict=True) if one.good]
        return (Rate(sum(bad), len(bad)) if bad else None, Rate(sum(good), len(good)) if good else None)

    def loss(self, photographs: Sequence[Photograph]) -> tuple[float, int]:
        """Return the mean of the shares of escapes and of false calls, escapes weighing more; then what exams let pass.

        Turned parts count only where they are defects.
        """
        escapes, false_calls = self.rates(photographs)
        shares = [(rate.share, weight) for rate, weight in ((escapes, _ESCAPE), (false_calls, 1.0)) if rate is not None]
        mean = sum(share * weight for share, weight in shares) / sum(weight for _, weight in shares)
        matters = [one for one in self.exam if one.item is not Shown.TURNED or self.candidate.plan.polarity]
        return mean, sum(item.is_blind for item in matters)

    @property
    def turned_pass(self) -> bool:
        """Whether good parts pass when they are turned: at which angle they lie tells nothing."""
        return any(item.item is Shown.TURNED and item.is_blind for item in self.exam)


def parts_of(root: Path) -> tuple[dict[str, list[Photograph]], list[str]]:
    """Return the photographs to learn from by component, and which folders are empty.

    Their labels are `good`, `bad` or the name of their folder. Raises ConfigError for a folder that is laid out in
    another way, or leaves open what it means.
    """
    found = finding.of_components(root)
    if loose := [one.name for one in found if not one.component]:
        raise ConfigError(f"'{root}' holds {loose[0]} beside the folders of components; expected {LAYOUT}")
    finding.expect_decided(root, found)
    parts: dict[str, list[Photograph]] = {}
    for one in photographs.of_purpose(root, found, Purpose.LEARN):
        parts.setdefault(one.component, []).append(_labelled(one))
    if not parts:
        raise ConfigError(f"'{root}' holds no pictures; expected {LAYOUT}")
    empty = (entry.path.relative_to(root).as_posix() for entry in walk(root) if entry.kind is EntryKind.EMPTY)
    return parts, sorted(empty, key=photographs.natural)


def _labelled(one: Photograph) -> Photograph:
    word = label_folders.letters(one.label)
    label = "good" if word in label_folders.GOOD else "bad" if word in label_folders.BAD else one.label
    return replace(one, label=label, good=label in ("", "good"))


def checked(found: Sequence[Photograph]) -> tuple[Photograph, ...]:
    """Return photographs whose labels make sense; raises ConfigError for others, and without good parts."""
    labels = {one.label for one in found}
    if labels == {""}:
        return tuple(replace(one, label="good") for one in found)
    if "" in labels:
        name = next(one.name for one in found if not one.label)
        raise ConfigError(
            f"{name} is not in a folder of a label, but others are; put it into good, or where it belongs"
        )
    if deeper := sorted({one.label for one in found if "/" in one.label}):
        outer, _, inner = deeper[0].partition("/")
        is_component = label_folders.says_label(inner, ()) and not label_folders.says_label(outer, ())
        raise ConfigError(
            f"{list_few(deeper)}: the folder of a label contains a folder; move its pictures "
            f"up{f', or give the folder in which {outer} lies, if that is a component' if is_component else ''}"
        )
    if wrong := label_fault(sorted(labels)):
        raise ConfigError(wrong)
    if not any(one.good for one in found):
        raise ConfigError("there are no pictures of good parts; put some into a folder 'good'")
    return tuple(found)


def candidates(
    store: Store, weights: str, plan: TrainingPlan, known: Sequence[Kind], input_size: int
) -> list[CandidateKind]:
    """Return the kinds that can learn something from the photographs of a plan, as the expert `weights`, in order.

    `known` are kinds in the order in which one is preferred that judges no worse than the next; see `obstacle`.
    """
    photographs = plan.photographs or ()
    found = []
    for kind in known:
        if obstacle(kind, photographs):
            continue
        labels = (STRANGE,) if kind.good_only else tuple(sorted({one.label for one in photographs}))
        start = backbones.start_of(store, kind)
        frozen = kind.early_layers if start is not None else ()
        expert = Expert(ExpertId.of(weights).name, kind.name, labels, input_size, weights)
        expert = replace(expert, reject=frozenset(labels) - {GOOD})
        if start is not None and kind.preprocessing is not None:
            expert = replace(expert, preprocessing=store.manifest(start).preprocessing)
        found.append(CandidateKind(kind, expert, replace(plan, freeze=frozen), start))
    return found


def obstacle(kind: Kind, photographs: Sequence[Photograph]) -> str:
    """Say what a kind needs that these photographs are not; "" if it may learn from them."""
    if isinstance(kind, Comparing) and kind.needs_reference:
        return "a reference is needed"
    counts = Counter(one.label for one in photographs)
    if kind.good_only or (len(counts) > 1 and min(counts.values()) >= kind.least_of_label):
        return ""
    return f"{kind.least_of_label} or more pictures of each label, good and bad, are needed"


def judged(
    store: Store,
    candidate: CandidateKind,
    photographs: Sequence[Photograph],
    folds: Sequence[frozenset[int]],
    progress: Callable[[int, int], None],
    clock: Callable[[], float],
) -> CrossValidated:
    """Return how a kind judges each photograph without having learned it; a kind that cannot learn says why.

    `folds` are the places that are out each time; see `folds_of`. `progress` is called with folds done and folds in
    all, `clock` says the time in seconds.
    """
    kind, expert = candidate.kind, candidate.expert
    assert isinstance(kind, ModuleKind), "kinds that run a file cannot be trained here"
    passed, right = [False] * len(photographs), [False] * len(photographs)
    seconds, exam = 0.0, list[ExamItem]()
    try:
        for number, out in enumerate(folds):
            progress(number, len(folds))
            kept = tuple(one for place, one in enumerate(photographs) if place not in out)
            begun = clock()
            plan = replace(candidate.plan, photographs=kept)
            trained = learning.learn(store, expert, kind, plan, candidate.start, lambda *_: None)
            seconds += clock() - begun
            exam += trained.exam.items if trained.exam is not None else ()
            passes = _judge(kind, expert, trained, plan.bits)
            for place in out:
                passed[place] = passes(photographs[place].path)
                right[place] = passed[place] == photographs[place].good
    except TooFewPictures as error:
        why = "more pictures are needed, since each is judged by an expert trained without it"
        return CrossValidated(candidate, failure=f"{why}: {error}")
    except CoeError as error:
        return CrossValidated(candidate, failure=str(error))
    return CrossValidated(candidate, tuple(passed), tuple(right), seconds / len(folds), exam=added(exam))


def _judge(kind: ModuleKind, expert: Expert, trained: Trained, bits: int | None) -> Callable[[Path], bool]:
    """Return a function that tells whether an expert that learned so passes a photograph."""
    looking = replace(expert, preprocessing=trained.preprocessing, alternates=trained.looks)
    module = network(kind, looking, trained.state)

    def answer(images: Image) -> object:
        with torch.inference_mode():
            return kind.forward(module, torch.from_numpy(images))

    def passes(path: Path) -> bool:
        (finding,) = agreement.findings(kind, looking, [_prepared(kind, looking, path, bits)], answer)
        return not finding.doubt and finding.label in (GOOD, NOTHING)

    return passes


def shown_neighbours(candidate: CandidateKind, trained: Trained, others: Sequence[Path]) -> Trained:
    """Return what an expert learned, with its exam on photographs of other components of the board, taken evenly.

    Those that cannot be read are passed over: their own component names them.
    """
    if trained.exam is None or not others:
        return trained
    assert isinstance(candidate.kind, ModuleKind), "kinds that run a file cannot be trained here"
    passes = _judge(candidate.kind, candidate.expert, trained, candidate.plan.bits)
    said = []
    for path in others[:: -(-len(others) // _MOST_NEIGHBOURS)]:
        with suppress(ConfigError):
            said.append(passes(path))
    if not said:
        return trained
    return replace(
        trained, exam=trained.exam.again([ExamItem(item=Shown.NEIGHBOUR, shown=len(said), passed=sum(said))])
    )


def is_superfluous(candidate: CandidateKind, results: Sequence[CrossValidated]) -> bool:
    """Tell whether a kind that takes minutes, because layers are tuned, has nothing to win: another is always right."""
    return bool(candidate.plan.freeze) and any(one.right and all(one.right) for one in results)


def best_of(results: Sequence[CrossValidated], photographs: Sequence[Photograph]) -> CrossValidated | None:
    """Return the kind with the fewest escapes and false calls, among equals that of which the exam lets less pass.

    Among those the first; None if none could learn.
    """
    learned = [one for one in results if not one.failure]
    return min(learned, key=lambda one: one.loss(photographs), default=None)


def why(best: CrossValidated, results: Sequence[CrossValidated], photographs: Sequence[Photograph]) -> str:
    """Say why a kind is taken before the others, by the one that comes nearest to it."""
    others = [one for one in results if one is not best and not one.failure]
    if not others:
        return "no other kind could be compared"
    second = min(others, key=lambda one: one.loss(photographs))
    name = second.candidate.name
    for what, mine, other in zip(
        ("escapes", "false calls"), best.rates(photographs), second.rates(photographs), strict=True
    ):
        if mine is not None and other is not None and mine.events < other.events:
            return f"fewer {what} than {name} ({mine.events}, not {other.events})"
        if mine is not None and other is not None and mine.events > other.events:
            return (
                f"fewer false calls than {name}, which outweigh its fewer escapes ({_ESCAPE:.0f} false calls "
                "weigh as much as one escape)"
            )
    if best.loss(photographs) < second.loss(photographs):
        return f"it judges as well as {name}, and lets less pass in its exam"
    return f"it judges as well as {name}, and is listed before it"


def turned_too(
    known: Sequence[CandidateKind], results: Sequence[CrossValidated], *, polarity: bool
) -> list[CandidateKind]:
    """Return the kinds that are also tried with parts turned by any angle.

    That is where good parts pass when they are turned, no part has a polarity, and no kind judges all pictures right.
    """
    if polarity or any(one.right and all(one.right) for one in results) or not any(one.turned_pass for one in results):
        return []
    return [replace(one, plan=replace(one.plan, turned=True)) for one in known if one.kind.learns_turned]


def chance_of(best: CrossValidated, other: CrossValidated) -> float:
    """Return how probable it is that two kinds equally good differ so much in favour of the first (a sign test)."""
    from scipy.special import bdtrc  # slow to import

    better = sum(a and not b for a, b in zip(best.right, other.right, strict=True))
    worse = sum(b and not a for a, b in zip(best.right, other.right, strict=True))
    return float(bdtrc(better - 1, better + worse, 0.5)) if better else 1.0


def unproven(best: CrossValidated, photographs: Sequence[Photograph]) -> str | None:
    """Say why the bad and the good pictures do not prove a kind; "" if they do, None where they are too few for that.

    Fisher's exact test: how probable is it that one calls so many of the bad ones who calls pictures at random?
    """
    escapes, false_calls = best.rates(photographs)
    if escapes is None or false_calls is None:
        return None
    bad, good, found = escapes.trials, false_calls.trials, escapes.trials - escapes.events
    if _at_random(bad, bad, good, bad) > _CHANCE:
        return None
    if _at_random(found, bad, good, found + false_calls.events) <= _CHANCE:
        return ""
    return f"it calls {found} of {bad} bad and {false_calls.events} of {good} good pictures: that may be chance"


def _at_random(found: int, bad: int, good: int, calls: int) -> float:
    """Return how probable it is that `calls` pictures, called at random, hold `found` of the bad ones or more."""
    ways = (math.comb(bad, hits) * math.comb(good, calls - hits) for hits in range(found, min(bad, calls) + 1))
    return sum(ways) / math.comb(bad + good, calls)


def seen(photographs: Sequence[Photograph], bits: int | None) -> list[SeenPhotograph]:
    """Return how photographs look; each is decoded once. Raises ConfigError for one that cannot be read."""
    decoded = (_decoded(one.path, bits) for one in photographs)
    return [SeenPhotograph(digest_of(pixels), alike.look_of(pixels), max(pixels.shape[:2])) for pixels in decoded]


def under_two_labels(photographs: Sequence[Photograph], looks: Sequence[SeenPhotograph]) -> list[tuple[str, str]]:
    """Return the names of pictures that are identical and stand under different labels, in pairs."""
    first: dict[int, Photograph] = {}
    pairs = []
    for one, look in zip(photographs, looks, strict=True):
        other = first.setdefault(look.digest, one)
        if other.label != one.label:
            pairs.append((other.name, one.name))
    return pairs


def different(photographs: Sequence[Photograph], looks: Sequence[SeenPhotograph]) -> tuple[Photograph, ...]:
    """Return photographs without those that are the same picture as one before them."""
    first = {look.digest: one for one, look in zip(reversed(photographs), reversed(looks), strict=True)}
    return tuple(one for one, look in zip(photographs, looks, strict=True) if first[look.digest] is one)


def remarks_on(photographs: Sequence[Photograph], looks: Sequence[SeenPhotograph], bits: int | None) -> list[str]:
    """Return a remark on copies, saved anew or in another size, that stand under different labels; or none."""
    named = [(one.name, look.look, one.label) for one, look in zip(photographs, looks, strict=True)]
    return alike.remarks(named, lambda place: _decoded(photographs[place].path, bits))


def side_of(look: SeenPhotograph) -> int:
    """Return the side of an input that shows a picture: a multiple of 32 pixels, 64 to 224."""
    least, most = config.CHOSEN_INPUT
    return int(min(most, max(least, -(-look.longer // 32) * 32)))


def _prepared(kind: Kind, expert: Expert, path: Path, bits: int | None) -> ExpertInput:
    return kind.preprocess(_decoded(path, bits), expert)


def _decoded(path: Path, bits: int | None) -> Image:
    try:
        return np.asarray(decode(path, bits=bits), np.uint8)
    except ImageError as error:
        raise ConfigError(f"'{path}' {error}; remove it or save it again") from error


def folds_of(store: Store, known: Sequence[CandidateKind], plan: TrainingPlan) -> list[frozenset[int]]:
    """Return the places of a plan's pictures that are out in each fold: each label's share, a series of one part whole.

    What a series is says the first of the kinds that can tell.
    """
    photographs = plan.photographs or ()
    of_label: dict[str, dict[int, list[int]]] = {}
    for place, number in enumerate(_parts(store, known, photographs)):
        of_label.setdefault(photographs[place].label, {}).setdefault(number, []).append(place)
    most = max(map(len, of_label.values()))
    count = max(2, most if most < _FEW else _FOLDS if len(photographs) < _MANY else _FOLDS_OF_MANY)
    folds: list[set[int]] = [set() for _ in range(count)]
    turn = 0
    for label in sorted(of_label):
        groups = [*of_label[label].values()]
        random.Random(plan.seed).shuffle(groups)
        for places in groups:
            folds[turn % count].update(places)
            turn += 1
    return [frozenset(fold) for fold in folds]


def _parts(store: Store, known: Sequence[CandidateKind], photographs: Sequence[Photograph]) -> Sequence[int]:
    """Return the number of its part for each picture, as the first of the kinds says that can tell."""
    labels = [one.label for one in photographs]
    for kind in known:
        inputs = (_prepared(kind.kind, kind.expert, one.path, kind.plan.bits).pixels for one in photographs)
        try:
            parts = learning.parts_of(store, kind.expert, kind.kind, kind.plan, kind.start, inputs, labels)
        except CoeError:  # the kind says so when it shall learn
            continue
        if parts is not None:
            return parts
    return range(len(photographs))
