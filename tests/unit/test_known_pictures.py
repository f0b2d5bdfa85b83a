"""Pictures that are all known are taken expert by expert; those that come one by one, or are due, as they come."""

import cv2
import numpy as np
import pytest
from tiny_line import TINY, fill

from coe import Inspector, Picture
from coe.board import rules
from coe.inspector.experiment import Experiment
from coe.scheduler.events import Arrived, EventBatch
from coe.store.store import Store

COMPONENTS = "CABBACAAB"


@pytest.fixture
def board(tmp_path):
    path = tmp_path / "tiny.yaml"
    path.write_text(TINY, encoding="utf-8")
    fill(Store(tmp_path / "store"), rules.load(path))
    cv2.imwrite(str(tmp_path / "part.png"), np.full((60, 60, 3), 90, np.uint8))
    return path


def arrived(board, pictures):
    """Return the names of pictures in the order in which the decisions heard of them, one under way at a time."""
    options = {"store": board.parent / "store", "memory": "600MB", "profile": "none", "inbox": 1}
    with Inspector(board, experiment=Experiment(keep_trace=True), **options) as line:
        results = list(line.stream(pictures))
    events = [event for _, event, _ in line.trace]
    flat = [each for event in events for each in (event.events if isinstance(event, EventBatch) else (event,))]
    names = [event.request.image for event in flat if isinstance(event, Arrived)]
    assert sorted(names) == sorted(result.request.image for result in results)
    return names


def pictures_of(board, components=COMPONENTS, within_s=None):
    path = board.parent / "part.png"
    return [Picture(path, one, name=f"{one}{n}", within_s=within_s) for n, one in enumerate(components)]


def test_a_list_is_taken_expert_by_expert_and_what_comes_one_by_one_or_is_due_as_it_comes(board):
    assert arrived(board, pictures_of(board)) == ["A1", "A4", "A6", "A7", "B2", "B3", "B8", "C0", "C5"]
    assert arrived(board, iter(pictures_of(board))) == [f"{one}{n}" for n, one in enumerate(COMPONENTS)]
    pictures = [*pictures_of(board), *pictures_of(board, "A", within_s=60)]
    assert arrived(board, pictures) == [picture.name for picture in pictures]


def test_a_component_that_the_board_lacks_is_an_error_of_its_picture_alone(board):
    options = {"store": board.parent / "store", "memory": "600MB", "profile": "none"}
    with Inspector(board, **options) as line:
        results = {result.request.image: result for result in line.stream(pictures_of(board, "BXA"))}
    assert {name: result.error is None for name, result in results.items()} == {"B0": True, "X1": False, "A2": True}
