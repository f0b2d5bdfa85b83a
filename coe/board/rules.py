"""routing_rules/*.yaml -> experts, components, graph and router. Words, not code: nothing in a file is evaluated.

Board files lie beside the work, in a folder that a variable names, or in the installed package (`find`).
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

from coe import config
from coe.board import calibration_file
from coe.board.board_spec import BoardSpec, ComponentSpec, ExpertSpec, StepSpec, label_fault, references_fault
from coe.board.calibration_file import CalibratedExam
from coe.board.graph import ExpertCircle, ExpertGraph, circle_through
from coe.board.router import Router
from coe.board.steps import DECIDING, GIVEN, Component, Outcome, Step
from coe.core import NOTHING, Expert, Shown, Verdict
from coe.errors import RulesError, did_you_mean, join_errors, list_few
from coe.helpers import strict_yaml
from coe.helpers.arithmetic import added
from coe.helpers.spelling import composed
from coe.helpers.strict_model import no_value, of_yaml
from coe.helpers.strict_yaml import KeyPath, YamlDocument

_TOLD = 5
"""So many faults are told at once: names that are like a wrong one are searched among thousands."""
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rules:
    """A board file with its calibration, checked and resolved.

    `digest` is the SHA-256 of the file; with a calibration, that of the digests of both files.

    `unsaid` holds an error message for each expert with a step that does not say what follows if the expert sees
    nothing. The message matters for detectors only, and the rules do not know which kinds are detectors. `places` holds
    the place of each component in the file, as "demo.yaml:14". `bits` says how many low bits of 16-bit samples count.
    `calibrated` holds the checksum of the weights with which each expert's calibration was measured, and the exam that
    it took then.
    """

    board: str
    path: Path
    digest: str
    experts: Mapping[str, Expert]
    router: Router
    graph: ExpertGraph
    unsaid: Mapping[str, str] = field(default_factory=dict)
    places: Mapping[str, str] = field(default_factory=dict)
    bits: int | None = None
    calibrated: Mapping[str, tuple[str, tuple[CalibratedExam, ...]]] = field(default_factory=dict)

    @property
    def components(self) -> Mapping[str, Component]:
        """The component types by name."""
        return self.router.components

    @property
    def references(self) -> tuple[str, ...]:
        """The ids of the references of the store that its components name, sorted."""
        return tuple(sorted({id for component in self.components.values() for id in component.references}))

    def has_polarity(self, expert: str) -> bool:
        """Tell whether a part that an expert inspects has a polarity."""
        return any(one.has_polarity() for one in self.components.values() if one.steps_of(expert))

    def steps_of(self, expert: str) -> list[Step]:
        """Return the steps in which an expert looks, of all components."""
        return [step for component in self.components.values() for step in component.steps_of(expert)]

    def check_detectors(self, detectors: Iterable[str]) -> None:
        """Raise RulesError if the rules do not say what follows when one of these detectors sees nothing."""
        for expert in detectors:
            if expert in self.unsaid:
                raise RulesError(self.unsaid[expert])


def load(board: str | Path) -> Rules:
    """Find and read a board file, by name ("A", "demo") or path; raises RulesError with file, line and suggestion."""
    path = find(board)
    raw = strict_yaml.content(path)
    return of_bytes(path, raw, calibration_file.content(path))


@lru_cache(maxsize=16)  # a command asks for them several times, and 352 components take long
def of_bytes(path: Path, raw: bytes, calibration: bytes | None = None) -> Rules:
    """Return the rules that a file of these bytes is, with the bytes of its calibration.

    `path` names it in messages. Raises RulesError as `load` does.
    """
    document = strict_yaml.parse(path, raw)
    try:
        return _RulesReader(document, calibration).rules()
    except RecursionError:
        raise document.error((), "experts follow each other through hundreds of steps; nest fewer") from None


class _RulesReader:
    """Turns a document into rules; knows the place in the file of everything that it resolves."""

    def __init__(self, document: YamlDocument, calibration: bytes | None) -> None:
        self.document, self.digest = document, document.digest
        if blank := document.blank():  # what needs no value would count as left out
            raise join_errors([document.error(place, no_value(place)) for place in blank])
        self.spec = of_yaml(document, BoardSpec)
        self.calibrated: dict[str, tuple[str, tuple[CalibratedExam, ...]]] = {}
        if calibration is not None:
            over = calibration_file.parse(document.path, calibration)
            self.spec, self.calibrated = calibration_file.laid_over(self.spec, document.path.name, over)
            self.digest = strict_yaml.digest_of_all([document.digest, over.digest])
        self.experts = _each(self.spec.experts, self._expert)
        self.shared: dict[str, Step] = {}
        self.unsaid: dict[str, str] = {}
        self.against = {name: set(expert.reject) for name, expert in self.experts.items()}

    def rules(self) -> Rules:
        components = _each(self.spec.components, self._component)
        if not any(component.count > 0 for component in components.values()):
            raise self.document.error(("components",), "every count is 0; at least one component must occur")
        used = {step.expert for component in components.values() for step in component.root.walk()}
        if unused := [name for name in self.experts if name not in used]:
            raise join_errors(
                [
                    self.document.error(
                        ("experts", name),
                        f"expert '{name}' is not used by any component; inspect with it, or remove it",
                    )
                    for name in unused
                ]
            )
        experts = {id: replace(expert, reject=frozenset(self.against[id])) for id, expert in self.experts.items()}
        try:
            graph = ExpertGraph.of(experts.values(), components.values())
        except ExpertCircle as error:  # of several components: one says a then b, another b then a
            raise self._circle(error.circle[0], ("experts", error.circle[0]), error.circle) from None
        document, router = self.document, Router(components)
        places = {name: document.where(("components", name)) for name in components}
        return Rules(
            self.spec.board,
            document.path,
            self.digest,
            experts,
            router,
            graph,
            self.unsaid,
            places,
            self.spec.bits,
            self.calibrated,
        )

    def _component(self, name: str, spec: ComponentSpec) -> Component:
        is_given = spec.reference == (GIVEN,)
        if wrong := "" if is_given else references_fault(spec.reference):
            raise self.document.error(("components", name, "reference"), f"'{name}': {wrong}")
        for index, word in enumerate(spec.accepts):
            if word not in DECIDING:
                why = f"'{word}' cannot be accepted{did_you_mean(word, DECIDING)}"
                raise self.document.error(("components", name, "accepts", index), why)
        return Component(
            name,
            spec.count,
            self._step(spec, ("components", name), ()),
            () if is_given else tuple(f"{self.spec.board}/{one}" for one in spec.reference or ()),
            is_given=is_given,
            stop_at_ng=self.spec.stop_at_ng,
            polarity=spec.polarity,
            accepts=frozenset(map(Shown, spec.accepts)),
        )

    def _expert(self, name: str, spec: ExpertSpec) -> Expert:
        place: KeyPath = ("experts", name)
        if name in Verdict.__members__:
            raise self.document.error(place, f"'{name}' is a verdict and cannot be the name of an expert")
        if wrong := label_fault(spec.labels):
            raise self.document.error((*place, "labels"), f"expert '{name}': {wrong}")
        for index, label in enumerate(spec.reject):
            at: KeyPath = (*place, "reject", index)
            if label not in spec.labels:
                hint = did_you_mean(label, spec.labels)
                raise self.document.error(at, f"'{label}' is not a label of '{name}'{hint}")
            if (spec.then or {}).get(label) == Verdict.OK:
                says = "but its `then` says OK; remove one of the two"
                raise self.document.error(at, f"'{name}' rejects '{label}', {says}")
        weights = spec.weights or f"{self.spec.board}/{name}"
        self._check_labels(spec.ignore_under, spec.labels, name, (*place, "ignore_under"))
        expert = Expert(name, spec.kind, tuple(spec.labels), spec.input, weights, frozenset(spec.reject))
        return replace(expert, temperature=spec.temperature, ignore_under=spec.ignore_under, reads=spec.reads)

    def _step(self, spec: StepSpec, place: KeyPath, trail: tuple[str, ...]) -> Step:
        """Resolve a step; `trail` holds the experts that lead to it."""
        if spec.inspect not in self.experts:
            hint = did_you_mean(spec.inspect, self.experts)
            raise self.document.error((*place, "inspect"), f"'{spec.inspect}' is not an expert{hint}")
        expert, defaults = self.experts[spec.inspect], self.spec.experts[spec.inspect]
        home: KeyPath = ("experts", expert.id)
        states_shares = spec.shares is not None
        shares = spec.shares if states_shares else defaults.shares
        min_score = spec.min_score if spec.min_score is not None else defaults.min_score
        for stated, at in ((defaults.min_scores, home), (spec.min_scores, place)):
            self._check_labels(stated or {}, [*expert.labels, NOTHING], expert.id, (*at, "min_scores"))
        min_scores = {**(defaults.min_scores or {}), **(spec.min_scores or {})}
        trail = (*trail, expert.id)
        outcomes = self._outcomes(expert, spec.then or {}, place, trail)
        shares = self._shares(expert, shares or {}, (*(place if states_shares else home), "shares"))
        if shares.get(NOTHING) and NOTHING not in outcomes:
            raise self._nothing_said(expert)
        return Step(expert.id, min_score or 0.0, outcomes, shares, min_scores)

    def _check_labels(self, stated: Iterable[str], labels: Sequence[str], expert: str, place: KeyPath) -> None:
        faults = []
        for number, label in enumerate(one for one in stated if one not in labels):
            hint = did_you_mean(label, labels) if number < _TOLD else ""
            faults.append(self.document.error((*place, label), f"'{label}' is not a label of '{expert}'{hint}"))
        if faults:
            raise join_errors(faults)

    def _outcomes(
        self, expert: Expert, step_then: Mapping[str, Any], step: KeyPath, trail: tuple[str, ...]
    ) -> dict[str, Outcome]:
        """Resolve the outcome of each label: from the step's `then`, else from the expert's entry, else by `reject`."""
        labels = [*expert.labels, NOTHING]
        stated: dict[str, tuple[Any, KeyPath]] = {}
        for then, home in ((self.spec.experts[expert.id].then or {}, ("experts", expert.id)), (step_then, step)):
            self._check_labels(then, labels, expert.id, (*home, "then"))
            stated |= {label: (value, (*home, "then", label)) for label, value in then.items()}
        outcomes: dict[str, Outcome] = {}
        uncovered: list[str] = []
        for label in labels:
            if label in stated:
                outcomes[label] = self._outcome(*stated[label], trail)
            elif label == NOTHING:
                self.unsaid.setdefault(expert.id, str(self._nothing_said(expert)))
            elif label in expert.reject:
                outcomes[label] = Verdict.NG
            elif expert.reject:
                outcomes[label] = Verdict.OK
            else:
                every_then = [(name, spec.then or {}) for name, spec in self.spec.experts.items()]
                every_then += [(spec.inspect, spec.then or {}) for spec in self.spec.components.values()]
                if circle := circle_through(expert.id, every_then):
                    raise self._circle(expert.id, step, circle)
                uncovered.append(f"'{label}'")
                continue
            if label != NOTHING and outcomes[label] in (Verdict.NG, Verdict.REVIEW):
                self.against[expert.id].add(label)
        if uncovered:
            named = f"label{'s' * (len(uncovered) > 1)} {list_few(uncovered)} of '{expert.id}'"
            raise self.document.error(step, f"no rule covers {named}; say in `then` what follows")
        return outcomes

    def _nothing_said(self, expert: Expert) -> RulesError:
        return self.document.error(
            ("experts", expert.id),
            f"'{expert.id}' may see nothing, and not all of its steps say what follows then; add `then: {{{NOTHING}: "
            f"REVIEW}}` here (or NG, or OK where a picture without any finding is good)",
        )

    def _outcome(self, value: Any, place: KeyPath, trail: tuple[str, ...]) -> Outcome:
        if isinstance(value, str) and value in Verdict.__members__:
            return Verdict[value]
        if isinstance(value, list):
            if not value:
                raise self.document.error(place, "an empty list decides nothing; write OK, NG, REVIEW or an expert")
            words = [entry for entry in value if isinstance(entry, str)]
            if twice := [word for word, number in Counter(words).items() if number > 1]:
                raise self.document.error(place, f"'{twice[0]}' occurs twice in this list")
            return tuple(self._next(entry, (*place, index), trail) for index, entry in enumerate(value))
        return (self._next(value, place, trail),)

    def _next(self, value: Any, place: KeyPath, trail: tuple[str, ...]) -> Step:
        if isinstance(value, dict):
            spec = of_yaml(self.document, StepSpec, value, place)
            if spec.inspect in trail:
                raise self._circle(spec.inspect, (*place, "inspect"), trail)
            return self._step(spec, place, trail)
        if not isinstance(value, str):
            raise self.document.error(place, "write OK, NG, REVIEW, an expert, a list of experts or a nested step here")
        if value in Verdict.__members__:
            raise self.document.error(place, f"{value} stands alone; a list holds experts, which must all pass")
        if value not in self.experts:
            hint = did_you_mean(value, [*self.experts, *Verdict.__members__])
            raise self.document.error(place, f"'{value}' is not an expert{hint}")
        if value in trail:
            raise self._circle(value, place, trail)
        # A plain name means the same step wherever it stands. All paths share one object, so that long fan-outs do not
        # grow into a tree.
        if value not in self.shared:
            self.shared[value] = self._step(StepSpec(inspect=value), place, trail)
        return self.shared[value]

    def _shares(self, expert: Expert, stated: Mapping[str, float], place: KeyPath) -> dict[str, float]:
        self._check_labels(stated, [*expert.labels, NOTHING], expert.id, place)
        total = added(stated.values())
        silent = [label for label in expert.labels if label not in stated]
        if total > 1 + 1e-6 or (not silent and abs(total - 1) > 1e-6):
            raise self.document.error(place, f"the shares of '{expert.id}' add up to {total:g}, not 1")
        return {**dict.fromkeys(silent, max(0.0, 1 - total) / max(1, len(silent))), **stated}

    def _circle(self, expert: str, place: KeyPath, trail: tuple[str, ...]) -> RulesError:
        path = " -> ".join([*trail[trail.index(expert) :], expert])
        return self.document.error(place, f"experts follow each other in a circle: {path}")


def _each(specs: Mapping[str, S], resolve: Callable[[str, S], T]) -> dict[str, T]:
    """Return what each entry resolves to; raises one RulesError with the first fault of each wrong entry, of a few."""
    resolved: dict[str, T] = {}
    faults: list[RulesError] = []
    for name, spec in specs.items():
        try:
            resolved[name] = resolve(name, spec)
        except RulesError as fault:
            faults.append(fault)
            if len(faults) == _TOLD:
                break
    if faults:
        raise join_errors(faults)
    return resolved


def find(board: str | Path) -> Path:
    """Return the path of a board file.

    A name is looked for as `<name>.yaml` and `board_<name>.yaml` in `routing_rules` of the working directory, in the
    folder that $COE_RULES names, and in the installed package, in this order. Raises RulesError.
    """
    path = Path(board)
    if path.suffix in (".yaml", ".yml"):
        if not os.path.isfile(path):  # unlike `stat`, it does not raise for a name that is too long
            there = [folder / path.name for folder in _folders() if os.path.isfile(folder / path.name)]
            raise RulesError(f"{path}: no such board file{f'; did you mean {there[0]}?' if there else ''}")
        return path
    known: list[str] = []
    for folder in _folders():
        there = sorted(folder.glob("*.yaml"))
        wanted = [composed(name).lower() for name in (f"{board}.yaml", f"board_{board}.yaml")]
        if found := [path for name in wanted for path in there if composed(path.name).lower() == name]:
            return found[0]
        known += [path.stem.removeprefix("board_") for path in there if not calibration_file.is_calibration(path)]
    where = ", ".join(str(folder) for folder in _folders())
    if os.path.isdir(path):
        make = f"coe-board new NAME --photos {board} --run"
        raise RulesError(f"no board file for '{board}' in {where}; to make a board from photographs in it: {make}")
    raise RulesError(f"no board file for '{board}' in {where}{did_you_mean(str(board), known)}")


def word_for(path: Path) -> str:
    """Return the word by which a command finds a board file: its name, if that leads there, else its path."""
    name = path.stem.removeprefix("board_")
    with suppress(RulesError, OSError):
        if os.path.samefile(find(name), path):
            return name
    return str(path)


def _folders() -> list[Path]:
    folders = [Path(config.RULES_FOLDER)]
    if variable := os.environ.get(config.RULES_VARIABLE):
        folders.append(Path(variable))
    return [*folders, Path(str(resources.files("routing_rules")))]
