"""The options of a line: read once, checked, and never changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from option_table import table, table_of_page
from pydantic import ValidationError
from quick_line import COSTS, LIGHT, QuickDevice

from coe.errors import ConfigError
from coe.inspector.line import Line
from coe.inspector.line_arguments import LineArguments
from coe.inspector.line_options import AUTO, OPTIONS, LineOptions, taken


def test_what_a_user_wrote_becomes_numbers() -> None:
    options = LineOptions.of("b", memory="1.5GiB", device_memory=1000, host_memory="2kB", disk_bandwidth="530MB/s")
    assert (options.memory, options.device_memory, options.host_memory) == (3 << 29, 1000, 2000)
    assert (options.disk_bandwidth, options.profile) == (530_000_000, AUTO)
    assert options.but(memory="1GiB").memory == 1 << 30
    assert taken({"max_wait_s": "2min", "profile": "none", "memory": None}) == {"max_wait_s": 120.0, "profile": None}


@pytest.mark.parametrize(
    "given",
    [
        {"memory": "lots"},
        {"executors": "cpu=0"},
        {"threads": 0},
        {"loaded": 0},
        {"profile": 3},
        {"inbox": 0},
        {"on_full": "drop"},
        {"precision": "hlaf"},
        {"label_floor": 2},
        {"strategy": "lime"},
        {"cluster": ""},
        {"costs": {}},
    ],
)
def test_an_error_about_one_option_names_it(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        LineOptions.of("demo", **given)
    assert [refused.value.option] == list(given)


@pytest.mark.parametrize(
    "given",
    [
        {"strategy": "samba", "max_wait_s": 5.0},
        {"strategy": "hobbit"},
        {"cluster": "auto", "keep_trace": True},
    ],
)
def test_options_that_would_be_ignored_are_refused_together(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as refused:
        LineOptions.of("demo", **given)
    assert refused.value.option == ""


def test_options_never_change() -> None:
    with pytest.raises(ValidationError):
        LineOptions.of("demo").precision = "half"  # type: ignore[misc]


def test_type_checkers_know_each_option() -> None:
    assert {"board", *LineArguments.__annotations__} == set(OPTIONS)


WIDER = """
from typing import Annotated
from coe.inspector import machine_options
from coe.inspector.option import Door, Option

class Wider(machine_options.MachineOptions):
    extra: Annotated[int | None, Option("A new one.", frozenset(Door), typed=int, least=1, most=9)] = None

machine_options.MachineOptions = Wider
import inspect, sys
import typer
from coe import Inspector
from coe.cli import inspect as inspecting, profile_command
from coe.lab.cli import bench
from coe.serve.service_config import LineSettings

assert inspect.signature(Inspector).parameters["extra"].default is None
assert "extra: A new one." in Inspector.__doc__
commands = [typer.main.get_command(module.app) for module in (inspecting, profile_command, bench)]
for command in (*commands[:2], commands[2].commands["run"]):
    assert any(option.opts == ["--extra"] and option.help == "A new one." for option in command.params), command.name
assert LineSettings(extra="7").options("b").extra == 7
"""


def test_an_option_that_joins_the_model_is_everywhere() -> None:
    done = subprocess.run([sys.executable, "-c", WIDER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_page_has_the_options_as_they_are() -> None:
    assert table_of_page() == table(), "write it again: python tests/option_table.py"


def test_a_line_is_opened_from_options(tiny: tuple[Path, Path]) -> None:
    board, root = tiny
    devices = {"cpu": QuickDevice()}
    options = LineOptions.of(
        board, store=root, memory="100MB", profile=None, costs=COSTS, make_devices=lambda *_, **__: devices
    )
    with Line(options) as line:
        assert line.submit(LIGHT, "C").result().verdict == "OK"
