"""Device presets: every figure has a source, and what is wrong in a file is said in one sentence with its place."""

from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from coe.errors import ConfigError
from coe.lab import preset
from coe.lab.preset import FOLDER, Preset, SourcedFigure

GOOD = """\
about: "a box"
disk: [1GB/s, "made up"]
memories:
  host: {size: [1GB, "made up"], reserved: [100MB, "made up"]}
kinds:
  k: {input: [10, "made up"], weights: [100MB, "made up"], open_ms: [50, "made up"]}
devices:
  cpu:
    memory: host
    scaling: [[1.0, 1.5], "made up"]
    kinds:
      k:
        per_image_ms: [10, "made up"]
        base_ms: [5, "made up"]
        activation: [1MB, "made up"]
        max_batch: [4, "made up"]
configurations:
  best: {executors: [{cpu: 1}, "made up"], expert_share: [{cpu: 0.5}, "made up"]}
"""

BLOB = "{per_image_ms: [1, x], base_ms: [1, x], activation: [1MB, x], max_batch: [1, x], active: [1MB, x]}"

Write = Callable[[str], Path]


@pytest.fixture
def box(tmp_path):
    """Write a text as a preset file."""

    def write(text):
        path = tmp_path / "box.yaml"
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
        return path

    return write


def figures(part):
    """Every figure in a part of a preset, however deep."""
    if isinstance(part, SourcedFigure):
        return [part]
    if isinstance(part, BaseModel):
        part = {name: getattr(part, name) for name in type(part).model_fields}
    return [figure for one in part.values() for figure in figures(one)] if isinstance(part, dict) else []


@pytest.mark.parametrize("name", preset.names())
def test_each_box_that_ships_can_be_read_and_says_where_its_figures_come_from(name):
    found = preset.load(name)
    assert {"best", "paper-default"} <= set(found.configurations)
    assert {"resnet101", "yolov5m", "yolov5l"} <= set(found.kinds)
    for device, spec in found.devices.items():
        assert set(spec.kinds) == set(found.kinds), f"{device} has no cost for some kind"
        assert spec.scaling.value[0] == 1.0
    all_of_them = figures(found)
    assert len(all_of_them) > 20
    for figure in all_of_them:
        assert len(figure.source.strip()) >= len("assumed"), f"{figure} does not say where it comes from"


def test_the_papers_boxes_have_its_figures():
    numa, uma = preset.load("numa-rtx3080ti"), preset.load("uma-m2")
    assert (numa.memories["device"].size.value, numa.memories["host"].size.value) == (12 * 10**9, 16 * 10**9)
    assert numa.disk.value == 530 * 10**6
    assert uma.disk.value == 3000 * 10**6
    assert [memory.size.value for memory in uma.memories.values()] == [24 * 10**9]
    assert all(device.lane is None for device in uma.devices.values())


@pytest.mark.parametrize("stride", [8, pytest.param(1, marks=pytest.mark.slow)])
def test_a_source_is_not_to_be_left_out_anywhere(box, stride):
    """Take the source away from every figure in turn, or from some."""
    lines = (FOLDER / "numa-rtx3080ti.yaml").read_text(encoding="utf-8").splitlines()
    told = [number for number, line in enumerate(lines) if line.rstrip().endswith('"]')]
    assert len(told) > 20
    for number in told[::stride]:
        head, _, _ = lines[number].rpartition(', "')
        damaged = box("\n".join([*lines[:number], f"{head}]", *lines[number + 1 :]]))
        with pytest.raises(ConfigError, match=r"a figure is written \[value, source\]"):
            preset.load(str(damaged))


def test_a_file_of_another_box_can_be_named(box):
    found = preset.load(str(box(GOOD)))
    assert isinstance(found, Preset)
    assert found.kinds["k"].weights.value == 100 * 10**6
    assert found.configurations["best"].shares() == {"cpu": 0.5}


HOST, HOTS, INACTIVE = "    memory: host", "    memory: hots", BLOB.replace(", active: [1MB, x]", "")


def with_blob(blob):
    return HOST + "\n    blobs: {k: {q8: " + blob + "}}"


COST = "devices.cpu.kinds.k"
BAD = {
    "a figure without a source": ("base_ms: [5, ", "base_ms: [5] #", f"{COST}.base_ms: a figure is written"),
    "a figure with an empty source": ('reserved: [100MB, "made up"]', 'reserved: [100MB, ""]', "reserved.source: "),
    "a plain number": ('base_ms: [5, "made up"]', "base_ms: 5", f"{COST}.base_ms: a figure is written"),
    "a missing cost": ('        base_ms: [5, "made up"]\n', "", f"{COST}.base_ms' is missing"),
    "an unknown key": (HOST, f"{HOST}\n    clock: 3", "'clock' is not a key of 'devices.cpu'; known: blob_copy, "),
    "an unknown key at the top": ("about:", "abuot: x\nabout:", "'abuot' is not a key; did you mean 'about'?"),
    "a unit that there is not": ("1GB/s", "1GB/h", "disk: '1GB/h' "),
    "bytes in no unit of bytes": ("size: [1GB,", "size: [1Gflop,", "memories.host.size: '1Gflop' "),
    "no bytes": ("weights: [100MB,", "weights: [-3,", "kinds.k.weights: '-3' "),
    "time that is not a number": ("[5, ", "[.nan, ", f"{COST}.base_ms: "),
    "time that is below nothing": ("[5, ", "[-1, ", f"{COST}.base_ms: "),
    "a batch of nothing": ("max_batch: [4,", "max_batch: [0,", f"{COST}.max_batch: "),
    "two that are thrice as fast": ("[1.0, 1.5]", "[1.0, 3.0]", "devices.cpu.scaling: "),
    "no speed at all": ("[1.0, 1.5]", "[]", "'devices.cpu.scaling' needs 1 "),
    "a speed of nothing": ("[1.0, 1.5]", "[0.0]", "devices.cpu.scaling.0: "),
    "a memory that there is not": ("memory: host", "memory: hots", "devices.cpu.memory: no memory 'hots'"),
    "a device that there is not": ("{cpu: 1}", "{gpu: 1}", "configurations.best: no device 'gpu'"),
    "a share of a device that there is not": ("{cpu: 0.5}", "{gpu: 0.5}", "configurations.best: no device 'gpu'"),
    "more than all of the memory": ("{cpu: 0.5}", "{cpu: 1.5}", "configurations.best.expert_share.cpu: "),
    "no executors": ("{cpu: 1}", "{}", "'configurations.best.executors' needs 1 "),
    "too many executors": ("{cpu: 1}", "{cpu: 1000}", "configurations.best.executors.cpu: "),
    "all of a memory reserved": ("[100MB, ", "[1GB, ", "memories.host: "),
    "the cost of a kind that there is not": ("      k:\n", "      q:\n", "devices.cpu.kinds: 'q' "),
    "blobs of a kind that there is not": (HOST, f"{HOST}\n    blobs: {{q: {{}}}}", "cpu.blobs: 'q' "),
    "a variant without a size": (HOST, with_blob(BLOB), "kinds.k.blobs: no size of 'q8', which cpu"),
    "a variant without running weights": (HOST, with_blob(INACTIVE), "blobs.k.q8.active' is missing"),
    "two faults": (f"{HOST}\n    scaling: [[1.0, 1.5]", f"{HOTS}\n    scaling: [[1.0, 3.0]", "no memory 'hots'; "),
    "a file of nothing": (GOOD, "", "about, disk, memories, "),
    "a list": (GOOD, "- about\n- disk\n", "about, disk, "),
    "a word": (GOOD, "a box", "about, disk, "),
    "no YAML": (GOOD, "about: [1, 2\ndisk: 5", "line 2: "),
    "code": (GOOD, "about: !!python/object/apply:os.getcwd []", "constructor"),
    "too deep": (GOOD, "[" * 1100, ""),
    "a zero": (GOOD, "about: x\x00", ""),
    "bytes that are no text": (GOOD, "about: \udcff\udcfe", ""),
    "no devices": (GOOD[GOOD.index("devices:") :], "devices: {}\nconfigurations: {}", "'devices' needs 1 "),
}


@pytest.mark.parametrize(("old", "new", "said"), BAD.values(), ids=BAD)
def test_what_is_wrong_is_said_with_file_and_place(box, old, new, said):
    assert old in GOOD
    path = box(GOOD.replace(old, new, 1))
    with pytest.raises(ConfigError) as caught:
        preset.load(str(path))
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert said in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("name", ["uma-m3", "", "box.yaml", "a" * 300, "a\0b", "../presets"])
def test_a_box_that_is_not_there_lists_those_that_are(name):
    with pytest.raises(ConfigError, match="numa-rtx3080ti, uma-m2"):
        preset.load(name)
