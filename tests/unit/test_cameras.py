"""docs/cameras.md: its functions, on what the camera libraries hand over, give the picture that the camera took.

The stand-ins have the names and layouts of pypylon 26.9, VmbPy 1.2 and harvesters 1.4; the emulated camera of pypylon
gave the same layouts.
"""

from types import SimpleNamespace

import numpy as np
import pages
import pytest

from coe.pictures.image_source import ImageSource

PAGE = pages.ROOT / "docs" / "cameras.md"
RED, GREEN, BLUE = (np.array(colour, np.uint8) for colour in ([250, 20, 10], [10, 240, 30], [20, 10, 230]))
GREY = np.arange(20 * 24, dtype=np.uint16).reshape(20, 24).astype(np.uint8)


@pytest.fixture(scope="module")
def page():
    """Return the names of the functions of the page."""
    names = {}
    for block in pages.blocks(PAGE):
        if block.language == "python" and block.reason is None and "def " in block.text:
            exec(compile(block.text, block.place, "exec", dont_inherit=True), names)
    return names


def mosaic(colour, pattern):
    """Return what a sensor with a pattern, as "RGGB", sees of one colour."""
    frame = np.empty((20, 24), np.uint8)
    for place, letter in enumerate(pattern):
        frame[place // 2 :: 2, place % 2 :: 2] = colour["RGB".index(letter)]
    return frame


def seen(frame, order=None):
    return ImageSource.of(frame, order).decode()


@pytest.mark.parametrize("colour", [RED, GREEN, BLUE], ids=["red", "green", "blue"])
@pytest.mark.parametrize(
    ("pixel_format", "pattern"),
    [("BayerRG8", "RGGB"), ("BayerGR8", "GRBG"), ("BayerGB8", "GBRG"), ("BayerBG8", "BGGR")],
)
def test_a_bayer_frame_has_the_colours_of_the_scene(page, pixel_format, pattern, colour):
    frame = mosaic(colour, pattern)
    grab = SimpleNamespace(GrabSucceeded=lambda: True, Array=frame)
    component = SimpleNamespace(data=frame.ravel(), width=24, height=20, data_format=pixel_format)
    buffer = SimpleNamespace(payload=SimpleNamespace(components=[component]))
    for image in (page["frame_of_pylon"](grab, pixel_format), page["frame_of_harvesters"](buffer)):
        np.testing.assert_array_equal(seen(image), np.broadcast_to(colour, (20, 24, 3)))


def test_unknown_bayer_formats_and_frames_that_are_not_whole_are_errors(page):
    component = SimpleNamespace(data=GREY.ravel(), width=24, height=20, data_format="BayerRG12")
    with pytest.raises(KeyError):
        page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: True, Array=GREY), "BayerRG12")
    with pytest.raises(KeyError):
        page["frame_of_harvesters"](SimpleNamespace(payload=SimpleNamespace(components=[component])))
    with pytest.raises(OSError, match="incomplete frame"):
        page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: False, ErrorDescription="lost packets"), "Mono8")
    with pytest.raises(OSError, match="incomplete frame"):
        page["frame_of_vmbpy"](SimpleNamespace(get_status=lambda: -1), 0)
    with pytest.raises(OSError, match="no frame"):
        page["watch"](SimpleNamespace(read=lambda: (False, None)), None, 1)


def test_a_grey_frame_stays_as_it_is_also_of_12_bits(page):
    component = SimpleNamespace(data=GREY.ravel(), width=24, height=20, data_format="Mono8")
    vimba = SimpleNamespace(get_status=lambda: 0, as_numpy_ndarray=lambda: GREY[..., None])
    for image in (
        page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: True, Array=GREY), "Mono8"),
        page["frame_of_vmbpy"](vimba, 0),
        page["frame_of_harvesters"](SimpleNamespace(payload=SimpleNamespace(components=[component]))),
    ):
        np.testing.assert_array_equal(seen(image), np.repeat(GREY[..., None], 3, 2))
    wide = (GREY.astype(np.uint16) << 4) + 9
    frame = page["frame_of_pylon"](SimpleNamespace(GrabSucceeded=lambda: True, Array=wide), "Mono12")
    np.testing.assert_array_equal(ImageSource.of(frame, bits=12).decode(), np.repeat(GREY[..., None], 3, 2))
