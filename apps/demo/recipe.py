"""How much each expert of the demo board learns from, and for how long; what is made anew when any of it changes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from apps.demo.lessons import Amount
from coe.core import Expert

SOURCES = ("canvas", "light", "pcb", "site", "chips", "leaded", "cans", "render", "lessons", "production", "recipe")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Training of one expert; `init` is the expert whose weights it starts from, `freeze` what stays as that has it."""

    amount: Amount
    epochs: int
    batch: int
    learning_rate: float
    init: str | None = None
    freeze: tuple[str, ...] = ()


TRUNK = ("conv1", "bn1", "layer1", "layer2", "layer3")
"""What of the common body each classifier keeps as it is; only what comes behind it learns its own component types."""

ALL_BODIES = Recipe(Amount(ok=18, damage=18, other=5, held=0.08), 4, 16, 1.5e-3)
ONE_BODY = Recipe(Amount(ok=28, damage=18, other=4, held=0.3), 4, 16, 8e-4, "body", TRUNK)
CHIP_RESISTOR = Recipe(Amount(ok=44, damage=30, other=5, held=0.3), 5, 16, 8e-4, "body", TRUNK)
"""A third of all parts; its printed code is easily taken for a crack, so it sees more of both."""
FIRST_DETECTOR = Recipe(Amount(ok=8, damage=0, other=15, held=0.12), 12, 4, 2e-3)
NEXT_DETECTOR = Recipe(Amount(ok=16, damage=0, other=16, held=0.12), 9, 4, 2e-3, init="solder-joints")

RECIPES: dict[str, Recipe] = {
    "body": ALL_BODIES,
    "chip-resistor": CHIP_RESISTOR,
    "solder-joints": FIRST_DETECTOR,
    "polarity": NEXT_DETECTOR,
}
"""All classifiers start from `body`, which is no expert of the board, the second detector from the first."""


def recipe(expert: str, quick: bool = False) -> Recipe:
    """Return the recipe of an expert; a quick one trains too little to be of use, in seconds (for trying the rest)."""
    full = RECIPES.get(expert, ONE_BODY)
    return replace(full, amount=Amount(4, 4, 2), epochs=1) if quick else full


def fingerprint(expert: Expert, seed: int, quick: bool = False) -> str:
    """Return what identifies an expert's training: the recipe, the renderer, the seed, and what it starts from."""
    own = recipe(expert.id, quick)
    words = (expert.id, expert.kind, expert.labels, expert.input_size, own, own.init and recipe(own.init, quick), seed)
    return hashlib.sha256(f"{renderer()}{words!r}".encode()).hexdigest()[:16]


@cache
def renderer() -> str:
    """Return the digest of the code that makes the pictures."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    return digest.hexdigest()[:16]
