"""The host's work alone: networks answer from memory, and everything else is as on any line."""

import json
from pathlib import Path

import numpy as np
import pytest
from built_once import linked_copy
from tables import with_slow_rows

from coe import Inspector, Picture
from coe.errors import ConfigError
from coe.lab.workloads.picture_forms import PictureForm, handed_in
from coe.pictures.decoding import decode
from coe.profiler import remembered_device
from coe.runtime.cpu import CpuDevice
from coe.store.store import Store
from coe.testing import Experiment

SMALL = ("--experts", "4", "--kind", "narrow", "--input", "32", "--requests", "24")


def results(tiny, pictures, **options):
    board, store = tiny
    with Inspector(board, store=store, memory="150MB", profile=None, **options) as line:
        found = {result.request.image: result for result in line.stream(pictures)}
        return found, line.costs


def test_remembered_outputs_give_the_results_of_the_networks_and_no_network_runs(tiny, pictures, monkeypatch):
    expected, costs = results(tiny, pictures)
    remembered = remembered_device.RememberedOutputs()
    options = {"experiment": Experiment(costs=costs, make_devices=remembered_device.devices(remembered))}
    for _ in range(2):
        said, _ = results(tiny, pictures, **options)
        assert {name: result.verdict for name, result in said.items()} == {
            name: result.verdict for name, result in expected.items()
        }
        for name, result in said.items():
            for finding, other in zip(result.findings, expected[name].findings, strict=True):
                assert (finding.expert, finding.label) == (other.expert, other.label)
                assert finding.score == pytest.approx(other.score, abs=1e-3)
        # From now on, no network runs and no file is read.
        for method in ("outputs", "load", "evict"):
            monkeypatch.setattr(CpuDevice, method, lambda *_, **__: 1 / 0)
    assert len(remembered) == sum(len(result.findings) for result in expected.values())


def test_kinds_that_open_their_own_files_are_refused():
    with pytest.raises(ConfigError, match="experts of kind 'onnx' open their own files"):
        remembered_device.HostOnlyDevice(
            Store(Path("nowhere")), {"onnx": object()}, 1, remembered=remembered_device.RememberedOutputs()
        )


def test_pictures_are_handed_in_as_arrays_or_as_jpegs_each_made_once(tmp_path):
    pixels = np.full((20, 30, 3), (10, 100, 200), np.uint8)
    (jpeg,) = handed_in([Picture(pixels, "A", order="RGB")], PictureForm.JPEG)
    assert np.abs(decode(jpeg.image).astype(int) - pixels).max() <= 3
    path = tmp_path / "a.jpg"
    path.write_bytes(jpeg.image)
    first, second, other = handed_in([Picture(path, "A", "S1"), Picture(path, "B"), jpeg], PictureForm.ARRAY)
    assert first.image is second.image
    assert (first.component, first.serial, second.component) == ("A", "S1", "B")
    assert (decode(first.image) == decode(path)).all()
    assert (decode(other.image) == decode(path)).all()
    assert handed_in([jpeg], None) == [jpeg]


@pytest.mark.parametrize("form", with_slow_rows(["jpeg", "array"], fast=1))
def test_the_command_measures_the_host_alone(prepared_work, tmp_path, call, form):
    work = linked_copy(prepared_work, tmp_path / "work")
    said = call(
        "run", *SMALL, "--host-only", "--form", form, "--work", work, "--strategy", "late-binding", "--json", "-"
    )
    assert said.status == 0
    (row,) = json.loads(said.out)
    assert (row["images"], row["errors"]) == (24, 0)
    assert row["cpu_ms_per_image"] > 0
    assert row["images_per_s"] > 0
