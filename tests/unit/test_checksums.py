"""A SHA-256 beside a picture: what was damaged on its way is never judged, whatever its decoder says."""

import hashlib

import cv2
import numpy as np
import pytest

from coe.cli import inspect
from coe.core import Expert, FailureKind
from coe.errors import ConfigError, DamagedImage
from coe.learn import labelled
from coe.pictures import finding
from coe.pictures.decoding import decode

NOISE = cv2.GaussianBlur(np.random.default_rng(2).integers(0, 256, (240, 320, 3), np.uint8), (3, 3), 0)
EXPERT = Expert("e", "resnet18", ("ok", "bad"), 32, "b/e")


def damaged_unseen(whole):
    """A JPEG in which a bit was flipped, and of which no decoder knows it."""
    start = whole.index(b"\xff\xda") + 14
    for at in range(start, len(whole) - 66, 97):
        damaged = whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
        try:
            if (decode(damaged) != decode(whole)).any():
                return damaged
        except DamagedImage:
            continue
    raise AssertionError("each damage was found")


@pytest.fixture
def folder(tmp_path):
    """A table of two pictures, of which one was damaged after its checksum was taken."""
    whole = cv2.imencode(".jpg", NOISE)[1].tobytes()
    (tmp_path / "a.jpg").write_bytes(whole)
    (tmp_path / "b.jpg").write_bytes(damaged_unseen(whole))
    checksum = hashlib.sha256(whole).hexdigest()
    rows = ["path,component,sha256", f"a.jpg,A,{checksum}", f"b.jpg,A,{checksum.upper()}"]
    (tmp_path / "images.csv").write_text("\n".join(rows))
    return tmp_path


def test_a_table_states_checksums(folder):
    decode(folder / "b.jpg")  # nothing else would find it
    (whole, damaged), _ = finding.find(folder, ["A"])
    assert decode(whole.file).shape == (240, 320, 3)
    with pytest.raises(DamagedImage, match="another SHA-256"):
        decode(damaged.file)


def test_the_command_judges_only_what_fits(folder, tiny, tmp_path, call):
    given = ["--board", tiny[0], "--store", tiny[1], "--images", folder, "--memory", "200MB", "--profile", "none"]
    assert call(*given, "--out", tmp_path / "out", command=inspect).status == 3
    first, second = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert '"b.jpg"' in second
    assert "another SHA-256" in second
    assert "SHA-256" not in first


@pytest.mark.parametrize("stated", ["12ab", "g" * 64, "a" * 63, "sha256:" + "a" * 64])
def test_what_is_no_checksum_is_an_error_of_its_line(stated, folder):
    (folder / "images.csv").write_text(f"path,component,sha256\na.jpg,A,{stated}\nb.jpg,A,\n")
    (wrong, unsaid), _ = finding.find(folder, ["A"])
    assert wrong.failure.kind is FailureKind.IMAGE
    assert "images.csv:2: " in wrong.failure.reason
    assert unsaid.failure is None


def test_verified_pictures_have_checksums_too(folder):
    checksum = hashlib.sha256((folder / "a.jpg").read_bytes()).hexdigest()
    (folder / "images.csv").write_text(f"path,expert,label,sha256\na.jpg,e,ok,{checksum}\nb.jpg,e,bad,{checksum}\n")
    whole, damaged = labelled.find(folder, {"e": EXPERT})
    decode(whole.file)
    with pytest.raises(DamagedImage):
        decode(damaged.file)
    (folder / "images.csv").write_text("path,expert,label,sha256\na.jpg,e,ok,12\n")
    with pytest.raises(ConfigError, match=r"images\.csv:2: '12' is not a SHA-256"):
        labelled.find(folder, {"e": EXPERT})
