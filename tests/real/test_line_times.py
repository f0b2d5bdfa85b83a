"""What counts from submission, and what is decoded at once: lines whose device calculates nothing."""

import math
import threading

import cv2
import numpy as np
import pytest
from quick_line import LIGHT, QuickDevice, quick

from coe import config
from coe.inspector.line_devices import decoding
from coe.lab.rows import Latencies
from coe.pictures.image_source import ImageSource


@pytest.fixture
def slow_decoding(monkeypatch):
    """Let `before` be called with each image before it is decoded."""

    def install(before):
        decode = ImageSource.decode

        def decoded(source):
            before(source)
            return decode(source)

        monkeypatch.setattr(ImageSource, "decode", decoded)

    return install


@pytest.mark.parametrize(
    ("image", "within_s", "late"), [(LIGHT, None, False), (LIGHT, 1.0, True), (b"bad", 1.0, True), (b"bad", 9.0, False)]
)
def test_latency_and_lateness_count_from_submit(tiny, slow_decoding, image, within_s, late):
    latencies = Latencies()
    with quick(tiny, watchers=[latencies]) as line:
        clock = [10.0]
        line._engine.now = lambda: clock[0]
        # Decoding takes two seconds, and nothing else takes any time.
        slow_decoding(lambda source: clock.__setitem__(0, 12.0))
        result = line.submit(image, "C", within_s=within_s).result(60)
    assert (result.latency_s, result.late) == (2.0, late)
    assert result.request.submitted_s == 10.0
    assert result.request.due_s == (math.inf if within_s is None else 10.0 + within_s)
    assert latencies.quantile_s(0.99) == 2.0


def pictures(folder, sides):
    paths = [folder / f"{number}.jpg" for number in range(len(sides))]
    for path, side in zip(paths, sides, strict=True):
        cv2.imwrite(str(path), np.full((side, side, 3), 200, np.uint8))
    return paths


def test_what_is_decoded_at_once_stays_within_its_budget_later_stages_too(tiny, monkeypatch, tmp_path):
    # Of 200 MB images have 25, a quarter of it for decoding: two of 600 pixels a side fit, of 900 or 2000 one alone.
    limit = decoding(200_000_000).limit_bytes
    assert limit == 6_250_000
    lock, now, seen = threading.Lock(), [], []
    decode = ImageSource.decode

    def counted(source):
        needed = 7 * {0: 600, 1: 900, 2: 2000}[int(source.image.path.stem) % 3] ** 2
        with lock:
            now.append(needed)
            seen.append(list(now))
        try:
            return decode(source)
        finally:
            with lock:
                now.remove(needed)

    monkeypatch.setattr(ImageSource, "decode", counted)
    # No input is made before its expert's turn.
    monkeypatch.setattr(config, "LIKELY", 2.0)
    paths = pictures(tmp_path, [600, 900, 2000] * 6)
    with quick(tiny, memory="200MB") as line:
        results = [future.result(60) for future in [line.submit(path, "A") for path in paths]]
    assert {result.error for result in results} == {None}
    # Component A has two stages; each picture is decoded for both.
    assert len(seen) == 2 * len(paths)
    assert all(len(sizes) == 1 or sum(sizes) <= limit for sizes in seen)


def test_small_images_do_not_pass_a_large_one_that_waits(tiny):
    device = QuickDevice()
    device.gate.clear()
    order = []
    large = np.full((400, 400, 3), 200, np.uint8)
    with quick(tiny, device, inbox_bytes=100_000) as line:
        first = line.submit(LIGHT, "C", name="first")
        threads = []
        for name, image in (("large", large), ("small", LIGHT)):
            threads.append(threading.Thread(target=lambda name=name, image=image: _note(line, name, image, order)))
            threads[-1].start()
            while len(line._admission._waiting) < len(threads):
                assert threads[-1].is_alive()
        device.gate.set()
        for thread in threads:
            thread.join(60)
        assert first.result(60).error is None
    assert order == ["large", "small"]


def _note(line, name, image, order):
    line.submit(image, "C", name=name).add_done_callback(lambda future: order.append(future.result().request.image))
