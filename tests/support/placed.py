"""Placement files read for tests, with a unit as a person says it."""

from coe.bring.parts import converting
from coe.bring.parts.answers import AS_IT_IS


def _with(answers, units):
    return answers.with_more({"unit": units}) if units else answers


def read_file(path, units="", answers=AS_IT_IS):
    return converting.read_file(path, _with(answers, units))


def parse_file(path, raw, units="", answers=AS_IT_IS, bom=None):
    return converting.parse_file(path, raw, _with(answers, units), bom)


def read_placements(path, units="", answers=AS_IT_IS):
    return read_file(path, units, answers).placements


def parse_placements(path, raw, units="", answers=AS_IT_IS):
    return parse_file(path, raw, units, answers).placements
