"""The public API on real networks."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from tables import with_slow_rows

from coe import FailureKind, Inspector, Picture
from coe.board import rules
from coe.cli import inspect
from coe.errors import ConfigError
from coe.inspector import line_devices
from coe.inspector.line_options import LineOptions
from coe.inspector.profile import Fingerprint, Profile, UsageRow
from coe.lab.measured_run import all_at_once, measured_run, predict
from coe.lab.rows import Heading
from coe.profiler.configurations import board_profile, paper_default, pinned
from coe.runtime.cpu import CpuDevice
from coe.scheduler.events import Loaded, single_steps
from coe.store.manifest import Agreement, PreparedVariant
from coe.store.store import Store
from coe.store.store_reader import MANIFEST
from coe.testing import Experiment


@pytest.mark.parametrize(
    "options",
    with_slow_rows(
        [
            {"strategy": "late-binding", "memory": "12MB"},
            {"strategy": "narrow_strategy:ONE_AT_A_TIME", "memory": "12MB"},
            {"strategy": "samba-parallel", "memory": "18MB", "executors": "cpu=2"},
            {"strategy": "late-binding", "memory": "60MB", "executors": "cpu=2", "max_wait_s": 0.1},
            {"strategy": "coserve", "memory": "12MB"},
            {"strategy": "samba", "memory": "12MB"},
            {"strategy": "coserve-none", "memory": "12MB"},
            {"strategy": "coserve", "memory": "60MB", "executors": "cpu=2"},
        ],
        fast=2,
    ),
    ids=lambda options: "-".join(str(value) for value in options.values()),
)
def test_verdicts_do_not_depend_on_strategy_memory_or_executors(inspect_all, pictures, options):
    expected = inspect_all(pictures, memory="2GiB")
    found = inspect_all(pictures, **options)
    for name, result in expected.items():
        assert found[name].verdict == result.verdict
        assert [f.label for f in found[name].findings] == [f.label for f in result.findings]
        for one, other in zip(found[name].findings, result.findings, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-3)


def test_a_budget_for_one_expert_makes_switches_and_is_never_passed_and_a_smaller_one_is_said(tiny, pictures):
    board, store = tiny
    with Inspector(board, store=store, memory="12MB") as line:
        assert all(result.error is None for result in line.stream(pictures))
        seen = line.metrics()
        (device,) = line._engine.devices.values()
        assert str(store) not in Path("/proc/self/maps").read_text(encoding="utf-8")
        assert device._buffers.allocated_bytes <= 12e6
    # Each expert comes in at least once; how often again is the strategy's business.
    assert seen.switches + seen.initial_loads >= len(line.rules.experts)
    assert seen.switches >= 1
    assert 5e6 < seen.peak_reserved_bytes <= 12e6
    with pytest.raises(ConfigError, match=r"'body-[abc]' .* at least \d+"):
        Inspector(board, store=store, memory="3MB")


def test_a_line_begins_with_the_experts_that_sample_images_needed_most(tiny):
    """By the rules body-c is needed least."""
    part = board_profile(
        rules.load(tiny[0]), paper_default(rules.load(tiny[0]), Store(tiny[1]), 10**9), 10**9, strategy="coserve"
    )
    usage = (UsageRow(expert="body-c", by_rules=0.1, by_images=1.0, differs=True),)
    loads = []
    for rows in ((), usage):
        made = Profile(made="2026-11-21", machine=Fingerprint.here())
        options = {"strategy": "coserve", "profile": pinned(made, part.model_copy(update={"usage": rows}))}
        with Inspector(
            tiny[0], store=tiny[1], executors="cpu=1", experiment=Experiment(keep_trace=True), **options
        ) as line:
            line.ready()
            loads.append([command.expert for _, _, commands in line.trace for command in commands])
    assert (loads[0][-1], loads[1][0]) == ("body-c", "body-c")


def test_a_ready_line_holds_what_it_begins_with_and_one_that_cannot_load_is_ready_all_the_same(own_tiny):
    board, store = own_tiny
    seen = []
    watcher = SimpleNamespace(observe=lambda event, commands, now, control_s=0.0: seen.append(event))
    with Inspector(board, store=store, watchers=[watcher], experiment=Experiment(keep_trace=True)) as line:
        assert line.ready(60)
        assert line.metrics().initial_loads == 4
        assert [type(event) for event in seen] == [type(None), *[Loaded] * 4]
        assert line.metrics().wall_s == 0.0
        line.submit(np.zeros((50, 50, 3), np.uint8), "C").result(60)
        assert [part for _, event, commands in line.trace for part, _ in single_steps(event, commands)] == seen
    assert line.metrics().switches == 0
    (store / "tiny/body-a/weights.safetensors").write_bytes(b"not weights")
    with Inspector(board, store=store) as line:
        assert line.ready(60)


def test_labels_in_another_order_are_those_of_the_weights_by_name(own_tiny, pictures):
    board, store = own_tiny
    of_c = [picture for picture in pictures if picture.component == "C"]

    def findings():
        with Inspector(board, store=store) as line:
            results = [result.findings[-1] for result in line.stream(of_c)]
        return sorted((finding.label, finding.score) for finding in results)

    before = findings()
    was = "body-c: {kind: narrow, labels: [ok, bad]"
    text = board.read_text(encoding="utf-8")
    assert was in text
    assert before
    board.write_text(text.replace(was, was.replace("[ok, bad]", "[bad, ok]")))
    assert findings() == before


def test_a_bug_in_the_controller_still_answers_every_image(tiny, pictures, monkeypatch):
    board, store = tiny
    with Inspector(board, store=store) as line:
        monkeypatch.setattr(line._engine.controller, "handle", lambda event, now: 1 / 0)
        results = [line.submit(p.image, p.component).result(60) for p in pictures[:3]]
    for result in results:
        assert "the engine failed: ZeroDivisionError" in result.error
        assert "(test_inspector.py:" in result.error, "a policy of a user's own is found by this"


@pytest.mark.data
def test_real_images_of_every_set_are_inspected(tiny, data):
    board, store = tiny
    paths = [
        *sorted(data.glob("deeppcb/PCBData/group00041/00041/*_test.jpg"))[:4],
        *sorted(data.glob("lookout-objects/test/*/*/*"))[::8],
        *sorted(data.glob("visa-pcb-samples/*/defective.jpg")),
    ]
    assert len(paths) > 8
    with Inspector(board, store=store, memory="13MB") as line:
        results = list(line.stream(Picture(path, "A", name=str(path)) for path in paths))
    assert [result.error for result in results] == [None] * len(paths)
    assert all(len(result.findings) == 2 for result in results)


FRAME = cv2.GaussianBlur(np.random.default_rng(1).integers(0, 4096, (60, 80, 3), np.uint16), (5, 5), 0)
NARROW = (FRAME >> 4).astype(np.uint8)
OPTIONS = {"memory": "200MB", "executors": "cpu=1", "profile": None}


def scores(result):
    assert result.failure is None, result.failure
    return [finding.score for finding in result.findings]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "images" / "A" / "wide.png"
    path.parent.mkdir(parents=True)
    assert cv2.imwrite(str(path), FRAME)
    return path


def test_a_call_or_the_board_says_how_many_bits_count(tiny, file, tmp_path):
    board, store = tiny
    with Inspector(board, store=store, **OPTIONS) as line:
        wanted = scores(line.submit(NARROW, "A").result(30))
        assert scores(line.submit(FRAME, "A", bits=12).result(30)) == wanted
        assert scores(line.submit(file, "A", bits=12).result(30)) == wanted
        assert scores(next(line.stream([Picture(file, "A", bits=12)]))) == wanted
        assert scores(line.submit(file, "A", bits=16).result(30)) != wanted
        for unsaid in (file, FRAME):
            failure = line.submit(unsaid, "A").result(30).failure
            assert failure.kind is FailureKind.IMAGE
            assert "bits=12" in failure.reason
    said = tmp_path / "said.yaml"
    said.write_text(board.read_text().replace("board: tiny", "board: tiny\nbits: 12"))
    with Inspector(said, store=store, **OPTIONS) as line:
        assert scores(line.submit(FRAME, "A").result(30)) == wanted
        assert scores(line.submit(file.read_bytes(), "A").result(30)) == wanted
        assert scores(line.submit(NARROW, "A").result(30)) == wanted
        assert scores(line.submit(FRAME * 16, "A", bits=16).result(30)) == wanted


def test_the_command_takes_bits_and_a_run_keeps_to_them(tiny, file, tmp_path, call):
    board, store = tiny
    given = ["--board", board, "--store", store, "--images", file.parent.parent, "--memory", "200MB"]
    given += ["--profile", "none", "--out", tmp_path / "out"]
    assert call(*given, command=inspect).status == 3
    assert call(*given, "--resume", "--bits", 12, command=inspect).status == 2
    assert call(*given[:-1], tmp_path / "said", "--bits", 12, command=inspect).status in (0, 1)
    (line,) = (tmp_path / "said" / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["verdict"] is not None
    assert call(*given, "--bits", 17, command=inspect).status == 2


class Pretending(CpuDevice):
    """Runs all variants from the weights as they were trained, so that only the policy is tested here."""

    def measure(self, expert):
        return super().measure(replace(expert, variant="fp32"))

    def prepare(self, experts, executors=1):
        super().prepare([replace(expert, variant="fp32") for expert in experts], executors)

    def load(self, pool, expert, **how):
        super().load(pool, replace(expert, variant="fp32"), **how)

    def evict(self, pool, expert, **how):
        super().evict(pool, replace(expert, variant="fp32"), **how)

    def run(self, executor, pool, expert, images):
        found = super().run(executor, pool, replace(expert, variant="fp32"), images)
        return [replace(finding, variant=expert.variant) for finding in found]


@pytest.fixture
def prepared(own_tiny):
    """A board whose classifiers say that they have a int8 variant, one that is always in doubt among them."""
    board, root = own_tiny
    store = Store(root)
    agreement = Agreement(images=9, labels_equal=1.0, largest_score_difference=0.0)
    for weights, below in (("tiny/body-a", 2.0), ("tiny/body-b", 0.0)):
        manifest = store.manifest(weights)
        variant = PreparedVariant(
            file=manifest.file, bytes=manifest.bytes, digest="", agreement=agreement, escalate_below=below
        )
        text = manifest.model_copy(update={"variants": {"int8": variant}}).model_dump_json()
        (store.folder(weights) / MANIFEST).write_text(text, encoding="utf-8")
    return board, root


PRETENDING = partial(line_devices.make, makers={"cpu": Pretending})


def by_name(results):
    return {result.request.image: result for result in results}


def test_doubtful_findings_are_made_again(prepared, pictures):
    board, store = prepared
    options = {"store": store, "memory": "18MB", "executors": "cpu=2", "precision": "mixed"}
    options["experiment"] = Experiment(make_devices=PRETENDING)
    with Inspector(board, store=store, memory="18MB", experiment=Experiment(make_devices=PRETENDING)) as line:
        sharp = by_name(line.stream(pictures[:16]))
    said = []
    with Inspector(board, say=said.append, **options) as line:
        found = by_name(line.stream(pictures[:16]))
        seen = line.metrics()
    assert {expert.variant for expert in line.rules.experts.values()} == {"int8", "fp32"}
    assert any("2 run in fp32 alone (coe-experts prepare makes more, or says why not)" in sentence for sentence in said)
    for name, result in found.items():
        assert (result.error, result.verdict) == (None, sharp[name].verdict)
        first = result.findings[0]
        again = [f.variant for f in result.findings if f.expert == "body-a@fp32"]
        assert again == (["fp32"] if first.expert == "body-a" else [])
        assert first.variant == ("fp32" if first.expert == "body-c" else "int8")
        assert 0 <= first.margin <= 1
    assert seen.escalated == sum(result.request.component == "A" for result in found.values()) > 0
    assert (seen.changed, seen.escalated_s > 0) == (0, True)


def test_a_measured_run_is_foretold_with_its_second_looks(prepared, pictures):
    board, root = prepared
    line_options = LineOptions.of(
        board,
        store=root,
        memory=150_000_000,
        profile=None,
        strategy="coserve",
        precision="mixed",
        experiment=Experiment(make_devices=PRETENDING),
        **all_at_once(pictures),
    )
    done = measured_run(line_options, pictures, heading=Heading("t", "given", "coserve"))
    assert done.line_run.metrics.escalated > 0
    foretold = predict(done)
    assert (done.row.strategy, foretold.strategy) == ("coserve mixed", "coserve mixed (predicted)")
    assert (foretold.images, foretold.errors) == (len(pictures), 0)
