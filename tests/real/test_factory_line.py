"""The line that integrators copy: what it passes, coe-inspect passes, and nothing else."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from apps.factory_line import line
from coe.board import rules
from coe.cli import inspect as inspect_cli
from coe.store.store import Store

ALWAYS_OK = """
board: easy
experts:
  look: {kind: resnet18, labels: [ok, fine], input: 48}
components:
  C: {inspect: look, then: {ok: OK, fine: OK}}
  N: {inspect: look, then: {ok: NG, fine: NG}}
  V: {inspect: look, then: {ok: REVIEW, fine: REVIEW}}
"""

Run = Callable[..., tuple[int, int, str]]


@pytest.fixture(scope="module")
def easy(tiny, tmp_path_factory):
    """A board whose components are always OK, NG and REVIEW, and its store."""
    folder = tmp_path_factory.mktemp("easy")
    (folder / "easy.yaml").write_text(ALWAYS_OK, encoding="utf-8")
    from tiny_line import fill

    fill(Store(folder / "store"), rules.load(folder / "easy.yaml"))
    return folder / "easy.yaml", folder / "store"


@pytest.fixture
def both(easy, tmp_path, call):
    """Run the line and coe-inspect over the same folder; give both statuses, and what the line said."""

    def run(*names):
        for name in names:
            path = tmp_path / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), np.full((60, 60, 3), 90, np.uint8))
        board, store = easy
        given = ("--board", board, "--images", tmp_path / "images", "--store", store, "--memory", "100MB")
        said = call(*given, "--rate", "1000", command=line)
        assert "Traceback" not in said.err
        inspected = call(*given, "--out", tmp_path / "out", command=inspect_cli)
        return said.status, inspected.status, said.out

    return run


@pytest.mark.parametrize(
    ("names", "status", "boards"),
    [
        (["SN1/R1__C.png", "SN1/R2__C.png", "SN2/R1__C.png"], 0, {"board SN1: OK", "board SN2: OK"}),
        (["SN1/R1__C.png", "SN1/R2__N.png", "SN2/R1__C.png"], 1, {"board SN1: NG (R2)", "board SN2: OK"}),
        (["SN1/R1__C.png", "SN1/R2__XX.png", "SN2/R1__C.png"], 3, {"board SN1: REVIEW (R2)", "board SN2: OK"}),
        (["SN1/R1__C.png", "N/R2__C.png"], 3, {"board SN1: OK", "pictures of no board: REVIEW (N/R2__C.png)"}),
        (["x: OK, y/R1__N.png"], 1, {"board x: OK, y: NG (R1)"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_board_passes_only_if_all_of_it_was_judged_ok(both, names, status, boards):
    ours, theirs, said = both(*names)
    assert (ours, theirs) == (status, status)
    for board in boards:
        assert f"{board}," in said


def test_a_picture_that_cannot_be_decoded_is_no_pass(both, tmp_path):
    (tmp_path / "images" / "SN1").mkdir(parents=True)
    (tmp_path / "images" / "SN1" / "R2__C.png").write_bytes(b"no picture")
    ours, theirs, said = both("SN1/R1__C.png")
    assert (ours, theirs) == (3, 3)
    assert "board SN1: REVIEW (R2), 2 images, 1 of them not inspected" in said
