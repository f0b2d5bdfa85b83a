"""The options of a line: read once, checked, and never changed."""

import inspect

import pytest
import typer
from option_table import table, table_of_page

from coe import Inspector
from coe.cli import inspect as inspecting
from coe.cli import profile_command
from coe.errors import ConfigError
from coe.helpers import system
from coe.inspector import line_devices
from coe.inspector.line_options import AUTO, OPTIONS, Door, LineArguments, LineOptions, taken
from coe.lab.cli import bench
from coe.serve.service_config import LineSettings
from coe.testing import Experiment


def test_what_a_user_wrote_becomes_numbers():
    options = LineOptions.of("b", memory="1.5GiB", device_memory=1000, host_memory="2kB", disk_bandwidth="530MB/s")
    assert (options.memory, options.device_memory, options.host_memory) == (3 << 29, 1000, 2000)
    assert (options.disk_bandwidth, options.profile) == (530_000_000, AUTO)
    assert options.but(memory="1GiB").memory == 1 << 30
    assert taken({"max_wait_s": "2min", "memory": None}) == {"max_wait_s": 120.0}
    assert LineOptions.of("b", **taken({"profile": "none"})).profile is None


@pytest.mark.parametrize(
    "given",
    [
        *({"memory": "lots"}, {"executors": "cpu=0"}, {"threads": 0}, {"profile": 3}, {"inbox": 0}),
        *({"on_full": "drop"}, {"precision": "hlaf"}, {"strategy": "lime"}, {"cluster": ""}, {"experiment": {}}),
        {"strategy": "samba", "max_wait_s": 5.0},
        {"cluster": "auto", "experiment": Experiment(keep_trace=True)},
    ],
)
def test_an_error_about_one_option_names_it_and_of_two_neither(given):
    with pytest.raises(ConfigError) as refused:
        LineOptions.of("demo", **given)
    assert refused.value.option == (next(iter(given)) if len(given) == 1 else "")


def test_type_checkers_and_the_page_know_each_option_as_it_is():
    assert {"board", *LineArguments.__annotations__} == set(OPTIONS)
    assert table_of_page() == table(), "write it again: python tests/support/option_table.py"


def test_an_option_of_the_model_is_at_each_of_its_doors():
    run = typer.main.get_command(bench.app)
    commands = {
        Door.INSPECT: typer.main.get_command(inspecting.app),
        Door.PROFILE: typer.main.get_command(profile_command.app),
        Door.RUN: run.commands["run"],
    }
    flags = {door: {flag for one in command.params for flag in one.opts} for door, command in commands.items()}
    said = " ".join((Inspector.__doc__ or "").split())
    assert list(inspect.signature(Inspector).parameters) == list(OPTIONS)
    for name, option in OPTIONS.items():
        assert f"{name}: {option.help}" in said
        for door in option.doors - {Door.SERVE}:
            assert (option.flag or f"--{name.replace('_', '-')}") in flags[door], (door, name)
    served = {option.key or name for name, option in OPTIONS.items() if Door.SERVE in option.doors}
    assert served == LineSettings.model_fields.keys() - {"hangs_after_s"}
    assert LineSettings(threads="7").options("b").threads == 7


def test_pictures_are_decoded_by_all_cores_but_two(monkeypatch):
    for usable, workers in ((1, 2), (2, 2), (4, 2), (5, 3), (16, 14)):
        monkeypatch.setattr(line_devices, "usable_cores", lambda usable=usable: usable)
        assert line_devices.decoding(1 << 30).threads == workers


def test_a_line_opens_with_the_cores_that_are_free(monkeypatch, tiny):
    path, store = tiny
    monkeypatch.setattr(line_devices, "_looks", [])
    monkeypatch.setattr(line_devices, "free_cores", lambda: 1)
    monkeypatch.setattr(system, "usable_cores", lambda: 2)
    made = []

    def noted(numbers, store, known, threads, **options):
        made.append(dict(threads))
        return line_devices.make(numbers, store, known, threads, **options)

    with Inspector(path, store=store, experiment=Experiment(make_devices=noted)):
        pass
    assert made == [{"cpu": 1}]
