"""The kind `marking`: what stands on a part, compared with what may stand there."""

import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch
from marked_parts import model_file, network, part

from coe.core import Expert
from coe.errors import StoreError
from coe.helpers.allowed_text import Reading
from coe.store import kinds
from experts import marking_file
from experts.marking import marking
from experts.marking_network import CHARACTERS

WINDOW = (0.1, 0.36, 0.8, 0.28)
EXPERT = Expert("value", "marking", ("right", "wrong"), 96, "base/marking", frozenset({"wrong"}))


def read(image, *allowed, size=96, window=WINDOW):
    expert = replace(EXPERT, input_size=size, reads=Reading(window=window, allowed=allowed))
    prepared = marking.preprocess(image, expert)
    with torch.inference_mode():
        outputs = marking.forward(network(), torch.from_numpy(prepared.pixels[None]))
    (finding,) = marking.postprocess(outputs, [prepared], expert)
    return finding


@pytest.mark.parametrize("text", ["103", "4R7", "106C", "24C64", "SS14", "2446", "K6T6A"])
def test_it_reads_what_stands_there(text):
    finding = read(part(text), text)
    assert (finding.label, finding.read, finding.allowed, finding.doubt) == ("right", text, (text,), "")
    assert finding.score > 0.8
    assert finding.margin <= 2 * finding.score - 1 + 1e-6, "at a score of 0.5 it is in doubt"


def test_another_value_is_wrong_and_what_is_no_letter_beside_a_window_is_no_doubt():
    finding = read(part("472"), "103", "10K")
    assert (finding.label, finding.read, finding.doubt) == ("wrong", "472", "")
    assert finding.reading == "reads '472'; allowed: 103, 10K"
    assert [read(part(text), "24##").label for text in ("2446", "2546")] == ["right", "wrong"]
    image = part("103")
    image[:, 92:95] = 200
    finding = read(image, "103", window=(0.25, 0.36, 0.5, 0.28))
    assert (finding.label, finding.read, finding.doubt) == ("right", "103", "")
    finding = read(np.full((120, 120, 3), 40, np.uint8), "103")
    assert finding.doubt
    assert (finding.read, finding.score, finding.label, finding.margin) == ("", 0.0, "right", 0.0)
    noise = np.random.default_rng(2).normal(0, 40, (120, 120, 3))
    finding = read(np.clip(part("103") * 0.2 + 60 + noise, 0, 255).astype(np.uint8), "103")
    assert finding.doubt or finding.read != "103"
    finding = read(part("901"), "106", size=144)
    assert finding.label == "wrong" or finding.doubt


@pytest.mark.parametrize(
    ("text", "allowed", "left", "right"),
    [
        *[("1103", "103", 48, 87), ("1031", "103", 33, 71), ("24C647", "24C64", 22, 82), ("8472", "472", 49, 87)],
        # A character that the window cuts into another.
        *[("820", "320", 48, 94), ("D72", "072", 48, 94), ("U72", "J72", 47, 94)],
    ],
)
def test_a_longer_text_that_the_window_cuts_is_a_doubt(text, allowed, left, right):
    window = (left / 120, 0.36, (right - left) / 120, 0.28)
    finding = read(part(text), allowed, window=window)
    assert (finding.read, bool(finding.doubt)) == (allowed, True)
    assert len(text) == len(allowed) or not read(part(text), allowed, f"?{allowed}", f"{allowed}?", window=window).doubt


@pytest.mark.parametrize("text", ["103", "24C64", "2446"])
def test_a_text_is_read_as_clearly_as_if_its_window_were_the_whole_picture(text):
    image = part(text)
    whole = read(np.ascontiguousarray(image[43:77, 30:90]), text, window=(0, 0, 1, 1))
    assert read(image, text, window=(0.25, 0.36, 0.5, 0.28)).score == pytest.approx(whole.score, abs=1e-3)


@pytest.mark.parametrize(("size", "turns"), [(144, (0, 2)), (168, (2,)), (192, (0, 1, 2, 3)), (240, (3,))])
def test_parts_that_lie_turned_are_read_as_their_input_says(size, turns):
    for quarter_turns in turns:
        finding = read(part("24C64", quarter_turns=quarter_turns), "24C64", size=size)
        assert (finding.label, finding.read, finding.doubt) == ("right", "24C64", "")
    assert read(part("24C32", quarter_turns=turns[-1]), "24C64", size=size).label == "wrong"


def test_a_finding_does_not_depend_on_its_batch_and_answers_about_windows_alone_are_refused():
    expert = replace(EXPERT, reads=Reading(window=WINDOW, allowed=("103",)))
    prepared = [marking.preprocess(part(text), expert) for text in ("103", "4R7", "24C64")]
    with torch.inference_mode():
        outputs = marking.forward(network(), torch.from_numpy(np.stack([one.pixels for one in prepared])))
    together = marking.postprocess(outputs, prepared, expert)
    assert [finding.read for finding in together] == ["103", "4R7", "24C64"]
    assert together[1].score == pytest.approx(read(part("4R7"), "103").score, abs=1e-3)
    expert = replace(EXPERT, reads=Reading(window=WINDOW, allowed=("103",)))
    with pytest.raises(StoreError, match="prepare"):
        marking.postprocess(torch.zeros(1, 1, 24, 96), [marking.preprocess(part("103"), expert)], expert)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"reads": None}, "allowed"),
        ({"reads": Reading(window=WINDOW)}, "allowed"),
        ({"reads": Reading(allowed=("*",))}, "any text"),
        ({"reads": Reading(allowed=("10Ж",))}, "Ж"),
        ({"labels": ("right", "wrong", "other")}, "two labels"),
        ({"reject": frozenset({"right"})}, "right"),
        ({"input_size": 100}, "96"),
    ],
)
def test_an_expert_that_could_inspect_nothing_is_refused(change, says):
    sound = replace(EXPERT, reads=Reading(allowed=("103",)))
    assert marking.misfit(sound) == ""
    assert says in marking.misfit(replace(sound, **change))


def test_kinds_that_do_not_read_refuse_what_may_be_read():
    resnet = replace(EXPERT, kind="resnet18", reads=Reading(allowed=("103",)))
    assert "reads" in kinds.resolve("resnet18").misfit(resnet)
    assert kinds.resolve("resnet18").misfit(replace(resnet, reads=None)) == ""


def test_the_model_is_taken_out_of_a_wheel_and_any_other_is_refused(tmp_path):
    wheel = tmp_path / "rapidocr-3.10.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(model_file(), f"rapidocr/models/{marking_file.MODEL}")
    state = marking.read(wheel).state
    assert state["head.weight"].shape == (1 + len(CHARACTERS), 120)
    assert torch.equal(state["head.weight"], network().head.weight)
    other, empty = tmp_path / "other.onnx", tmp_path / "empty.whl"
    other.write_bytes(b"no model")
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("readme.txt", "nothing")
    damaged = tmp_path / "damaged.whl"
    damaged.write_bytes(b"PK no wheel")
    for path in (other, empty, damaged):
        with pytest.raises(StoreError) as refusal:
            marking_file.tensors(path)
        assert path.name in str(refusal.value)
    import onnx

    model = onnx.load(str(model_file()))
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Sigmoid"
    changed = tmp_path / "changed.onnx"
    onnx.save(model, str(changed))
    with pytest.raises(StoreError):
        marking_file.tensors(changed)
