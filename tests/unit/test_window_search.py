"""The window of a marking, found on pictures of good parts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from marked_parts import model_file, part
from PIL import Image
from tiny_line import Call

from coe.cli import experts_command
from coe.learn.window_search import grid
from coe.store.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from experts.marking import marking

    root = tmp_path_factory.mktemp("readers")
    state = marking.read(model_file()).state
    Store(root).put("readers/marking", kind="marking", labels=("right", "wrong"), input_size=96, state=state)
    return root


def pictures(folder: Path, *texts: str) -> Path:
    folder.mkdir()
    for number, text in enumerate(texts):
        # A high picture has few windows as wide as the text.
        shown = np.roll(np.pad(part(text), ((60, 60), (0, 0), (0, 0)), "edge"), (number, -number), (0, 1))
        Image.fromarray(shown).save(folder / f"{number}.png")
    return folder


def test_a_window_is_found_and_shown(tmp_path: Path, store: Path, call: Call) -> None:
    images, sheet = pictures(tmp_path / "good", "4R7", "4R7"), tmp_path / "window.png"
    said = call(
        *("show", "readers/marking", "--images", images, "--text", "4R7", "--out", sheet, "--store", store),
        command=experts_command,
    )
    assert said.status == 0
    left, top, width, height = map(float, said.out.partition("window: [")[2].partition("]")[0].split(","))
    assert (left < 0.36, left + width > 0.64) == (True, True)
    assert (top < 0.46, top + height > 0.54) == (True, True)
    assert "'4R7'" in said.out
    with Image.open(sheet) as shown:
        assert shown.size == (480, 264)


@pytest.mark.slow
def test_a_text_that_is_not_in_all_pictures_has_no_window(tmp_path: Path, store: Path, call: Call) -> None:
    images, sheet = pictures(tmp_path / "good", "4R7", "103"), tmp_path / "window.png"
    said = call(
        *("show", "readers/marking", "--images", images, "--text", "4R7", "--out", sheet, "--store", store),
        command=experts_command,
    )
    assert said.status == 1
    assert not sheet.exists()


def test_windows_lie_in_the_picture() -> None:
    windows = grid("24C64", 90, 120)
    assert windows
    assert all(left + width <= 1.001 and top + height <= 1.001 for left, top, width, height in windows)


def test_an_expert_that_does_not_read_is_refused(tmp_path: Path, call: Call) -> None:
    state = {"weight": torch.ones(2)}
    Store(tmp_path / "s").put("tiny/body-a", kind="resnet18", labels=("ok", "bad"), input_size=64, state=state)
    images = pictures(tmp_path / "good", "103")
    said = call(
        *("show", "tiny/body-a", "--images", images, "--text", "103", "--out", tmp_path / "w.png"),
        *("--store", tmp_path / "s"),
        command=experts_command,
    )
    assert said.status == 2
    assert "tiny/body-a" in said.words
