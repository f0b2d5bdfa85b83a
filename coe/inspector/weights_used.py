"""The weights that a board's experts run from: whether they fit its rules, and what findings depend on.

No torch is needed, so that a recipe can be checked where no model runs, and no run is continued with other weights.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from coe import config
from coe.board import rules
from coe.board.parts_list import PlacedPart
from coe.board.rules import Rules
from coe.board.steps import DECIDING, Component
from coe.board.union import Member, union
from coe.core import FULL, NOTHING, Shown, Verdict
from coe.errors import StoreError, list_few
from coe.helpers.spelling import composed
from coe.inspector.precision import allowed
from coe.store.exam import NO_EXAM, NO_GOOD, NOT_TOLD, Exam, ExamItem, ExamRow, stops_of, warnings_of, worst_of
from coe.store.manifest import Manifest
from coe.store.reference_reader import ReferenceReader
from coe.store.store_reader import NoSuchExpert, StoreReader


def findings_facts(manifest: Manifest, precision: str) -> tuple[Hashable, ...]:
    """Return all facts of an expert's weights that its verdicts depend on, if a line runs in a precision."""
    prepared = tuple(
        (
            str(name),
            blob.digest,
            blob.escalate_below,
            blob.agreement.labels_equal if blob.agreement else None,
            *((blob.body.digest,) if blob.body else ()),
        )
        for name, blob in sorted(manifest.variants.items())
        if precision != FULL or name == FULL
    )
    body = (manifest.body.digest,) if manifest.body is not None else ()
    seen = tuple(part.model_dump_json() for part in (manifest.preprocessing, manifest.outputs) if part is not None)
    exam = tuple(f"{at} {item} {stops}" for at, own in stops_of(manifest.exam).items() for item, stops in own.items())
    limits = tuple(f"{id} {own}" for id, own in manifest.limits.items())
    facts = (manifest.kind, manifest.labels, manifest.input_size, manifest.checksum, prepared, *body, *seen)
    return (*facts, *exam, *limits)


def expert_digests(board: Rules, manifests: Mapping[str, Manifest], precision: str) -> dict[str, str]:
    """Return, by expert, a digest of all that its findings depend on; "" if its manifest is missing.

    The findings depend on the weights, and on the variants that the expert may run in. With precision fp32 that is its
    fp32 blob alone, so that a run in fp32 can be continued after `coe-experts prepare` has made other variants.
    `manifests` are by weights.
    """
    digests = {}
    for id, expert in board.experts.items():
        manifest = manifests.get(expert.weights)
        if manifest is None:
            digests[id] = ""
            continue
        facts = [expert.weights, *findings_facts(manifest, precision)]
        digests[id] = hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
    return digests


def reference_digests(board: Rules, store: StoreReader) -> dict[str, str]:
    """Return the checksum of each reference that the rules name, by id; raises StoreError if one is missing."""
    references = ReferenceReader(store)
    return {id: references.manifest(id).checksum for id in board.references}


def manifests_of(board: Rules, store: StoreReader) -> dict[str, Manifest]:
    """Return the readable manifests of a board's experts, by weights.

    Opening the line reports those that cannot be read, all together.
    """
    manifests = {}
    for expert in board.experts.values():
        with suppress(StoreError):
            manifests[expert.weights] = store.manifest(expert.weights)
    return _as_calibrated(board, manifests)


def usable_variants(
    board: Rules, manifests: Mapping[str, Manifest], precision: str, floor: float, devices: Collection[str]
) -> tuple[str, ...]:
    """Return the variants that a board's experts may run in on these devices, sorted; `manifests` are by weights."""
    offers = [manifests[expert.weights].variants for expert in board.experts.values() if expert.weights in manifests]
    usable = (allowed(precision, {str(name): blob for name, blob in blobs.items()}, devices, floor) for blobs in offers)
    return tuple(sorted({FULL, *usable}))


def read_manifests(board: Rules, store: StoreReader) -> dict[str, Manifest]:
    """Read the manifests of a board's experts, by weights, and compare them with its rules; raises StoreError."""
    store.check_installed(board.board)
    by_weights: dict[str, Manifest] = {}
    missing: list[str] = []
    for expert in board.experts.values():
        try:
            manifest = store.manifest(expert.weights)
        except NoSuchExpert:
            missing.append(expert.weights)
            continue
        wanted = (expert.kind, expert.labels, expert.input_size)
        # The order of the labels is that of the outputs, which the weights alone know.
        same = sorted(expert.labels) == sorted(map(composed, manifest.labels))
        if wanted != (manifest.kind, expert.labels if same else manifest.labels, manifest.input_size):
            stored = _describe(manifest.kind, manifest.labels, manifest.input_size)
            raise StoreError(
                f"expert '{expert.id}' is {_describe(*wanted)} in {board.path.name}, but its weights "
                f"'{expert.weights}' are {stored}; correct the rules or train the expert again"
            )
        by_weights[expert.weights] = manifest
    if missing:
        few = list_few((f"'{weights}'" for weights in missing), 3)
        raise StoreError(
            f"{len(missing)} of {len(board.experts)} experts of board '{board.board}' have no weights in {store.root} "
            f"({few}); train or import them with coe-experts, or name another store with --store "
            f"or ${config.STORE_VARIABLE}" + _random(board, missing)
        )
    return _as_calibrated(board, by_weights)


def _as_calibrated(board: Rules, manifests: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """Return manifests, by weights, with the exams that their experts took with the scores of the calibration.

    What experts share their weights with is what the worst of their exams says.
    """
    sharing: dict[str, list[str]] = {}
    for id, expert in board.experts.items():
        sharing.setdefault(expert.weights, []).append(id)
    calibrated = dict(manifests)
    for weights, manifest in manifests.items():
        measured = [board.calibrated.get(id, ("", ())) for id in sharing[weights]]
        taken = [exam if checksum == manifest.checksum else () for checksum, exam in measured]
        if any(taken):
            own = manifest.exam or Exam()
            exams = [own.again(ExamItem.model_validate(dict(item)) for item in exam) for exam in taken]
            calibrated[weights] = manifest.model_copy(update={"exam": worst_of(exams)})
    return calibrated


def _random(board: Rules, missing: Collection[str]) -> str:
    """Return the command that makes random weights for a board that has none at all, behind a sentence."""
    if len(missing) < len(board.experts):
        return ""
    named = shlex.quote(rules.word_for(board.path))
    return f"; to try the box without trained experts, make random ones: coe-experts synth --board {named}"


def warnings(board: Rules, manifests: Mapping[str, Manifest], parts: Sequence[PlacedPart] = ()) -> tuple[str, ...]:
    """Return sentences about experts of a board whose verdicts prove little.

    They are unproven, have a calibration of other weights, cautions, or gaps in their exams.

    `manifests` are by weights; for `parts` see `exam_rows`. Nobody is called unproven whom nobody has measured.
    """
    by_reason: dict[str, list[str]] = {}
    by_caution: dict[str, list[str]] = {}
    for id, expert in board.experts.items():
        if (manifest := manifests.get(expert.weights)) is not None and manifest.unproven:
            by_reason.setdefault(manifest.unproven, []).append(f"'{id}'")
    for id, told in cautions(board, manifests).items():
        for words in told:
            by_caution.setdefault(words, []).append(f"'{id}'")
    unproven = tuple(
        f"experts {', '.join(ids)} are unproven: {reason}" if len(ids) > 1 else f"expert {ids[0]} is unproven: {reason}"
        for reason, ids in by_reason.items()
    )
    beside = (f"{'experts' if len(ids) > 1 else 'expert'} {list_few(ids)}: {said}" for said, ids in by_caution.items())
    return (*unproven, *stale(board, manifests), *beside, *warnings_of(exam_rows(board, manifests, parts)))


def stale(board: Rules, manifests: Mapping[str, Manifest]) -> tuple[str, ...]:
    """Return a sentence about the experts whose calibration was measured with other weights; `manifests` by weights."""
    old = [
        f"'{id}'"
        for id, (checksum, _) in board.calibrated.items()
        if id in board.experts and (manifest := manifests.get(board.experts[id].weights)) is not None
        if manifest.checksum != checksum
    ]
    return (f"the calibration of {list_few(old)} was measured with other weights; calibrate again",) if old else ()


def cautions(board: Rules, manifests: Mapping[str, Manifest]) -> dict[str, tuple[str, ...]]:
    """Return by id what is said of experts wherever their word is shown, as ends of sentences.

    They were taught with too few pixels; or their word makes a part OK, and they took no exam, or one that leaves open
    whether missing parts, or turned ones with a polarity, pass; or they are classifiers, such as imported ones, that do
    not know how good parts look. `manifests` are by weights; experts without one are left out.
    """
    unaware = knowing_no_good_part(board, manifests)
    exams = {id: manifests[one.weights].exam for id, one in board.experts.items() if one.weights in manifests}
    deciding: dict[str, set[Shown]] = {}
    for component in board.components.values():
        steps = list(component.root.walk())
        taken = [exam for step in steps if (exam := exams.get(step.expert)) is not None]
        rows = {row.item for exam in taken for row in exam.items}
        # Of a surface, or of parts without a place, the note of its exam says that nothing is shown as missing.
        asked = {item for item in DECIDING if item is not Shown.MISSING or not any(exam.is_surface for exam in taken)}
        if not component.has_polarity():
            asked.discard(Shown.TURNED)
        for step in steps:
            if Verdict.OK in step.outcomes.values() and board.experts[step.expert].reads is None:
                deciding.setdefault(step.expert, set()).update(asked - rows)
    told = {}
    for id, expert in board.experts.items():
        if (manifest := manifests.get(expert.weights)) is not None:
            took_none = manifest.exam is None or not manifest.exam.is_taken
            lacking = tuple(item for item in DECIDING if item in deciding.get(id, ()))
            of_exam = NO_EXAM if took_none and id in deciding else NOT_TOLD.get(lacking, "")
            of_good = NO_GOOD if id in unaware else ""
            told[id] = tuple(filter(None, (manifest.few_pixels, of_exam, of_good)))
    return told


def knowing_no_good_part(board: Rules, manifests: Mapping[str, Manifest]) -> frozenset[str]:
    """Return the classifiers whose word makes a part OK that no expert has compared with good parts, by id.

    The rules of a detector say what follows `none`; a reader knows its text. `manifests` are by weights.
    """
    compares = {
        id
        for id, expert in board.experts.items()
        if expert.weights not in manifests or manifests[expert.weights].knows_good_parts
    }
    return frozenset(
        step.expert
        for component in board.components.values()
        if component.root.expert not in compares
        for step in component.root.walk()
        if Verdict.OK in step.outcomes.values() and NOTHING not in step.outcomes and step.expert not in compares
        if board.experts[step.expert].reads is None
    )


def exam_rows(board: Rules, manifests: Mapping[str, Manifest], parts: Sequence[PlacedPart] = ()) -> tuple[ExamRow, ...]:
    """Return the exams of a board's experts, what follows at its components, and the `cautions` as notes.

    `manifests` are by weights. `parts` tell the reference designators of components, where they are known.
    """
    exams = {id: manifests[expert.weights].exam for id, expert in board.experts.items() if expert.weights in manifests}
    experts = {id: replace(expert, stops=stops_of(exams.get(id))) for id, expert in board.experts.items()}
    components = union([Member("", board, experts)]).components
    polar = {
        part.component: part.refdes
        for part in parts
        if part.component in components and components[part.component].has_polarity(part.refdes)
    }
    refdes = {name: polar.get(name, "") for name in components}
    rows = (
        row for id, exam in exams.items() if exam is not None for row in _rows_of(id, exam, components.values(), refdes)
    )
    notes = (ExamRow(expert=id, note=words) for id, told in cautions(board, manifests).items() for words in told)
    return (*rows, *notes)


def _rows_of(id: str, exam: Exam, components: Collection[Component], refdes: Mapping[str, str]) -> Iterator[ExamRow]:
    served = [component for component in components if component.steps_of(id)]
    for item in exam.items:
        where: dict[str, list[str]] = {}
        for component in [one for one in served if item.is_of(one.name, exam.items)] if item.is_blind else ():
            part = refdes[component.name]
            gaps = {gap.item for gap in component.gaps([step.expert for step in component.root.walk()], part)}
            forbids = item.item in DECIDING and (item.item is not Shown.TURNED or component.has_polarity(part))
            is_open = item.item in gaps
            is_stated = item.item in component.accepts or (item.item is Shown.TURNED and component.polarity is False)
            if forbids and not is_open:
                what = "stopped"
            else:
                what = "accepted" if is_stated else "review" if forbids else "passing"
            where.setdefault(what, []).append(component.name)
        yield ExamRow.model_validate({"expert": id, "item": item, **where})
    yield from (ExamRow(expert=id, note=note) for note in exam.notes)


def _describe(kind: str, labels: tuple[str, ...], size: int) -> str:
    said = f"for {', '.join(labels)}" if labels else "without labels, a backbone from which `train --init` starts"
    return f"a {kind} of {size} pixels {said}"
