"""`coe-profile`: batches by size, several executors, other programs beside, and runs that confirm the choice."""

import os
import random
import threading
import time
from types import SimpleNamespace

import pytest
from lines import board

from coe.core import Expert, Failure, FailureKind, Finding, Request, Result, Verdict
from coe.errors import ConfigError, DeviceFull
from coe.inspector.profile import Chosen
from coe.profiler import confirm, other_load, profiling
from coe.profiler.configurations import board_profile
from coe.profiler.measure import MeasuredExpert, Target, TimeLimit, climb, rounds
from coe.profiler.other_load import LoadWatch, OtherLoad, ProcessorTimes, between, disturbs
from coe.profiler.profiling import ProgressSteps, joint_batch_s, joint_speeds
from coe.runtime.cost_fit import fit, typical
from coe.store import kinds
from coe.store.store import Store


class Disturbed:
    """An expert whose batch of n takes base + n times each, a few percent more or less, and now and then much more."""

    def __init__(self, base_s, each_s, seed):
        self.base_s, self.each_s, self.chance = base_s, each_s, random.Random(seed)
        self.asked = []

    def batch_bytes(self, images):
        return 1000 * images

    def batch_s(self, images):
        self.asked.append(images)
        disturbed = 3.0 if self.chance.random() < 0.1 else self.chance.uniform(0.97, 1.03)
        return (self.base_s + self.each_s * images) * disturbed


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("base_s", "each_s"), [(0.010, 0.004), (0.001, 0.020), (0.050, 0.050)])
def test_sizes_that_were_not_timed_are_foretold(base_s, each_s, seed):
    trial = Disturbed(base_s, each_s, seed)
    limit = TimeLimit(60.0, lambda done: None)
    held, repeats = climb(trial, (1, 2, 4, 8), limit)
    trial.asked.clear()
    rounds(trial, repeats, limit)
    assert trial.asked[:12] == [8, 4, 2, 1, 1, 2, 4, 8, 8, 4, 2, 1], "up and down in turn"
    assert held == {1: 1000, 2: 2000, 4: 4000, 8: 8000}
    found = fit({n: typical(each) for n, each in repeats.items()})
    for n in (3, 5, 6, 7):
        assert found.per_image_s * n + found.base_s == pytest.approx(base_s + each_s * n, rel=0.1)


EXPERT = Expert("e", "narrow", ("ok", "bad"), 32, "t/e")


class Failing:
    """A device on which the second executor fails while the first one waits for it."""

    def __init__(self):
        self.first_is_in = threading.Event()

    def run(self, executor, pool, expert, images):
        if executor.endswith("0"):
            self.first_is_in.set()
            return []
        self.first_is_in.wait()
        raise DeviceFull("no room for weights that run")

    def __getattr__(self, name):
        return lambda *arguments, **options: None


@pytest.mark.parametrize("error", [ConfigError("too small"), DeviceFull("too small")])
def test_executors_are_measured_together_as_long_as_they_fit(tmp_path, monkeypatch, error):
    tried = []

    def speed(subject, executors, *, images):
        tried.append(executors)
        if executors > 2:
            raise error
        return 1.5

    monkeypatch.setattr(profiling, "joint_speed", speed)
    subject = MeasuredExpert(EXPERT, kinds.resolve("narrow"), Store(tmp_path / "store"), Target("cuda", 1))
    assert joint_speeds(subject, (), 4) == (1.0, 1.5)
    # Those are known now; under another budget more may fit.
    assert joint_speeds(subject, (1.0, 1.5), 4) == (1.0, 1.5)
    assert joint_speeds(subject, (1.0, 1.5, 1.6, 1.6), 4) == (1.0, 1.5, 1.6, 1.6)
    assert tried == [2, 3, 3]


def test_steps_that_were_left_out_count_as_done_and_the_error_of_who_failed_is_told():
    told = []
    steps = ProgressSteps(print, lambda what, done, total: told.append((what, done)))
    steps.expect([("a", 1.0), ("b", 2.0), ("c", 4.0)])
    steps.begin("a")
    steps.begin("c")
    steps.part(0.5)
    assert told == [("a", 0.0), ("c", 3.0), ("c", 5.0)]
    with pytest.raises(DeviceFull, match="no room"):
        joint_batch_s(Failing(), EXPERT, [], 2)
    calm = Failing()
    calm.run = lambda *arguments: time.sleep(0.01)
    assert 0.01 <= joint_batch_s(calm, EXPERT, [], 2) < 60


# Which configuration is kept after runs on the machine, and how often images needed each expert


BOARD = board({"A": 1}, {"a": "j"})


def result(number, *labels, failed=None):
    findings = [Finding(expert, "fp32", label, 1.0) for expert, label in zip(("a", "j"), labels, strict=False)]
    failure = Failure(failed, "") if failed else None
    return Result(Request(number, "A"), None if failed else Verdict.OK, tuple(findings), 0.1, failure)


class Site:
    """A site whose configurations have these speeds on the machine, by their executors; the paper's default has 9."""

    board, memory_bytes, gpu, without_weights = BOARD, 1 << 30, None, ()

    def __init__(self, speeds, *, pictures=True):
        self.speeds, self.pictures = {9: 1.0, **speeds}, ["a picture"] * 4 if pictures else []

    def paper_default(self):
        return chosen(9)

    def run(self, profile, chosen, images):
        # A picture that cannot be read needs no expert; an expert that cannot be loaded is needed.
        failed = [result(2, failed=FailureKind.DAMAGED), result(3, failed=FailureKind.LOAD)]
        metrics = SimpleNamespace(images_per_s=self.speeds[chosen.executors["cpu"]])
        # The last run a second time.
        results = [result(0, "ok", "ok"), result(1, "bad"), *failed, result(4, "ok", "ok")]
        return SimpleNamespace(metrics=metrics, results=results, grown_bytes=7, peak_rss_bytes=9)

    def board_profile(self, chosen):
        return board_profile(BOARD, chosen, self.memory_bytes)

    def file_bytes(self, profile):
        return {"a": 10, "j": 20}


def chosen(executors):
    figures = {"images_per_s": 0.0, "casual_images_per_s": 0.0, "reasons": ()}
    return Chosen(executors={"cpu": executors}, threads={}, workspace_bytes={}, loaded_experts=1, **figures)


def confirmed(site, monkeypatch):
    monkeypatch.setattr(confirm, "_LONG_ENOUGH_S", 1e-9)
    choices = [site.board_profile(chosen(number)) for number in (1, 2)]
    return confirm.confirm(site, None, choices, images=4, say=print)


@pytest.mark.parametrize(("second", "kept"), [(5.0, 1), (10.1, 1), (10.3, 2)])
def test_the_first_choice_is_kept_unless_another_is_clearly_faster(monkeypatch, second, kept):
    best = confirmed(Site({1: 10.0, 2: second}), monkeypatch).chosen
    assert best.executors == {"cpu": kept}
    assert (best.casual_images_per_s, best.sample_images, best.grown_bytes) == (1.0, 4, 7)


def test_usage_is_that_of_the_images_that_could_be_read(monkeypatch):
    usage = {row.expert: row.by_images for row in confirmed(Site({1: 10.0, 2: 5.0}), monkeypatch).usage}
    assert usage == {"a": 1.0, "j": pytest.approx(1 / 3)}
    without = confirmed(Site({1: 10.0, 2: 5.0}, pictures=False), monkeypatch).usage
    assert [row.by_images for row in without] == [None, None]


def times(at_s, cores_s, own_s, others=None, began_s=1.0):
    named = {(pid, began_s): (f"p{pid}", total_s) for pid, total_s in (others or {}).items()}
    return ProcessorTimes(at_s, cores_s, own_s, named)


@pytest.mark.parametrize(
    ("before", "after", "cores"),
    [
        (times(0, 0, 0, {7: 5.0}), times(2, 2, 0, {8: 2.0}), 1.0),
        (times(0, 0, 0, {7: 5.0}), times(2, 2, 0, {7: 6.5}, began_s=9.0), 1.0),
        (times(0, 0, 0), times(2, 4, 4.1), 0),
        (times(5, 0, 0), times(5, 4, 0), 0),
        (times(0, 0, 0), times(1, 2.1, 0), 2),  # counted in steps of 10 ms
    ],
)
def test_what_is_not_ours_is_of_others(before, after, cores):
    assert between(before, after, 2) == OtherLoad(cores)


def test_those_that_take_most_are_named_and_a_look_at_this_machine_has_us_and_not_among_them():
    load = between(times(10, 100, 40, {7: 5.0, 8: 1.0, 9: 3.0}), times(14, 108, 43, {7: 9.0, 8: 1.1, 9: 3.6}), 2)
    assert load.cores == pytest.approx(1.25)  # 8 s of the cores in 4 s, 3 of them ours
    assert [(name, pid, round(cores, 2)) for name, pid, cores in load.most] == [("p7", 7, 1.0), ("p9", 9, 0.15)]
    look = other_load.look()
    assert look.own_s > 0
    assert os.getpid() not in {pid for pid, _ in look.others_s}


@pytest.mark.parametrize(
    ("cores", "usable", "seen", "is_disturbed"),
    [
        (0.09, 2, 2, False),  # what a quiet system does
        (0.11, 2, 2, True),
        (1.0, 16, 16, True),
        (0.7, 16, 16, False),
        (3.0, 4, 16, False),  # a container with a quota of 4 of 16 cores: others run on the rest
        (12.5, 4, 16, True),
    ],
)
def test_others_disturb_if_they_take_our_cores(cores, usable, seen, is_disturbed):
    assert disturbs(OtherLoad(cores), usable, seen) is is_disturbed


def test_each_step_has_the_load_of_its_own_time():
    looks = iter([times(0, 0, 0), times(1, 1, 0), times(1, 1, 0), times(5, 5, 4), times(5, 5, 4), times(7, 8, 6)])
    watch = LoadWatch(lambda: next(looks), usable=2, seen=2)
    waited = []
    assert (watch.before(waited.append).cores, waited) == (1.0, [other_load.LOOK_S])
    watch.step("resnet18")
    watch.step("resnet18")
    watch.step("confirming")  # 4 s, all of them ours
    watch.end()
    watch.end()
    looks = iter([times(7, 8, 6), times(7.1, 9, 6)])
    watch.step("too short to tell")
    watch.end()
    assert {what: load.cores for what, load in watch.disturbed.items()} == {"confirming": 0.5}
    assert LoadWatch(lambda: times(0, 0, 0), usable=2, seen=2).before(waited.append) is None
