"""Many threads use one line at once while it fails and closes: each image gets one reply, or its caller is told."""

import asyncio
import random
import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field

import cv2
import numpy as np
import pytest

from coe import Inspector
from coe.core import Result
from coe.errors import DeviceFull, LineClosed, LineFull, StoreError
from coe.inspector import line_devices
from coe.runtime.cpu import CpuDevice
from coe.testing import Experiment

THREADS, SUBMITS, LINES = 8, 500, 5


class Faulty(CpuDevice):
    """A CPU whose loads and batches fail now and then, some with errors that nobody should raise."""

    chance = random.Random(0)

    def load(self, pool, expert, *, keep_copy=False, body=False):
        if self.chance.random() < 0.02:
            raise self.chance.choice([StoreError("the disk says no"), DeviceFull("no room"), ValueError("a bug")])
        super().load(pool, expert, keep_copy=keep_copy)

    def run(self, executor, pool, expert, images):
        if self.chance.random() < 0.02:
            raise self.chance.choice([RuntimeError("a kernel failed"), MemoryError(), SystemExit(3)])
        return super().run(executor, pool, expert, images)


def faulty_devices(*arguments, **options):
    return line_devices.make(*arguments, **options, makers={"cpu": Faulty})


@dataclass
class Told:
    accepted: list[Future[Result]] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    called_off: int = 0


@pytest.fixture(scope="module")
def costs(tiny):
    board, store = tiny
    with Inspector(board, store=store, memory="75MB", profile=None) as line:
        return line.costs


def images_of(chance, folder):
    pixels = np.frombuffer(chance.randbytes(48 * 40 * 3), np.uint8).reshape(48, 40, 3)
    path = folder / "picture.png"
    cv2.imwrite(str(path), pixels)
    whole = path.read_bytes()
    return [pixels, pixels[..., 0], whole, path, whole[: len(whole) // 2], b"", folder / "is-not-there.png"]


@pytest.mark.parametrize("number", range(LINES))
def test_threads_that_submit_to_a_line_that_fails_and_closes_hear_of_every_image_once(
    tiny, costs, tmp_path, chance, number
):
    chance.seed(f"{chance.random()} {number}")
    Faulty.chance = random.Random(chance.random())
    board, store = tiny
    images = images_of(chance, tmp_path)
    before = threading.active_count()
    # Little enough that experts are loaded again and again, or enough for all.
    executors, memory = chance.choice([("cpu=1", "90MB"), ("cpu=1", "400MB"), ("cpu=2", "200MB"), ("cpu=2", "400MB")])
    line = Inspector(
        board,
        store=store,
        memory=memory,
        executors=executors,
        inbox=chance.choice([1, 4, 64]),
        on_full=chance.choice(["block", "raise"]),
        experiment=Experiment(costs=costs, make_devices=faulty_devices),
        profile=None,
    )
    told = [Told() for _ in range(THREADS)]
    submitters = [
        threading.Thread(target=use, args=(line, told[index], images, chance.random(), index % 4 == 3))
        for index in range(THREADS)
    ]
    # Half of the lines close while images come; the others when all have come.
    end = threading.Timer(chance.uniform(0.5, 8.0), chance.choice([line.close, line.stop]))
    for thread in submitters:
        thread.start()
    if number % 2:
        end.start()
    for thread in submitters:
        thread.join(600)
        assert not thread.is_alive(), "a caller waits for ever"
    if number % 2:
        end.join(600)
        assert not end.is_alive(), "close waits for ever"
    line.close()
    results = [future.result(timeout=60) for one in told for future in one.accepted]
    assert all((result.verdict is None) == (result.error is not None) for result in results)
    ids = [result.request.id for result in results]
    assert len(ids) == len(set(ids)), "an image was answered twice"
    heard = sum(len(one.accepted) + one.refused.total() + one.called_off for one in told)
    assert heard == THREADS * SUBMITS
    with pytest.raises(LineClosed):
        line.submit(images[0], "A")
    assert threading.active_count() == before, f"threads are left: {threading.enumerate()}"


def use(line, told, images, seed, from_asyncio):
    """Submit, from a thread or from a loop of asyncio that calls some of its waits off again."""
    chance = random.Random(seed)
    if from_asyncio:
        asyncio.run(_await_all(line, told, images, chance))
        return
    for number in range(SUBMITS):
        try:
            told.accepted.append(line.submit(chance.choice(images), chance.choice("AABC?"), serial=f"S{number // 6}"))
        except (LineClosed, LineFull) as error:
            told.refused[type(error).__name__] += 1


async def _await_all(line, told, images, chance):
    async def one():
        try:
            result = await asyncio.wait_for(
                line.inspect(chance.choice(images), chance.choice("AABC?")), chance.choice([0.001, 0.05, 600.0])
            )
        except TimeoutError:
            told.called_off += 1
        except (LineClosed, LineFull) as error:
            told.refused[type(error).__name__] += 1
        else:
            answered = Future()
            answered.set_result(result)
            told.accepted.append(answered)

    for start in range(0, SUBMITS, 20):
        await asyncio.gather(*(one() for _ in range(start, min(start + 20, SUBMITS))))
