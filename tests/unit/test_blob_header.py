"""A blob's header that is well-formed and claims what cannot be is refused before any view is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from coe.errors import StoreError
from coe.prepare.fold import Folded
from coe.prepare.layout import lay_out
from coe.store.blob_format import PAGE, data_start, decode
from coe.store.blob_writing import encode

STATE = {"conv.weight": torch.ones(4, 3, 3, 3), "fc.weight": torch.ones(2, 300)}
HEADER = encode(lay_out(Folded(STATE, ()), "q8", kind="k", labels=2).header)
LENGTH = 8


def changed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """Return the bytes of the header after a change of what it states."""
    table = json.loads(HEADER[LENGTH:])
    key = next(key for key, text in table["__metadata__"].items() if text.startswith("{"))
    stated = json.loads(table["__metadata__"][key])
    change(stated)
    table["__metadata__"][key] = json.dumps(stated)
    text = json.dumps(table, separators=(",", ":")).encode()
    length = -(-(LENGTH + len(text)) // PAGE) * PAGE - LENGTH
    return length.to_bytes(LENGTH, "little") + text.ljust(length)


CLAIMS = {
    "no labels": (lambda header: header.pop("labels"), "a header that makes no sense"),
    "scales beyond the end": (
        lambda header: header["quantised"].update(scales=header["data_bytes"]),
        "its quantised part ends beyond the data",
    ),
    "more blocks than bytes": (
        lambda header: header["quantised"].update(blocks=1 << 40),
        "its quantised part ends beyond the data",
    ),
    "no quantised part": (lambda header: header.pop("quantised"), "'conv.weight' lies outside the quantised part"),
    "a tensor behind the quantised part": (
        lambda header: header["tensors"][0].update(offset=1 << 30),
        "'conv.weight' lies outside the quantised part",
    ),
    "a tensor between blocks": (
        lambda header: header["tensors"][0].update(offset=64),
        "'conv.weight' does not begin a block",
    ),
    "channels of two axes": (
        lambda header: header["tensors"][1].update(channels_last=True),
        "'fc.weight' has 2 axes and cannot be channels-last",
    ),
    "one checksum too many": (lambda header: header["checksums"].append("0"), "2 checksums for"),
}


def test_an_honest_header_is_read() -> None:
    assert [tensor.name for tensor in decode(changed(lambda header: None), "x").tensors] == list(STATE)


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_cannot_be_is_refused(claim: str) -> None:
    change, sentence = CLAIMS[claim]
    with pytest.raises(StoreError, match=sentence):
        decode(changed(change), "x")


def test_a_header_that_is_cut_off_is_refused() -> None:
    raw = changed(lambda header: header.update(folded=[[f"c{index}", f"n{index}"] for index in range(400)]))
    assert data_start(raw[:PAGE], "x") == len(raw) > PAGE
    with pytest.raises(StoreError, match="x is truncated"):
        decode(raw[:PAGE], "x")
