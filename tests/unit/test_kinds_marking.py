"""Kinds that read: printed markings, codes, and the window in which a marking lies."""

import zipfile
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
import torch
import zxingcpp
from PIL import Image
from seen_codes import QUIET, Seeing, modules, photograph

from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.helpers.allowed_text import Reading
from coe.learn.window_search import grid
from coe.pictures.codes import USUAL, check_formats, read_codes
from coe.store import kinds
from coe.store.store import Store
from experts import marking_file
from experts.code import code
from experts.marking import marking
from experts.marking_network import CHARACTERS, MarkingNetwork

MODEL = Path(find_spec("rapidocr").submodule_search_locations[0], "models", marking_file.MODEL)
"""The published recognition model."""
WINDOW = (0.1, 0.36, 0.8, 0.28)
EXPERT = Expert("value", "marking", ("right", "wrong"), 96, "base/marking", frozenset({"wrong"}))


@cache
def network():
    torch.set_num_threads(1)
    module = MarkingNetwork().eval()
    module.load_state_dict(marking_file.tensors(MODEL))
    return module


def part(text, *, quarter_turns=0):
    """Return a part of 120 x 120 pixels, uint8 RGB, with a text printed in its middle."""
    image = np.full((120, 120, 3), 40, np.uint8)
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, 0.6, 2)
    at = (60 - width // 2, 60 + height // 2)
    cv2.putText(image, text, at, cv2.FONT_HERSHEY_SIMPLEX, 0.6, (200, 200, 200), 2, cv2.LINE_AA)
    return np.ascontiguousarray(np.rot90(image, quarter_turns))


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
    with pytest.raises(StoreError, match="prepare"):
        marking.postprocess(torch.zeros(1, 1, 24, 96), prepared[:1], expert)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        *(({"reads": None}, "allowed"), ({"reads": Reading(window=WINDOW)}, "allowed")),
        *(({"reads": Reading(allowed=("*",))}, "any text"), ({"reads": Reading(allowed=("10Ж",))}, "Ж")),
        *(({"labels": ("a", "b", "c")}, "two"), ({"input_size": 100}, "96")),
        ({"reject": frozenset({"right"})}, "right"),
    ],
)
def test_an_expert_that_could_inspect_nothing_is_refused(change, says):
    sound = replace(EXPERT, reads=Reading(allowed=("103",)))
    assert marking.misfit(sound) == ""
    assert says in marking.misfit(replace(sound, **change))
    does_not_read = kinds.resolve("resnet18")
    assert "reads" in does_not_read.misfit(replace(sound, kind="resnet18"))
    assert does_not_read.misfit(replace(sound, kind="resnet18", reads=None)) == ""


def test_the_model_is_taken_out_of_a_wheel_and_any_other_is_refused(tmp_path):
    wheel = tmp_path / "rapidocr-3.10.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(MODEL, f"rapidocr/models/{marking_file.MODEL}")
    state = marking.read(wheel).state
    assert state["head.weight"].shape == (1 + len(CHARACTERS), 120)
    assert torch.equal(state["head.weight"], network().head.weight)
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as archive:
        archive.writestr("readme.txt", "nothing")
    (tmp_path / "other.onnx").write_bytes(b"no model")
    (tmp_path / "damaged.whl").write_bytes(b"PK no wheel")
    model = onnx.load(str(MODEL))
    next(node for node in model.graph.node if node.op_type == "Relu").op_type = "Sigmoid"
    onnx.save(model, str(tmp_path / "changed.onnx"))
    for name in ("empty.whl", "other.onnx", "damaged.whl", "changed.onnx"):
        with pytest.raises(StoreError, match=name):
            marking_file.tensors(tmp_path / name)


EXPERT_CODE = Expert("label", "code", ("right", "wrong"), 320, "base/code", frozenset({"wrong"}))


def picture(text, format="DataMatrix", seeing=None, seed=1):
    return photograph(modules(format, text), QUIET[format], seeing or Seeing(3, 4), np.random.default_rng(seed))


def read_code(image, *allowed, formats=USUAL, size=320):
    expert = replace(EXPERT_CODE, input_size=size, reads=Reading(allowed=allowed or None))
    prepared = code.preprocess(image, expert)
    session = code.open_bytes("\n".join(formats).encode(), Path("usual.formats"), expert, 1)
    (finding,) = code.postprocess(session.run(prepared.pixels[None]), [prepared], expert)
    return finding


@pytest.mark.parametrize("format", USUAL)
@pytest.mark.parametrize(
    "seeing",
    [
        Seeing(2, 3, blur=0.5, contrast=0.4),
        Seeing(3, 184, contrast=0.25, noise=0.015),
        Seeing(2.5, 92, blur=0.6, around=480, ground=0.1),
        Seeing(3, 30, around=480, ground=1.0),
    ],
)
def test_codes_are_read_turned_dim_blurred_and_small(format, seeing):
    codes = read_codes(picture("SN00421177", format, seeing))
    assert [one.text for one in codes if one.is_sure] == ["SN00421177"]


def test_a_code_is_right_or_wrong_and_two_that_could_both_be_meant_are_a_doubt():
    assert read_code(picture("SN00421177"), "SN########").label == "right"
    other = read_code(picture("PN77"), "SN########")
    assert (other.label, other.read, other.doubt) == ("wrong", "PN77", "")
    assert read_code(picture("whatever")).label == "right"
    alone = Seeing(3, 4, around=150, ground=1.0)
    first, second, part = (picture(text, seeing=alone) for text in ("SN00000001", "SN00000002", "PN5"))
    assert read_code(np.hstack([first, second]), "SN########").doubt
    assert read_code(np.hstack([first, part]), "SN########").doubt == ""
    assert read_code(np.hstack([part, picture("PN4", "QRCode", alone)]), "SN########").doubt
    assert code.misfit(EXPERT_CODE) == ""
    assert code.misfit(replace(EXPERT_CODE, labels=("right",)))


def test_no_code_too_small_a_window_and_a_format_that_is_not_named_are_doubts():
    finding = read_code(np.full((200, 200, 3), 120, np.uint8), "SN*")
    assert (finding.label, finding.read, finding.score) == ("right", "", 0.0)
    assert finding.doubt
    assert read_code(picture("SN1", "QRCode"), formats=("DataMatrix",)).doubt
    large = picture("SN00421177", seeing=Seeing(2, 5, around=900, ground=0.5))
    finding = read_code(large, size=96)
    assert finding.doubt
    assert "input" in finding.doubt


def test_a_part_of_interleaved_digits_is_never_their_serial():
    bars = zxingcpp.create_barcode("2635981472", zxingcpp.barcode_format_from_str("ITF"))
    whole = np.pad(np.kron(np.array(bars.to_image(scale=2)), np.ones((2, 1), np.uint8)), 30, constant_values=255)
    torn = whole.copy()
    torn[:, 72:88] = 0
    shown, part = (np.repeat(one[..., None], 3, axis=2) for one in (whole, torn))
    (of_part,) = read_codes(part, ("ITF",))
    assert of_part.is_sure
    assert of_part.text != "2635981472"
    assert read_code(part, formats=("ITF",)).doubt
    assert read_code(part, "####*", formats=("ITF",)).doubt
    assert read_code(part, "##########", formats=("ITF",)).doubt
    assert read_code(shown, "##########", formats=("ITF",)).read == "2635981472"


def test_bars_that_were_read_once_are_not_believed():
    """Seeds of noise in which a reader sees bars now and then."""
    rng = np.random.default_rng(3)
    for _ in range(3):
        stripes = np.repeat(rng.integers(0, 2, (1, 160)), 60, 0).repeat(2, 1).repeat(2, 0) * 200
        image = np.repeat(stripes.astype(np.uint8)[..., None], 3, 2)
        assert not [one for one in read_codes(image, ("Code128",)) if one.is_sure]


def test_a_file_that_names_no_formats(tmp_path):
    for content in (b"", b"QRCod", b"\xff\xfe", b"DataMatrix\nnothing"):
        (tmp_path / "a.formats").write_bytes(content)
        with pytest.raises(StoreError, match=r"a\.formats"):
            code.read(tmp_path / "a.formats")
    for words in (["Datamatrx"], [], ["QRCode", "All"]):
        with pytest.raises(ConfigError):
            check_formats(words)


@pytest.fixture
def show(tmp_path, call):
    """Return a function that looks for a text's window in pictures of parts on which texts stand."""

    def run(*texts, text="4R7", kind="marking", state=None):
        (folder := tmp_path / "good").mkdir(exist_ok=True)
        for number, one in enumerate(texts):
            # A high picture has few windows as wide as the text.
            shown = np.roll(np.pad(part(one), ((60, 60), (0, 0), (0, 0)), "edge"), (number, -number), (0, 1))
            Image.fromarray(shown).save(folder / f"{number}.png")
        state = state or marking.read(MODEL).state
        Store(tmp_path / "s").put("b/reader", kind=kind, labels=("right", "wrong"), input_size=96, state=state)
        words = ("--images", folder, "--text", text, "--out", tmp_path / "window.png", "--store", tmp_path / "s")
        return call("show", "b/reader", *words, command=experts_command)

    return run


@pytest.mark.slow
def test_a_window_is_found_and_shown_if_the_text_is_in_all_pictures(tmp_path, show):
    assert show("4R7", "103").status == 1
    assert not (tmp_path / "window.png").exists()
    said = show("4R7", "4R7")
    assert said.status == 0
    left, top, width, height = map(float, said.out.partition("window: [")[2].partition("]")[0].split(","))
    assert (left < 0.36, left + width > 0.64) == (True, True)
    assert (top < 0.46, top + height > 0.54) == (True, True)
    assert "'4R7'" in said.out
    with Image.open(tmp_path / "window.png") as shown:
        assert shown.size == (480, 264)


def test_an_expert_that_does_not_read_is_refused_and_windows_lie_in_the_picture(show):
    said = show("103", text="103", kind="resnet18", state={"weight": torch.ones(2)})
    assert (said.status, "b/reader" in said.words) == (2, True)
    windows = grid("24C64", 90, 120)
    assert windows
    assert all(left + width <= 1.001 and top + height <= 1.001 for left, top, width, height in windows)
