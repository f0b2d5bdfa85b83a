"""`answers.yaml`: what a person has said of a placement file, kept beside `parts.csv` for the next export."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coe.errors import ConfigError
from coe.helpers import strict_yaml
from coe.helpers.strict_model import StrictModel, of_yaml, validated
from coe.placement.board_layout import Bottom, BottomAngle, BottomX
from coe.placement.placement_file import FileForm, Units
from coe.placement.recipe_spec import MappingSpec

NAME = "answers.yaml"
"""What the file is called; it lies beside `parts.csv`."""
_HEAD = "# What a person said of the placement file; coe-board parts reads it for each new export.\n"


class BottomSide(StrictModel):
    """How a placement file describes the bottom side: from where its x counts, and what its angles mean."""

    x: BottomX
    angle: BottomAngle

    @property
    def spec(self) -> Bottom:
        """The same, as it turns numbers of the file."""
        return Bottom(self.x, self.angle)


class Answers(FileForm):
    """How a placement file is read, and what its parts are called; each key may be left out.

    `unit` is that of the file's coordinates, if it states none. Parts of the bottom side are left out unless `bottom`
    says how the file describes them. Of `packages` the first entry that fits a part names its component.
    `not_inspected` are designators of parts that no picture shows, with `*` for any signs.
    """

    unit: Units | None = None
    bottom: BottomSide | None = None
    packages: tuple[MappingSpec, ...] = ()
    not_inspected: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The answers as YAML, one package in a line."""
        said = self.model_dump(mode="json", exclude_defaults=True)
        packages = said.pop("packages", [])
        lines = [f"{key}: {_flow(value)}\n" for key, value in said.items()]
        lines += ["packages:\n"] if packages else []
        return _HEAD + "".join([*lines, *(f"  - {_flow(entry)}\n" for entry in packages)])


def read(path: Path) -> Answers:
    """Read a file of answers; raises RulesError with file and line."""
    raw = strict_yaml.content(path, "file of answers")
    return parse(path, raw)


def parse(path: Path, raw: bytes) -> Answers:
    """Return the answers in a file's bytes; raises RulesError, which names `path`."""
    if not [line for line in raw.splitlines() if line.strip() and not line.startswith(b"#")]:
        return Answers()
    return of_yaml(strict_yaml.parse(path, raw, f"one of {', '.join(Answers.model_fields)}"), Answers)


def with_more(said: Answers, more: Mapping[str, Any]) -> Answers:
    """Return answers with those of a command line; raises ConfigError."""
    plain = {**said.model_dump(mode="json", exclude_defaults=True), **more}
    return validated(Answers, plain, lambda place, text: ConfigError(f"{'.'.join(map(str, place))}: {text}"))


def columns_of(words: str) -> dict[str, str]:
    """Return the columns that a person names, as refdes=Bauteil,x=Ost; raises ConfigError."""
    named = [word.partition("=") for word in words.split(",")]
    if wrong := next((field for field, sign, name in named if not (sign and name.strip())), None):
        raise ConfigError(f"--columns '{wrong}': write FIELD=NAME for each column, as refdes=Bauteil,x=Ost,y=Nord")
    return {field.strip(): name.strip() for field, _, name in named}


def _flow(value: object) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, dict):
        inner = ", ".join(f"{key}: {_flow(one)}" for key, one in value.items() if one is not None)
        return f"{{{inner}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_flow, value))}]"
    return json.dumps(value, ensure_ascii=False)
