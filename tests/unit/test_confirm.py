"""Which configuration is kept after runs on the machine, and how often images needed each expert."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.inspector.profile import Chosen
from coe.profiler import confirm
from coe.profiler.configurations import board_profile
from coe.testing import rules_from

BOARD = rules_from(
    """
board: b
experts:
  a: {kind: k, labels: [ok, bad], input: 8, reject: [bad], then: {ok: joint}}
  joint: {kind: k, labels: [ok, bad], input: 8, reject: [bad]}
components: {R1: {inspect: a}}
"""
)


def result(number: int, *labels: str, failed: FailureKind | None = None) -> Result:
    findings = [Finding(expert, "fp32", label, 1.0) for expert, label in zip(("a", "joint"), labels, strict=False)]
    failure = Failure(failed, "") if failed else None
    return Result(Request(number, "R1"), None if failed else Verdict.OK, tuple(findings), 0.1, failure)


class Site:
    """A site whose configurations have these speeds on the machine, by their executors; the paper's default has 9."""

    board, memory_bytes, gpu, without_weights = BOARD, 1 << 30, None, ()

    def __init__(self, speeds: dict[int, float], *, pictures: bool = True) -> None:
        self.speeds, self.pictures = {9: 1.0, **speeds}, ["a picture"] if pictures else []

    def paper_default(self) -> Chosen:
        return chosen(9)

    def run(self, profile: Any, chosen: Chosen, images: int) -> Any:
        # A picture that cannot be read needs no expert; an expert that cannot be loaded is needed.
        failed = [result(2, failed=FailureKind.DAMAGED), result(3, failed=FailureKind.LOAD)]
        metrics = SimpleNamespace(images_per_s=self.speeds[chosen.executors["cpu"]])
        results = [result(0, "ok", "ok"), result(1, "bad"), *failed]
        return SimpleNamespace(metrics=metrics, results=results, grown_bytes=7, peak_rss_bytes=9)

    def board_profile(self, chosen: Chosen) -> Any:
        return board_profile(BOARD, chosen, self.memory_bytes)

    def file_bytes(self, profile: Any) -> dict[str, int]:
        return {"a": 10, "joint": 20}


def chosen(executors: int) -> Chosen:
    figures = {"images_per_s": 0.0, "casual_images_per_s": 0.0, "reasons": ()}
    return Chosen(executors={"cpu": executors}, threads={}, workspace_bytes={}, loaded_experts=1, **figures)


def confirmed(site: Site, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(confirm, "_LONG_ENOUGH_S", 1e-9)
    choices = [site.board_profile(chosen(number)) for number in (1, 2)]
    return confirm.confirm(site, None, choices, images=4, say=print)  # type: ignore[arg-type]


@pytest.mark.parametrize(("second", "kept"), [(5.0, 1), (10.1, 1), (10.3, 2)])
def test_the_first_choice_is_kept_unless_another_is_clearly_faster(monkeypatch, second: float, kept: int) -> None:
    best = confirmed(Site({1: 10.0, 2: second}), monkeypatch).chosen
    assert best.executors == {"cpu": kept}
    assert (best.casual_images_per_s, best.sample_images, best.grown_bytes) == (1.0, 4, 7)


def test_usage_is_that_of_the_images_that_could_be_read(monkeypatch) -> None:
    usage = {row.expert: row.by_images for row in confirmed(Site({1: 10.0, 2: 5.0}), monkeypatch).usage}
    assert usage == {"a": 1.0, "joint": pytest.approx(1 / 3)}
    without = confirmed(Site({1: 10.0, 2: 5.0}, pictures=False), monkeypatch).usage
    assert [row.by_images for row in without] == [None, None]
