"""Placement files read for tests, with a unit as a person says it."""

from collections.abc import Mapping
from pathlib import Path

from coe.bring.parts import converting
from coe.bring.parts.answers import AS_IT_IS, Answers
from coe.bring.parts.bom import BomPart
from coe.bring.parts.placement_file import Placement, PlacementFile


def _with(answers: Answers, units: str) -> Answers:
    return answers.with_more({"unit": units}) if units else answers


def read_file(path: Path, units: str = "", answers: Answers = AS_IT_IS) -> PlacementFile:
    return converting.read_file(path, _with(answers, units))


def parse_file(
    path: Path, raw: bytes, units: str = "", answers: Answers = AS_IT_IS, bom: Mapping[str, BomPart] | None = None
) -> PlacementFile:
    return converting.parse_file(path, raw, _with(answers, units), bom)


def read_placements(path: Path, units: str = "", answers: Answers = AS_IT_IS) -> tuple[Placement, ...]:
    return read_file(path, units, answers).placements


def parse_placements(path: Path, raw: bytes, units: str = "", answers: Answers = AS_IT_IS) -> tuple[Placement, ...]:
    return parse_file(path, raw, units, answers).placements
