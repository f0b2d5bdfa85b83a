"""The counts of a run: in all, for each board and for each component. Only this file counts, for every reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from coe.board.completeness import is_absent, place_of
from coe.core import FULL, FailureKind, Request, Result, Verdict, second_looks
from coe.helpers.arithmetic import finite
from coe.pictures.photographs import Photograph, natural
from coe.scheduler.demand import Drift

NOBODY_ASKED = "no parts list was given"
"""Why it is not known whether each part has a picture, if nobody asked."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """The measured figures of a run: only sums and peaks, so that the figures of its parts can be combined.

    `answered` results came from the line in `wall_s`; `stages` and `switches` are counted as in `coe.results.metrics`,
    and `pace` is that at the end. `warnings` are sentences about what nobody should trust in silence, as an expert that
    its held-out figures do not prove.
    """

    board: str
    strategy: str = ""
    answered: int = 0
    stages: int = 0
    switches: int = 0
    peak_reserved_bytes: int = 0
    budget_bytes: int = 0
    peak_rss_bytes: int = 0
    wall_s: float = 0.0
    interrupted: bool = False
    started: str = ""
    precision: str = FULL
    drift: tuple[Drift, ...] = ()
    pace: float = 1.0
    warnings: tuple[str, ...] = ()

    @property
    def images_per_s(self) -> float:
        """Results for each second of `wall_s`; 0 without results."""
        return self.answered / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def hit_ratio(self) -> float | None:
        """1 - switches / stages: the share of stages that did not cause a switch; None before any stage ran."""
        return max(0.0, 1 - self.switches / self.stages) if self.stages else None

    def after(self, before: RunFigures | None) -> RunFigures:
        """Return these figures, of the last part of a run, combined with those of all parts before it.

        If the last part inspected nothing, the earlier figures stay.
        """
        if before is None:
            return self
        warnings = tuple(dict.fromkeys((*before.warnings, *self.warnings)))
        if not self.answered and not self.stages:
            return replace(before, interrupted=self.interrupted, warnings=warnings)
        return replace(
            self,
            answered=before.answered + self.answered,
            stages=before.stages + self.stages,
            switches=before.switches + self.switches,
            peak_reserved_bytes=max(before.peak_reserved_bytes, self.peak_reserved_bytes),
            budget_bytes=max(before.budget_bytes, self.budget_bytes),
            peak_rss_bytes=max(before.peak_rss_bytes, self.peak_rss_bytes),
            wall_s=before.wall_s + self.wall_s,
            started=before.started,
            drift=self.drift or before.drift,
            warnings=warnings,
        )


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """The number of images for each outcome; `missing` images were not inspected yet.

    `skipped` images, of units of a panel that are marked as bad, count neither as good nor as bad, and never as OK.
    `absent` places have no picture, and so no image; see `coe.board.completeness`.
    """

    ok: int = 0
    ng: int = 0
    review: int = 0
    errors: int = 0
    missing: int = 0
    skipped: int = 0
    absent: int = 0

    @property
    def images(self) -> int:
        """The number of images that have a result or an error."""
        return self.ok + self.ng + self.review + self.errors

    @property
    def good_share(self) -> float | None:
        """The share of OK among the images with a result; None without any. It is not a yield, which counts boards."""
        return self.ok / self.images if self.images else None

    @property
    def verdict(self) -> Verdict:
        """The worst verdict, and at least REVIEW if an image was not judged."""
        if self.ng:
            return Verdict.NG
        return Verdict.OK if self.ok == self.images + self.missing + self.skipped + self.absent else Verdict.REVIEW


@dataclass(frozen=True, slots=True)
class SecondLooks:
    """The number of findings (without second findings), and of those that were in doubt and run again in fp32.

    `changed` of these got other labels.
    """

    findings: int = 0
    escalated: int = 0
    changed: int = 0

    def __str__(self) -> str:
        return f"{self.escalated:,} of {self.findings:,} findings were run again in {FULL}, {self.changed:,} changed"


@dataclass(frozen=True, slots=True)
class Summary:
    """The counts of a run: in all, for each board (a serial) and for each component, in natural order.

    The `without_serial` images, inspected or not, belong to no board. `late` results came after they were due;
    `late_boards` are the serials of their images. Where the results are of several `products` (`Request.board`), a
    serial and a component stand behind the name of theirs, because each may have both.

    `completeness` says by what each board was asked for a picture of each part, as `Expected.by`; "" means that nobody
    asked, or could be answered: `unchecked` is the reason. `incomplete` are the places without a picture by board.
    `left_alone` are files that are no pictures. `accepted` counts the images that are OK because the board file accepts
    what no expert stops, by its name.
    """

    run: RunFigures
    total: OutcomeCounts
    boards: dict[str, OutcomeCounts] = field(default_factory=dict)
    components: dict[str, OutcomeCounts] = field(default_factory=dict)
    looks: SecondLooks = SecondLooks()
    late: int = 0
    late_boards: tuple[str, ...] = ()
    without_serial: int = 0
    products: tuple[str, ...] = ()
    completeness: str = ""
    unchecked: str = NOBODY_ASKED
    incomplete: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left_alone: tuple[str, ...] = ()
    accepted: dict[str, int] = field(default_factory=dict)

    def titled(self, request: Request, name: str) -> str:
        """Return a serial or a component of a request as this summary names it."""
        return _titled(request, name, self.products)

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all images; OK means that every image was judged OK."""
        return self.total.verdict

    @property
    def boards_decided(self) -> int:
        """The number of boards all of whose images have a result or an error; boards that are skipped do not count."""
        return sum(not counts.missing and not counts.skipped for counts in self.boards.values())

    @property
    def skipped_boards(self) -> tuple[str, ...]:
        """The serials of the boards that were skipped, in natural order."""
        return tuple(serial for serial, counts in self.boards.items() if counts.skipped)

    @property
    def boards_ok(self) -> int:
        """The number of boards all of whose images are OK."""
        return sum(counts.verdict is Verdict.OK for counts in self.boards.values())

    @property
    def board_fpy(self) -> float | None:
        """First-pass yield: the share of OK boards among the decided boards; None if no board is decided."""
        return self.boards_ok / self.boards_decided if self.boards_decided else None

    def to_json(self) -> dict[str, Any]:
        """Return the object that `summary.json` holds."""
        run = self.run
        return {
            "board": run.board,
            **({"products": list(self.products)} if self.products else {}),
            "strategy": run.strategy,
            "started": run.started,
            **_counts(self.total),
            "images_without_serial": self.without_serial,
            "boards_decided": self.boards_decided,
            "boards_ok": self.boards_ok,
            "board_fpy": _share(self.board_fpy),
            "completeness": self.completeness or "not checked",
            "incomplete_boards": {serial: list(places) for serial, places in self.incomplete.items()},
            "left_alone": list(self.left_alone),
            "accepted": dict(self.accepted),
            "timed_images": run.answered,
            "images_per_s": finite(run.images_per_s, 3),
            "switches": run.switches,
            "hit_ratio": finite(run.hit_ratio, 4),
            "peak_reserved_bytes": run.peak_reserved_bytes,
            "budget_bytes": run.budget_bytes,
            "peak_rss_bytes": run.peak_rss_bytes,
            "wall_s": finite(run.wall_s, 3),
            "precision": run.precision,
            "findings": self.looks.findings,
            "escalated": self.looks.escalated,
            "changed": self.looks.changed,
            "skipped_boards": list(self.skipped_boards),
            "late": self.late,
            "late_boards": list(self.late_boards),
            "usage_drift": [
                {"expert": drift.expert, "rules": finite(drift.rules, 4), "estimated": finite(drift.estimated, 4)}
                for drift in run.drift
            ],
            "pace": finite(run.pace, 3),
            "warnings": list(run.warnings),
            "interrupted": run.interrupted,
            "boards": {serial: counts.verdict.value for serial, counts in self.boards.items()},
            "components": {component: _counts(counts) for component, counts in self.components.items()},
        }


def summarise(results: Iterable[Result], run: RunFigures, missing: Iterable[Photograph] = ()) -> Summary:
    """Count a run. `missing` are images that have no result, as after an interruption.

    Whoever asked for a picture of each part says so in the summary: `results` alone do not tell it.
    """
    boards: dict[str, Counter[str]] = {}
    components: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    results = list(results)
    outcomes: list[tuple[Request | Photograph, str]] = [
        *((result.request, _outcome(result)) for result in results),
        *((item, "missing") for item in missing),
    ]
    products = several(result.request for result in results)
    for image, outcome in outcomes:
        total[outcome] += 1
        components.setdefault(_titled(image, image.component, products), Counter())[outcome] += 1
        if image.serial:
            boards.setdefault(_titled(image, image.serial, products), Counter())[outcome] += 1
    looks = [look for result in results for look in second_looks(result.findings)]
    findings = sum(len(result.findings) for result in results if not is_absent(result)) - len(looks)
    seconds = SecondLooks(findings, len(looks), sum(look.changed for look in looks))
    late = [result.request for result in results if result.late]
    late_serials = {_titled(request, request.serial, products) for request in late if request.serial}
    late_boards = tuple(sorted(late_serials, key=natural))
    bare = sum(not image.serial for image, outcome in outcomes if outcome != "absent")
    incomplete: dict[str, list[str]] = {}
    for result in filter(is_absent, results):
        serial = _titled(result.request, result.request.serial, products)
        incomplete.setdefault(serial, []).append(place_of(result))
    parts = OutcomeCounts(**total), _outcome_counts(boards), _outcome_counts(components)
    places = {serial: tuple(named) for serial, named in incomplete.items()}
    accepted = dict(Counter(item.value for result in results for item in result.accepted))
    return Summary(run, *parts, seconds, len(late), late_boards, bare, products, incomplete=places, accepted=accepted)


def several(requests: Iterable[Request]) -> tuple[str, ...]:
    """Return the names of the boards that requests are of, in natural order, if there are several; else ()."""
    names = sorted({request.board for request in requests if request.board}, key=natural)
    return tuple(names) if len(names) > 1 else ()


def _titled(image: Request | Photograph, name: str, products: tuple[str, ...]) -> str:
    board = image.board if isinstance(image, Request) else ""
    return f"{board}/{name}" if products and board else name


def is_skipped(result: Result) -> bool:
    """Tell whether an image was skipped, because its unit of a panel is bad."""
    return result.failure is not None and result.failure.kind is FailureKind.SKIPPED


def _outcome(result: Result) -> str:
    """Return the field of `OutcomeCounts` that counts a result."""
    if is_absent(result):
        return "absent"
    if result.verdict is not None:
        return result.verdict.value.lower()
    return "skipped" if is_skipped(result) else "errors"


def _share(share: float | None) -> float | None:
    """Round a share for JSON, but never up to 1 or down to 0."""
    rounded = finite(share, 4)
    return rounded if rounded is None or share in (0, 1) else min(max(rounded, 0.0001), 0.9999)


def _outcome_counts(counters: dict[str, Counter[str]]) -> dict[str, OutcomeCounts]:
    return {name: OutcomeCounts(**counters[name]) for name in sorted(counters, key=natural)}


def _counts(counts: OutcomeCounts) -> dict[str, int | float | None]:
    return {"images": counts.images, **asdict(counts), "good_image_share": _share(counts.good_share)}
