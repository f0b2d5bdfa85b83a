"""The text of a calibration file, and its entries from such a text."""

from __future__ import annotations

from pathlib import Path

import yaml

from coe.board.calibration_file import BoardCalibration, CalibratedExpert, parse
from coe.helpers.strict_model import of_yaml

_HEAD = """\
# Written by `coe-experts calibrate`; it counts in the place of what {board} states of these experts.
# To go back to the board file, take an expert out, or delete this file.
"""


def entries(board: Path, raw: bytes) -> dict[str, CalibratedExpert]:
    """Return the entries of a board file's calibration from its bytes; raises RulesError with file and line."""
    return dict(of_yaml(parse(board, raw), BoardCalibration).experts)


def text(board: Path, calibration: BoardCalibration) -> str:
    """Return the text of the calibration file of a board file."""
    data = calibration.model_dump(mode="json", exclude_defaults=True)
    head = _HEAD.format(board=board.resolve().name)
    return head + yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=120)
