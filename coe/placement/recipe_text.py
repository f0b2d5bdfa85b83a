"""A board recipe as a file that a person edits: each key with what it says, and TODO where a person must decide."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coe.board.drafting import TODO
from coe.placement.board_recipe import CameraSpec
from coe.placement.draft_recipe import UNKNOWN_MM, BoardPlan, DraftPart, Mark
from coe.placement.package_sizes import LIBRARY

_MOST_NAMED = 6


def recipe_text(
    name: str,
    plan: BoardPlan,
    um_per_pixel: float,
    camera: CameraSpec,
    marks: Sequence[Mark],
    landmark: Mark | None = None,
    *,
    todo: str = "",
) -> str:
    """Return the recipe of a plan as YAML; `marks` are its fiducials, all of one diameter and look.

    `todo` is what a person must do because the board was not found in the pictures, if it was not.
    """
    first = marks[0]
    said = (
        "from a file" if plan.outline_is_known else "the extent of the parts and a little more; the true edge is better"
    )
    lines = [
        "# A first recipe: look at the overlay, and change what is not right.",
        "# Lengths are mm in the frame of the placement file; docs/placements.md explains each key.",
        f"recipe: {name}",
        f"side: {plan.side}",
        f"um_per_pixel: {um_per_pixel:.4g}  # {todo or 'measured in the pictures'}",
        f"outline: {{x: {_pair(plan.x)}, y: {_pair(plan.y)}}}  # {said}",
    ]
    if camera != CameraSpec():
        lines += [
            "camera:  # how the board lies in the pictures, as it was found there",
            f"  turn: {camera.turn:g}",
            f"  middle: {_pair(camera.middle)}",
            f"  keystone: {_pair(camera.keystone)}",
        ]
    lines += [
        "fiducials:",
        f"  diameter: {first.diameter_mm:g}",
        f"  look: {first.look}",
        "  at:",
        *(f"    {_flow(mark.name)}: {_pair((mark.x_mm, mark.y_mm))}" for mark in marks),
    ]
    if landmark is not None:
        lines.append(
            f"landmark: {{at: {_pair((landmark.x_mm, landmark.y_mm))}, diameter: {landmark.diameter_mm:g}, "
            f"look: {landmark.look}}}  # {landmark.name}: it tells how the board lies where fiducials lie alike"
        )
    lines += ["components:  # size: width and height of the package with its leads, at a rotation of 0", *_sizes(plan)]
    lines += ["placed_as:", *(_entry(part) for part in plan.parts)]
    if plan.left_out:
        lines.append(f"not_inspected: [{', '.join(map(_flow, plan.left_out))}]")
    return "\n".join(lines) + "\n"


def _sizes(plan: BoardPlan) -> list[str]:
    lines = []
    for part in plan.parts:
        said = f"{len(part.refdes)}: {_some(part.refdes)}"
        if not part.source:
            what = part.package or "a part without a package"
            guess = f"{UNKNOWN_MM:g} x {UNKNOWN_MM:g} mm is a guess"
            said = f"{TODO}: the size of {what}; {guess} ({said}); said in {LIBRARY}, the next board knows it"
        lines.append(f"  {part.name}: {{size: {_pair(part.size_mm)}}}  # {said}")
    return lines


def _entry(part: DraftPart) -> str:
    words = {"package": part.package, "value": part.value}
    said = "".join(f"{key}: {_flow(word)}, " for key, word in words.items() if word)
    return f"  - {{{said or f'refdes: {_flow(part.refdes[0])}, '}component: {part.name}}}"


def _some(refdes: Sequence[str]) -> str:
    more = len(refdes) - _MOST_NAMED
    return ", ".join(refdes[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _pair(values: tuple[float, float]) -> str:
    return f"[{values[0]:.8g}, {values[1]:.8g}]"


def _flow(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
