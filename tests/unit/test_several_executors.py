"""Several executors at once: how many were measured, and what is said when one fails."""

from __future__ import annotations

import threading

import pytest

from coe.core import Expert
from coe.errors import ConfigError, DeviceFull
from coe.profiler import survey
from coe.profiler.several_executors import _batch_s
from coe.profiler.site import ProfiledSite
from coe.profiler.steps import ProgressSteps
from coe.profiler.survey import measure_together
from coe.profiler.target import Target
from coe.profiler.unfinished import Draft
from coe.store.store import Store
from coe.testing import rules_from

EXPERT = Expert("e", "narrow", ("ok", "bad"), 32, "t/e")
BOARD = """
board: t
experts: {e: {kind: narrow, labels: [ok, bad], input: 32, reject: [bad], then: {none: OK}}}
components: {C: {count: 1, inspect: e}}
"""


class Failing:
    """A device on which the second executor fails while the first one waits for it."""

    def __init__(self) -> None:
        self.first_is_in = threading.Event()

    def run(self, executor, pool, expert, images):
        if executor.endswith("0"):
            self.first_is_in.set()
            return []
        self.first_is_in.wait()
        raise DeviceFull("no room for weights that run")

    def __getattr__(self, name):
        return lambda *arguments, **options: None


def test_the_error_of_who_failed_is_told_not_that_of_who_waited() -> None:
    with pytest.raises(DeviceFull, match="no room for weights that run"):
        _batch_s(Failing(), EXPERT, [], 2)


@pytest.mark.parametrize("error", [ConfigError("too small"), DeviceFull("too small")])
def test_executors_are_measured_together_as_long_as_they_fit(tmp_path, monkeypatch, error) -> None:
    def together(expert, kind, store, number, target, **options):
        if number > 2:
            raise error
        return 1.5

    monkeypatch.setattr(survey, "together", together)
    draft = Draft(tmp_path / "profile.json", print)
    site = ProfiledSite(rules_from(BOARD), Store(tmp_path / "store"), [], 1 << 30)
    measure_together(site, draft, "narrow", Target("cuda", 1), 4)
    assert draft.scaling("cuda", 1) == (1.0, 1.5)
    # Those are known now; under another budget more may fit.
    tried: list[int] = []
    monkeypatch.setattr(survey, "together", lambda *arguments, **options: tried.append(arguments[3]) or 1.6)
    for _ in range(2):
        measure_together(site, draft, "narrow", Target("cuda", 1), 4)
    assert tried == [3, 4]
    assert Draft(tmp_path / "profile.json", print).scaling("cuda", 1) == (1.0, 1.5, 1.6, 1.6)


def test_steps_that_were_left_out_count_as_done() -> None:
    told: list[tuple[str, float]] = []
    steps = ProgressSteps(print, lambda what, done, total: told.append((what, done)))
    steps.expect([("a", 1.0), ("b", 2.0), ("c", 4.0)])
    steps.begin("a")
    steps.begin("c")
    steps.part(0.5)
    assert told == [("a", 0.0), ("c", 3.0), ("c", 5.0)]
