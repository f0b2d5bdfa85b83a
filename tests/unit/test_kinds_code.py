"""The kind `code`, and how codes are read: never wrong, and in doubt where two differ."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zxingcpp
from seen_codes import QUIET, Seeing, modules, photograph

from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.helpers.allowed_text import Reading
from coe.pictures.codes import USUAL, check_formats, read_codes
from experts.code import code

EXPERT = Expert("label", "code", ("right", "wrong"), 320, "base/code", frozenset({"wrong"}))


def picture(text, format="DataMatrix", seeing=None, seed=1):
    return photograph(modules(format, text), QUIET[format], seeing or Seeing(3, 4), np.random.default_rng(seed))


def read(image, *allowed, formats=USUAL, size=320):
    expert = replace(EXPERT, input_size=size, reads=Reading(allowed=allowed or None))
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
    assert read(picture("SN00421177"), "SN########").label == "right"
    other = read(picture("PN77"), "SN########")
    assert (other.label, other.read, other.doubt) == ("wrong", "PN77", "")
    assert read(picture("whatever")).label == "right"
    alone = Seeing(3, 4, around=150, ground=1.0)
    first, second, part = (picture(text, seeing=alone) for text in ("SN00000001", "SN00000002", "PN5"))
    assert read(np.hstack([first, second]), "SN########").doubt
    assert read(np.hstack([first, part]), "SN########").doubt == ""
    assert read(np.hstack([part, picture("PN4", "QRCode", alone)]), "SN########").doubt
    assert code.misfit(EXPERT) == ""
    assert code.misfit(replace(EXPERT, labels=("right",)))


def test_no_code_too_small_a_window_and_a_format_that_is_not_named_are_doubts():
    finding = read(np.full((200, 200, 3), 120, np.uint8), "SN*")
    assert (finding.label, finding.read, finding.score) == ("right", "", 0.0)
    assert finding.doubt
    assert read(picture("SN1", "QRCode"), formats=("DataMatrix",)).doubt
    large = picture("SN00421177", seeing=Seeing(2, 5, around=900, ground=0.5))
    finding = read(large, size=96)
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
    assert read(part, formats=("ITF",)).doubt
    assert read(part, "####*", formats=("ITF",)).doubt
    assert read(part, "##########", formats=("ITF",)).doubt
    assert read(shown, "##########", formats=("ITF",)).read == "2635981472"


def test_bars_that_were_read_once_are_not_believed():
    """Seeds of noise in which a reader sees bars now and then."""
    rng = np.random.default_rng(3)
    for _ in range(3):
        stripes = np.repeat(rng.integers(0, 2, (1, 160)), 60, 0).repeat(2, 1).repeat(2, 0) * 200
        image = np.repeat(stripes.astype(np.uint8)[..., None], 3, 2)
        assert not [one for one in read_codes(image, ("Code128",)) if one.is_sure]


@pytest.mark.parametrize("content", [b"", b"QRCod", b"\xff\xfe", b"DataMatrix\nnothing"])
def test_a_file_that_names_no_formats(tmp_path, content):
    path = tmp_path / "a.formats"
    path.write_bytes(content)
    with pytest.raises(StoreError) as refusal:
        code.read(path)
    assert "a.formats" in str(refusal.value)
    for words in (["Datamatrx"], [], ["QRCode", "All"]):
        with pytest.raises(ConfigError):
            check_formats(words)
