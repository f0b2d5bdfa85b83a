"""What a line is told: read once, checked, and never changed."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from quick_line import COSTS, LIGHT, QuickDevice

from coe.errors import ConfigError
from coe.inspector.line import Line
from coe.inspector.line_config import AUTO, AskedSettings, Inbox, LineConfig
from coe.scheduler.strategies import strategy as named_strategy
from coe.store.store import Store


def test_what_a_user_wrote_becomes_numbers() -> None:
    asked = AskedSettings.parsed(
        memory="1.5GiB",
        executors="cuda=2,cpu=1",
        threads=3,
        loaded=12.5,
        device_memory=1000,
        host_memory="2kB",
        search_kernels=False,
    )
    assert asked == AskedSettings(
        memory_bytes=3 << 29,
        executors={"cuda": 2, "cpu": 1},
        threads=3,
        loaded=12.5,
        device_bytes=1000,
        host_bytes=2000,
        search_kernels=False,
    )


def test_what_a_user_did_not_write_is_left_open() -> None:
    assert AskedSettings.parsed() == AskedSettings(profile=AUTO)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"memory": "lots"}, "memory: 'lots' is not an amount of memory"),
        ({"executors": "cpu=0"}, "must lie between 1 and 64"),
        ({"threads": 0}, "threads=0: give a whole number from 1"),
        ({"loaded": 0}, "loaded=0: give a number from"),
        ({"profile": 3}, "profile=3: give a profile, the path of a profile, 'auto' or None"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_read(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AskedSettings.parsed(**asked)


def test_an_inbox_has_bounds() -> None:
    with pytest.raises(ConfigError, match="inbox=0: give a whole number from 1"):
        Inbox(0)
    with pytest.raises(ConfigError, match="on_full='drop' is neither 'block' nor 'raise'"):
        Inbox(on_full="drop")  # type: ignore[arg-type]


def test_a_configuration_is_checked_where_it_is_made_and_then_frozen() -> None:
    with pytest.raises(ConfigError, match="'hlaf' is not a precision; did you mean 'half'"):
        LineConfig(board="demo", precision="hlaf")
    with pytest.raises(ConfigError, match="strategy 'samba' looks at neither ages nor due times"):
        LineConfig(board="demo", strategy=named_strategy("samba"), max_wait_s=5.0)
    with pytest.raises(ConfigError, match="strategy 'hobbit' chooses an expert's precision at each load"):
        LineConfig(board="demo", strategy=named_strategy("hobbit"))
    with pytest.raises(FrozenInstanceError):
        LineConfig(board="demo").precision = "half"  # type: ignore[misc]


def test_a_line_is_opened_from_a_configuration(tiny: tuple[Path, Path]) -> None:
    board, root = tiny
    line_config = LineConfig(
        board=board,
        asked=AskedSettings.parsed(memory="100MB", profile=None),
        costs=COSTS,
        make_devices=lambda *arguments, **options: {"cpu": QuickDevice()},
        store=Store(root),
    )
    with Line(line_config) as line:
        assert line.submit(LIGHT, "C").result().verdict == "OK"
