"""ODB++ of Siemens, a folder that programs pack as .tgz or .zip: its components, with their values and packages.

A component lies where the middle of its package does, and turns clockwise before it is mirrored from left to right onto
the bottom side: pins in files of Altium, Allegro and Xpedition prove it. KiCad mirrors packages themselves, from top to
bottom, and the boxes it writes are not around them: its components lie at their origins, as in its placement files.
"""

from __future__ import annotations

import re
from cmath import rect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import radians
from pathlib import Path

from coe.bring.parts import cad_files
from coe.bring.parts.cad_files import CadPart, left_unread, numbers_in, only_board, table_of
from coe.bring.parts.text_table import Table, TextLine, lines_of
from coe.bring.parts.vocabulary import UNIT_WORDS
from coe.errors import ConfigError, list_few
from coe.helpers.visible import visible

_NOUN = "ODB++ file"
_FILE = re.compile(
    r"(?P<job>(?:[^/]*/)*?)(?:misc/info|steps/(?P<step>[^/]+)/"
    r"(?:stephdr|(?P<eda>eda/data)|layers/(?P<layer>[^/]+)/components))(?P<packed>\.z)?"
)
_SIDES = {"comp_+_top": "top", "comp_+_bot": "bottom"}
_UNIT = re.compile(r"\s*U(?:NITS)?[ =]+(\w+)", re.IGNORECASE)
_PROPERTY = re.compile(r"PRP\s+(\S+)\s+(?:'(.*)'|(\S.*))")
_CONNECTIONS = re.compile(rb"^(?:FID|SNT) .*\n?", re.MULTILINE)
"""Most of the data of packages and nets, and nothing of it is needed."""
_NO_NAME = "???"
_NEAR_MM = 0.04


@dataclass(slots=True)
class _Record:
    """A record PKG or CMP, and the words of the pins (PIN, TOP) and the properties (PRP) below it."""

    words: list[str]
    mm: float
    attributes: set[str]
    layer: str
    pins: list[list[str]] = field(default_factory=list)
    said: list[tuple[str, str]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The designator of a component."""
        return "".join(self.words[5:6])

    def point(self, x: str, y: str) -> complex:
        """Return a point in mm; raises ValueError."""
        return complex(float(x), float(y)) * self.mm


@dataclass(slots=True)
class _Step:
    """A board, or a panel of boards."""

    parts: list[_Record] = field(default_factory=list)
    packages: list[_Record] = field(default_factory=list)
    is_panel: bool = False
    is_kicad: bool = False


def board_table(path: Path, raw: bytes) -> Table:
    """Return the table of the components of the one board in a file; raises ConfigError."""
    files = cad_files.files(path, raw, lambda name: _FILE.fullmatch(name) is not None)
    if not files:
        raise ConfigError(
            f"{path}: it is an archive without the folders of ODB++; give the placement list in it, as CSV"
        )
    steps, notes = _steps(path, files)
    panels = [name for name, step in steps.items() if step.is_panel]
    board, told = only_board(path, _NOUN, (name for name, step in steps.items() if step.parts), panels)
    step = steps[board]
    parts, unproven = list[CadPart](), list[str]()
    for part in step.parts:
        if part.layer in _SIDES:
            with numbers_in(path, f"the component '{visible(part.name)}'"):
                one, is_proven = _placed(part, step)
            parts.append(one)
            unproven += [] if is_proven else [part.name]
    inside = [part.name for part in step.parts if part.layer not in _SIDES]
    notes += told + left_unread(inside, "because they are on no outer side of the board")
    if unproven:
        few = list_few(map(visible, unproven))
        notes += (f"parts have no package, or pins that contradict their angles ({few}); look at them",)
    return table_of(parts, notes)


def _steps(path: Path, files: Mapping[str, bytes]) -> tuple[dict[str, _Step], tuple[str, ...]]:
    """Return boards and panels by name, and notes; raises ConfigError."""
    found = {name: match for name in files if (match := _FILE.fullmatch(name))}
    if packed := next((name for name, match in found.items() if match["packed"]), ""):
        raise ConfigError(
            f"{path}: {visible(packed)} in it is compressed, which is not supported; export without "
            "compression, or unpack it (7-Zip) and pack the folder as a .zip"
        )
    noun, needed = f"the {_NOUN}", {name: _CONNECTIONS.sub(b"", files[name]) for name in found}
    read = [(match, lines_of(path, needed[name], noun, lambda _: True).lines) for name, match in found.items()]
    steps, without = dict[str, _Step](), False
    of_jobs = {match["job"]: _unit(lines) for match, lines in read if not match["step"]}
    for match, lines in read:
        step = steps.setdefault(f"{match['job']}{match['step']}", _Step())
        unit = _unit(lines) or of_jobs.get(match["job"], "")
        known = UNIT_WORDS.get(unit.casefold() or "inch")
        mm = known.mm if known else 0.0
        if any(match[kind] for kind in ("eda", "layer")) and not mm:
            raise ConfigError(f"{path}: the unit of this {_NOUN} is '{visible(unit)}'; export it in mm or inch")
        if match["eda"]:
            step.is_kicad = any(line.text.startswith("HDR KiCad") for line in lines)
            step.packages = _records(lines, "PKG", "PIN", mm)
        elif match["layer"]:
            step.parts += (parts := _records(lines, "CMP", "TOP", mm, match["layer"]))
            without |= bool(parts) and not unit
        elif match["step"]:
            step.is_panel = any("STEP-REPEAT" in line.text for line in lines)
    return steps, ("no unit is stated, which means inch in ODB++",) if without else ()


def _unit(lines: Iterable[TextLine]) -> str:
    return next((match[1] for line in lines if (match := _UNIT.match(line.text))), "")


def _records(lines: Iterable[TextLine], kind: str, pin: str, mm: float, layer: str = "") -> list[_Record]:
    records: list[_Record] = []
    names: dict[str, str] = {}
    for line in lines:
        text, _, attributes = line.text.partition(";")
        word, *words = text.split(maxsplit=7) or [""]
        if word.startswith("@") and words:
            names[word[1:]] = words[0]
        elif word == kind:
            said = (one.strip().partition("=") for one in attributes.partition(";")[0].split(","))
            records.append(
                _Record(words, mm, {names.get(number, "") for number, _, text in said if text != "0"}, layer)
            )
        elif word == pin and records:
            records[-1].pins.append(words)
        elif records and (match := _PROPERTY.match(line.text)):
            records[-1].said.append((match[1], match[2] or match[3] or ""))
    return records


def _placed(part: _Record, step: _Step) -> tuple[CadPart, bool]:
    """Return a component, and whether its pins lie where its angle and its package, if known, have them.

    Raises ValueError, TypeError or IndexError if numbers are missing.
    """
    number, x, y, turn, mirror = part.words[:5]
    side = _SIDES[part.layer]
    is_mirrored = (side == "bottom") != (mirror == "M")
    package = next(iter(step.packages[int(number) : int(number) + 1]), _Record(["", "", *"0000"], 1, set(), ""))

    def turned(point: complex) -> complex:
        at = point * rect(1, -radians(float(turn)))
        return part.point(x, y) + (-at.conjugate() if is_mirrored else at)

    low, high = package.point(*package.words[2:4]), package.point(*package.words[4:6])
    at = part.point(x, y) if step.is_kicad else turned((low + high) / 2)
    pins = {int(words[0]): part.point(*words[1:3]) for words in part.pins}
    places = {index: turned(package.point(*words[2:4])) for index, words in enumerate(package.pins)}
    is_proven = all(abs(places[index] - pins[index]) < _NEAR_MM for index in places.keys() & pins) and package.words[0]
    value = next((text for name, text in part.said if name.casefold() == "value" and text.strip()), "")
    named = "" if step.is_kicad else "".join(part.words[6:7]).replace(_NO_NAME, "")
    angle = 180 + float(turn) if side == "bottom" and not is_mirrored else -float(turn)
    is_out = ".no_pop" in part.attributes
    placed = CadPart(part.name, value or named, package.words[0], at, angle % 360, side, part.said, is_out)
    return placed, bool(is_proven)
