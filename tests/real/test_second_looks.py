"""Second looks on real networks: doubt is noted, and runs again."""

from dataclasses import replace
from functools import partial

import pytest

from coe import Inspector
from coe.inspector import line_devices
from coe.inspector.line_options import LineOptions
from coe.lab.measured_run import all_at_once, measured_run, predict
from coe.lab.rows import Heading
from coe.runtime.cpu import CpuDevice
from coe.store.manifest import Agreement, PreparedVariant
from coe.store.store import Store
from coe.store.store_reader import MANIFEST
from coe.testing import Experiment


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
        assert result.error is None
        assert result.verdict == sharp[name].verdict
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
