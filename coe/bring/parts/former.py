"""Recipes that read a placement file themselves, as they were before `parts.csv`: converted once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from coe.bring.parts.answers import AS_IT_IS, Answers, BottomX
from coe.bring.parts.converting import Converted, joined_with, parse_bom, parse_file
from coe.errors import ConfigError, list_few
from coe.helpers import strict_yaml
from coe.helpers.strict_model import parsed_json, validated

_FORM = "placement_file"
_KEYS = {"placed_as": "packages", "not_inspected": "not_inspected"}
_EAGLE = ("refdes", "x", "y", "rotation", "value", "package")
"""The columns of the former dialect `eagle`, whose files have no header."""


@dataclass(frozen=True, slots=True)
class FormerRecipe:
    """A recipe without what it said of its placement file, these answers, and the names of its components."""

    text: str
    answers: Answers
    components: Sequence[str]


def recipe(path: Path, raw: bytes, more: Answers = AS_IT_IS) -> FormerRecipe:
    """Return a recipe, in a file's bytes, that reads a placement file; `more` has what commands said beside it.

    Raises ConfigError for one that does not, and for a bottom side whose x counts from below.
    """
    document = strict_yaml.parse(path, raw, "recipe, side, um_per_pixel, outline and components")
    data, text = document.data, raw.decode("utf-8-sig")
    form = data.get(_FORM) or {}
    said = {**form, **{key: data[former] for former, key in _KEYS.items() if data.get(former)}}
    answers = validated(Answers, said, lambda _, words: document.error((), words))
    answers = answers.with_more(more.model_dump(mode="json", exclude_defaults=True))
    if answers.bottom is not None and answers.bottom.x is BottomX.BOTTOM:
        raise ConfigError(
            f"{path}: it counts x from the bottom side, and parts.csv as seen from the top: make the recipe again with "
            "coe-board new, or turn the sign of each x in it, and take placement_file, placed_as and not_inspected out"
        )
    components = data.get("components")
    return FormerRecipe(_without(text), answers, [*components] if isinstance(components, dict) else [])


def _without(text: str) -> str:
    """Return a recipe without the entries at its top that `parts.csv` and the answers replace."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    starts = [key.start_mark.index for key, _ in root.value] + [len(text)]
    kept = [text[: starts[0]]]
    for (key, _), start, end in zip(root.value, starts, starts[1:], strict=False):
        if key.value not in (_FORM, *_KEYS):
            kept.append(text[start:end])
    return "".join(kept)


def version(path: Path, raw: bytes) -> tuple[Converted, str]:
    """Return the placements of a station's version of a recipe, and the JSON of that version with parts.csv.

    Raises ConfigError for JSON that is none, or has no placement file.
    """
    try:
        content: dict[str, Any] = parsed_json(raw)
        content = content.get("content", content)
        whole = content["whole"]
        placements, text, file = whole["placements"], whole["recipe"], Path(whole.get("file", "placements.csv"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{path}: it is no version of a recipe with a placement file; give what the station has"
        ) from None
    beside: dict[str, Any] = {
        key: value for key, value in (("unit", whole.get("units")), ("bottom", whole.get("bottom"))) if value
    }
    if whole.get("dialect") == "eagle":
        beside["order"] = _EAGLE
    former = recipe(Path(f"{path.name}: whole.recipe"), text.encode(), AS_IT_IS.with_more(beside))
    bom = parse_bom(Path("bom.csv"), whole["bom"].encode(), former.answers, asks=False) if whole.get("bom") else None
    read = parse_file(file, placements.encode(), former.answers, bom)
    made = joined_with(file, read, Path("bom.csv"), bom, former.answers, former.components)
    expect_known(made, former)
    content = {**content, "whole": {"parts": made.text(f"made of {file.name}"), "recipe": former.text}}
    return made, json.dumps(content, ensure_ascii=False, indent=1) + "\n"


def expect_known(made: Converted, former: FormerRecipe) -> None:
    """Raise ConfigError for parts that were no component of a recipe: it could not be used before, either."""
    if strange := [part.refdes for part in made.parts if part.component and part.component not in former.components]:
        raise ConfigError(
            f"{list_few(strange)}: parts that are no component of the recipe; name them under placed_as or "
            "not_inspected before it is converted"
        )
