"""Measure the time of training and of judging an image, on a part of the demo: least user time of one thread.

    PYTHONPATH=. OMP_NUM_THREADS=1 python apps/earned/times.py --init WEIGHTS

WEIGHTS is `weights.safetensors` of backbones/efficientnet-lite0. With the folder of another version in PYTHONPATH it
measures that version.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from PIL import Image

from apps.demo.pcb import board_style
from apps.demo.render import photograph
from coe.core import Expert
from coe.store.kinds import Reference, TrainingPlan
from coe.store.skeletons import bare_skeleton

PART, GOOD, IMAGES = "U-SOIC8-EEPROM", 20, 10


def pictures(defect: str | None, count: int) -> list[np.ndarray]:
    """Return pictures of a part on a board of one style, in lights of 0.92 to 1.08."""
    chance = np.random.default_rng(len(defect or ""))
    style = board_style(np.random.default_rng(7))
    shots = (photograph(PART, defect, chance, style=style, refdes="U7").image for _ in range(count))
    return [(shot * chance.uniform(0.92, 1.08)).clip(0, 255).astype(np.uint8) for shot in shots]


def least(work: Callable[[], Any], rounds: int) -> float:
    """Return the least user seconds of some rounds."""
    seconds = []
    for _ in range(rounds):
        begin = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        work()
        seconds.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - begin)
    return min(seconds)


def measured(name: str, size: int, init: Path, rounds: int) -> str:
    """Return the times of a kind with inputs of so many pixels."""
    kind = getattr(import_module(f"experts.{name}"), name)
    good, later = pictures(None, GOOD + IMAGES)[:GOOD], pictures(None, GOOD + IMAGES)[GOOD:]
    folder = Path(tempfile.mkdtemp())
    shown = {"good": good, **({"missing": pictures("missing", GOOD)} if name == "probe" else {})}
    for label, shots in shown.items():
        (folder / label).mkdir()
        for number, shot in enumerate(shots):
            Image.fromarray(shot).save(folder / label / f"{number:02}.png")
    labels = ("good", "missing") if name == "probe" else ("strange",)
    expert = Expert("part", name, labels, size, "earned/part", frozenset(labels) - {"good"})
    known = {field.name for field in fields(TrainingPlan)}
    more: dict[str, Any] = {"polarity": True} if name == "difference" and "polarity" in known else {}
    if name == "difference":
        middle = np.median(np.stack(good), axis=0).round().astype(np.uint8)
        more["references"] = {PART: Reference(middle, np.full(middle.shape[:2], 6, np.uint8), "earned/part")}
    else:
        more["init"] = init
    plan = TrainingPlan(folder, folder, epochs=1, batch=8, learning_rate=0.01, threads=1, **more)
    trained = kind.train(expert, plan, lambda *_: None)
    seconds = least(lambda: kind.train(expert, plan, lambda *_: None), rounds)
    expert = replace(expert, preprocessing=trained.preprocessing)
    if hasattr(trained, "limits"):
        expert = replace(expert, limits=trained.limits)
    module = bare_skeleton(kind, expert, optional=set())
    module.load_state_dict(trained.state)

    def judge() -> None:
        for picture in later:
            if name == "difference":
                prepared = kind.compare(picture, more["references"][PART], expert)
            else:
                prepared = kind.preprocess(picture, expert)
            with torch.inference_mode():
                outputs = kind.forward(module.eval(), torch.from_numpy(prepared.pixels)[None])
            kind.postprocess(outputs, [prepared], expert)

    judge()
    return f"training takes {seconds:.2f} s, an image takes {1000 * least(judge, 3 * rounds) / IMAGES:.1f} ms"


def main() -> None:
    """Print the times of each kind."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--init", type=Path, required=True, help="weights of backbones/efficientnet-lite0")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    for name, size in (("difference", 160), ("patch", 224), ("probe", 224)):
        print(f"{name}: {measured(name, size, options.init, options.rounds)}", flush=True)


if __name__ == "__main__":
    main()
