"""The window of a marking, found on pictures of good parts."""

import numpy as np
import pytest
import torch
from marked_parts import model_file, part
from PIL import Image

from coe.cli import experts_command
from coe.learn.window_search import grid
from coe.store.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    from experts.marking import marking

    root = tmp_path_factory.mktemp("readers")
    state = marking.read(model_file()).state
    Store(root).put("readers/marking", kind="marking", labels=("right", "wrong"), input_size=96, state=state)
    return root


def pictures(folder, *texts):
    folder.mkdir()
    for number, text in enumerate(texts):
        # A high picture has few windows as wide as the text.
        shown = np.roll(np.pad(part(text), ((60, 60), (0, 0), (0, 0)), "edge"), (number, -number), (0, 1))
        Image.fromarray(shown).save(folder / f"{number}.png")
    return folder


@pytest.fixture
def show(tmp_path, store, call):
    """Look for a text in pictures of texts, and draw what is found to `window.png`."""

    def run(*texts, text="4R7", expert="readers/marking", store=store):
        words = ("--images", pictures(tmp_path / "good", *texts), "--text", text, "--out", tmp_path / "window.png")
        return call("show", expert, *words, "--store", store, command=experts_command)

    return run


@pytest.mark.slow
def test_a_window_is_found_and_shown(tmp_path, show):
    said = show("4R7", "4R7")
    assert said.status == 0
    left, top, width, height = map(float, said.out.partition("window: [")[2].partition("]")[0].split(","))
    assert (left < 0.36, left + width > 0.64) == (True, True)
    assert (top < 0.46, top + height > 0.54) == (True, True)
    assert "'4R7'" in said.out
    with Image.open(tmp_path / "window.png") as shown:
        assert shown.size == (480, 264)


@pytest.mark.slow
def test_a_text_that_is_not_in_all_pictures_has_no_window(tmp_path, show):
    assert show("4R7", "103").status == 1
    assert not (tmp_path / "window.png").exists()


def test_an_expert_that_does_not_read_is_refused(tmp_path, show):
    state = {"weight": torch.ones(2)}
    Store(tmp_path / "s").put("tiny/body-a", kind="resnet18", labels=("ok", "bad"), input_size=64, state=state)
    said = show("103", text="103", expert="tiny/body-a", store=tmp_path / "s")
    assert (said.status, "tiny/body-a" in said.words) == (2, True)


def test_windows_lie_in_the_picture():
    windows = grid("24C64", 90, 120)
    assert windows
    assert all(left + width <= 1.001 and top + height <= 1.001 for left, top, width, height in windows)
