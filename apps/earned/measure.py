"""Measure what an OK is worth, on parts of the demo and on photographs.

    python -m apps.earned.measure --data ../shared/data --draws 3

prints one table. Parts of the demo are drawn with crops that are shifted by some pixels, tilted and in two lights, as
on a line. No expert judges a picture that it was trained on. With `--kind efficientnet-lite0`, or a ResNet, networks of
that kind are tuned as `coe-experts choose` tunes them. They judge twice: with their distances to good parts, and by
their heads alone. From photographs they learn other parts as bad ones, but no defect.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch
from PIL import Image

from apps.demo.pcb import board_style
from apps.demo.render import COMPONENTS, photograph
from coe.config import CHOSEN_EPOCHS
from coe.core import NOTHING, Expert, Finding, Shown
from coe.pictures.decoding import decode
from coe.store.blob_format import optional_of
from coe.store.kinds import ModuleKind, Trained, TrainingPlan, resolve
from coe.store.skeletons import bare_skeleton

POLAR = ("LED-0805-GRN", "D-SMA-SS14", "CT-A-10U", "U-SOIC8-EEPROM")
PARTS = ("R0402-10K", "C0603-100N", *POLAR)
SIZE = 128
Pictures = Mapping[str, Sequence[np.ndarray]]


@dataclass
class Counted:
    """Pictures of one row of the table: how many were OK, REVIEW and NG."""

    verdicts: Counter[str]

    def share(self, *verdicts: str) -> str:
        """Say the share of some verdicts."""
        all_of_them = sum(self.verdicts.values())
        some = sum(self.verdicts[one] for one in verdicts)
        return f"{some / max(1, all_of_them):.1%} of {all_of_them}"


def drawn(component: str, seed: int) -> Pictures:
    """Return pictures of a demo part by what they show, (H, W, 3) uint8."""
    chance = np.random.default_rng(seed)
    style = board_style(chance)

    def shot(name: str, defect: str | None) -> np.ndarray:
        image = photograph(name, defect, chance, style=style).image
        side = COMPONENTS[component].size
        image = cv2.resize(image, (side, side)) if name != component else image
        turn = cv2.getRotationMatrix2D((side / 2, side / 2), float(chance.uniform(-6, 6)), 1)
        turn[:, 2] += chance.uniform(-8, 8, 2)
        moved = cv2.warpAffine(image, turn, (side, side), borderMode=cv2.BORDER_REFLECT)
        return (moved * chance.uniform(0.8, 1.2)).clip(0, 255).astype(np.uint8)

    others = [name for name in COMPONENTS if name[0] != component[0]]
    return {
        "good": [shot(component, None) for _ in range(60)],
        "missing": [shot(component, "missing") for _ in range(40)],
        "other": [shot(str(chance.choice(others)), None) for _ in range(20)],
        # In their places: a board is never turned with its part.
        "turned": [shot(component, "reversed") for _ in range(20)] if component in POLAR else [],
    }


def photographs(data: Path, seed: int) -> dict[str, Pictures]:
    """Return the photographs of sets at `data` by type, and by good and bad."""
    found: dict[str, Pictures] = {}
    for name, folder, good in (("screw", "screws", "good"), ("hazelnut", "hazelnut", "good")):
        rows = [row for row in csv.DictReader((data / folder / "labels.csv").open()) if row["type"] == name]
        np.random.default_rng(seed).shuffle(rows)
        of: dict[str, list[np.ndarray]] = defaultdict(list)
        for row in rows:
            label = "good" if row["class"] == good else "bad"
            if len(of[label]) < 70:
                of[label].append(decode(data / folder / row["file"]))
        found[name] = of
    for name in ("alien", "cookie"):
        rows = [r for r in csv.DictReader((data / "lookout-objects/labels.csv").open()) if r["object_type"] == name]
        np.random.default_rng(seed).shuffle(rows)
        of = defaultdict(list)
        for row in rows:
            label = "good" if row["class"] == "normal" else "bad"
            of[label].append(decode(data / "lookout-objects" / row["file"]))
        found[name] = of
    return found


def learned(name: str, taught: Pictures, init: Path | None, *, epochs: int = 1) -> tuple[ModuleKind, Expert, Trained]:
    """Train a kind on pictures by label."""
    kind = resolve(name)
    assert isinstance(kind, ModuleKind)
    work = Path(tempfile.mkdtemp())
    for label, pictures in taught.items():
        (work / label).mkdir()
        for number, picture in enumerate(pictures):
            Image.fromarray(picture).save(work / label / f"{number:03}.png", compress_level=1)
    bad = tuple(label for label in taught if label != "good")
    labels = ("strange",) if kind.good_only else ("good", *bad)
    expert = Expert("part", name, labels, SIZE, "earned/part", reject=frozenset(labels) - {"good"})
    plan = TrainingPlan(work, work, epochs, 16, 1e-3, init=init, threads=1, held_out=0.0)
    plan = replace(plan, freeze=kind.early_layers if init else ())
    trained = kind.train(expert, plan, lambda *_: None)
    shutil.rmtree(work)
    return kind, replace(expert, preprocessing=trained.preprocessing, alternates=trained.looks), trained


def judged(kind: ModuleKind, expert: Expert, trained: Trained, pictures: Iterable[np.ndarray]) -> Counted:
    """Return the verdicts of an expert whose label "good", or "none", is OK."""
    module = bare_skeleton(kind, expert, optional=optional_of(trained.state))
    module.load_state_dict(trained.state)
    verdicts: Counter[str] = Counter()
    for picture in pictures:
        prepared = kind.preprocess(picture, expert)
        with torch.inference_mode():
            outputs = kind.forward(module.eval(), torch.from_numpy(prepared.pixels)[None])
        (finding,) = kind.postprocess(outputs, [prepared], expert)
        verdicts[_verdict(finding)] += 1
    return Counted(verdicts)


def _verdict(finding: Finding) -> str:
    if finding.label not in (NOTHING, "good"):
        return "NG"
    return "REVIEW" if finding.doubt else "OK"


def tuned(name: str, data: Path, init: Path | None, epochs: int, draw: int) -> dict[str, Counter[str]]:
    """Return the verdicts of tuned networks by row, with their distances and by their heads alone."""
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    parts: dict[str, tuple[Pictures, Pictures]] = {}
    for part in PARTS:
        of = drawn(part, 100 * draw + len(part))
        judges = {"good": of["good"][40:], "missing": of["missing"][30:], "untaught: another part": of["other"]}
        turned = {"turned, with polarity": of["turned"]} if part in POLAR else {}
        parts[part] = {"good": of["good"][:40], "missing": of["missing"][:30]}, {**judges, **turned}
    shots = photographs(data, draw)
    for part, of in shots.items():
        count = min(40, 2 * len(of["good"]) // 3)
        others = [one for other in shots if other != part for one in shots[other]["good"][:12]]
        judges = {"good": of["good"][count : count + 30], f"untaught: {part}, bad": of["bad"][:40]}
        parts[part] = {"good": of["good"][:count], "other": others}, judges
    for part, (taught, judges) in parts.items():
        kind, expert, trained = learned(name, taught, init, epochs=epochs)
        head = replace(trained, state={name: one for name, one in trained.state.items() if "optional." not in name})
        for how, one in (("", trained), (", by its head alone", head)):
            for row, pictures in judges.items():
                rows[f"{name}: {row}{how}"] += judged(kind, expert, one, pictures).verdicts
        print(f"draw {draw}, {part}", flush=True)
    return rows


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the photographs")
    parser.add_argument("--init", type=Path, help="weights of backbones/efficientnet-lite0, or of the kind to tune")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--kind", default="", help="network to tune, instead of probe and patch")
    parser.add_argument("--epochs", type=int, default=CHOSEN_EPOCHS, help="epochs to tune a network")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    gaps = []
    for draw in range(options.draws):
        if options.kind:
            for row, verdicts in tuned(options.kind, options.data, options.init, options.epochs, draw).items():
                rows[row] += verdicts
            continue
        for name in PARTS:
            shown = drawn(name, 100 * draw + len(name))
            taught = {"good": shown["good"][:20], "missing": shown["missing"][:20]}
            of_probe = learned("probe", taught, options.init)
            of_patch = learned("patch", {"good": shown["good"][:20]}, options.init)
            for kind, expert in (("probe", of_probe), ("patch", of_patch)):
                rows[f"{kind}: good"] += judged(*expert, shown["good"][20:]).verdicts
                rows[f"{kind}: missing"] += judged(*expert, shown["missing"][20:]).verdicts
                rows[f"{kind}: another part"] += judged(*expert, shown["other"]).verdicts
                if name not in POLAR:
                    continue
                turned = judged(*expert, shown["turned"])
                rows[f"{kind}: turned, with polarity"] += turned.verdicts
                assert expert[2].exam is not None
                said = [one.rate.share for one in expert[2].exam.items if one.item is Shown.TURNED]
                gaps += [abs(share - turned.verdicts["OK"] / len(shown["turned"])) for share in said]
            print(f"draw {draw}, {name}", flush=True)
        for name, of in photographs(options.data, draw).items():
            expert = learned("patch", {"good": of["good"][:20]}, options.init)
            rows[f"patch, {name}: good"] += judged(*expert, of["good"][20:60]).verdicts
            rows[f"patch, {name}: bad"] += judged(*expert, of["bad"][:40]).verdicts
            if name == "screw":
                for wrong in (1, 2, 3):
                    among = [*of["good"][: 20 - wrong], *of["bad"][40 : 40 + wrong]]
                    expert = learned("patch", {"good": among}, options.init)
                    rows[f"patch, screw: bad, {wrong} bad among the good"] += judged(*expert, of["bad"][:40]).verdicts
                among = [*of["good"][:17], *of["bad"][40:43]]
                beside = learned("patch", {"good": among, "bad": of["bad"][43:63]}, options.init)
                rows["patch, screw: bad, 3 among the good, 20 beside"] += judged(*beside, of["bad"][:40]).verdicts
            print(f"draw {draw}, {name}", flush=True)
    for row, verdicts in rows.items():
        counted = Counted(verdicts)
        print(f"{row:60} OK {counted.share('OK'):16} REVIEW {counted.share('REVIEW'):16} NG {counted.share('NG')}")
    if gaps:
        print(f"exam item `turned`, mean difference from the truth: {100 * float(np.mean(gaps)):.1f} points")


if __name__ == "__main__":
    main()
