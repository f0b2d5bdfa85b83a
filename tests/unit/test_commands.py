"""Commands: options, help, tables, and what a process does before it begins."""

import io
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import typer
from picture_folders import make
from PIL import Image

import coe
from coe.board import rules
from coe.cli import board_command, common, experts_command, inspect, profile_command
from coe.cli.common import Steps, wide
from coe.cli.console import Console, table_of
from coe.cli.experts_pictures import Split
from coe.cli.options import Share, Size
from coe.errors import StoreError
from coe.inspector import weights_used
from coe.lab.cli import bench
from coe.pictures.finding import find
from coe.pictures.label_folders import Components
from coe.pictures.photographs import Purpose
from coe.runtime.cuda import torch_driver
from coe.serve import command as serve
from coe.store.store import Store

MEASURES = "accuracy 0.5, accuracy_at_least 0.2453, loss 1.082, train_loss 0.6944, epoch 3"


def console(width=None, *, is_terminal=True):
    made = Console(width=width)
    made.file = io.StringIO()
    made._force_terminal = is_terminal
    return made


def test_training_in_a_pipe_says_a_line_for_each_epoch(monkeypatch):
    monkeypatch.setattr(common, "err", shown := console(40, is_terminal=False))
    with Steps("training", 3) as steps:
        for epoch in (1, 2, 3):
            steps.at(epoch, 3, MEASURES)
    lines = shown.file.getvalue().splitlines()
    assert lines == [f"training {epoch}/3: {MEASURES}" for epoch in (1, 2, 3)]


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_of_steps_leaves_room_for_its_count_and_the_time(width, monkeypatch):
    shown = console(width)
    monkeypatch.setattr(common, "err", shown)
    with Steps("training", 30) as steps:
        steps.at(3, 30, MEASURES)
    (line,) = {line for line in shown.file.getvalue().replace("\r", "\n").splitlines() if "3/30" in line}
    assert all(word in line for word in ("training", "-:--:--", "accuracy"))


TABLE = ("line7/USB_C_Receptacle_HRO_TYPE-C-31-M-12", "efficientnet", "good, missing, cracked, tombstoned", "1.2 MB")


@pytest.mark.parametrize("width", [24, 80])
def test_a_table_is_never_cut_on_a_terminal(width):
    shown, table = console(width), table_of("expert", "kind", "labels", "size", left=("expert", "kind", "labels"))
    table.add_row(*TABLE)
    shown.print(table)
    told = shown.file.getvalue()
    assert "\u2026" not in told
    assert sum(map(str.isalnum, told)) == sum(map(str.isalnum, "".join(("expertkindlabelssize", *TABLE))))


def test_a_row_of_a_table_is_one_line_in_a_pipe(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stdout", written)
    table = table_of("name", "labels", left=("name", "labels"))
    table.add_row("n" * 200, "l" * 300)
    wide(console(is_terminal=False)).print(table)
    assert written.getvalue().splitlines()[1].split() == ["n" * 200, "l" * 300]


APPLICATIONS = {
    **{"coe-bench": bench, "coe-board": board_command, "coe-experts": experts_command},
    **{"coe-inspect": inspect, "coe-profile": profile_command, "coe-serve": serve},
}


@pytest.mark.parametrize("command", APPLICATIONS.values(), ids=APPLICATIONS)
def test_each_command_shows_the_version(command, call):
    said = call("--version", command=command)
    assert (said.status, said.out) == (0, f"coe {coe.__version__}\n")


def test_a_component_that_the_board_lacks_is_named_beside_those_it_has(tmp_path):
    names = make(tmp_path, "cookie/good/a.png", "SN1/deep/R1__R0402.png", "more/R0402/a.png")
    for known in (["R0402", "C0603"], [*(f"part-{number}" for number in range(30)), "R0402"]):
        told = {item.name: str(item.error) for item in find(names, Components(known))[0]}
        assert all(word in told["cookie/good/a.png"] for word in ("'cookie'", "R0402"))
        assert all("too deep" in told[name] for name in ("SN1/deep/R1__R0402.png", "more/R0402/a.png"))


def test_it_is_said_why_torch_can_use_no_gpu(monkeypatch):
    def refuse():
        raise RuntimeError("Found no NVIDIA driver on your system. Please check")

    monkeypatch.setattr(torch.cuda, "init", refuse)
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert torch_driver.why_not_there() == "Found no NVIDIA driver on your system"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert "CUDA_VISIBLE_DEVICES is '-1'" in torch_driver.why_not_there()
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    assert "CUDA_VISIBLE_DEVICES is '-1'" in torch_driver.why_not_there()
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: False)
    assert torch.__version__ in torch_driver.why_not_there()


@pytest.mark.parametrize("board", ["A", "B"])
def test_a_board_without_weights_names_the_command_that_makes_random_ones(board, tmp_path):
    with pytest.raises(StoreError) as error:
        weights_used.read_manifests(rules.load(board), Store(tmp_path))
    command = str(error.value).partition("coe-experts synth --board ")[2]
    assert rules.load(command).board == rules.load(board).board


def test_an_empty_store_says_so_and_rows_are_a_table_for_people_and_json_for_programs(call, tmp_path):
    said = call("list", "--store", tmp_path, command=experts_command)
    assert (said.status, "no experts" in said.err) == (0, True)
    (tmp_path / "R0402" / "good").mkdir(parents=True)
    for number in range(5):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "R0402" / "good" / f"{number}.png")
    shown = call("split", tmp_path, command=experts_command)
    said = call("split", tmp_path, "--json", command=experts_command)
    (row,) = json.loads(said.out)
    assert (row["component"], row["label"], sum(row[f"to {purpose}"] for purpose in Purpose)) == ("R0402", "good", 5)
    assert shown.out == said.err
    assert (f"{Share(0.25)!s} {Size(1_536)!s}", json.dumps([Share(0.25), Size(3)])) == ("25.00% 1.5 KiB", "[0.25, 3]")


def test_a_command_that_is_called_in_python_has_the_defaults_of_the_command_line():
    made = Split(photos=Path("photos"))
    assert (made.photos, made.verify, made.group, made.seed) == (Path("photos"), 0.2, "", 0)


def inside(name, command):
    parts = getattr(command, "commands", None)
    return (
        {key: one for part in parts for key, one in inside(f"{name} {part}", parts[part]).items()}
        if parts
        else {name: command}
    )


COMMANDS = {
    key: command
    for name, module in APPLICATIONS.items()
    for key, command in inside(name, typer.main.get_command(module.app)).items()
}


@pytest.mark.parametrize(("name", "command"), COMMANDS.items(), ids=COMMANDS)
def test_each_command_shows_one_example_that_it_reads_and_explains_each_option_on_one_page(name, command):
    examples = [line.strip() for line in command.help.splitlines() if line.strip().startswith("Example:")]
    assert len(examples) == 1
    words = shlex.split(examples[0].removeprefix("Example:"))
    assert " ".join(words[: len(name.split())]) == name
    command.make_context(name, words[len(name.split()) :])
    text = "".join(command.get_help(command.make_context(name, [], resilient_parsing=True)).split())
    shown = [option for option in command.params if not option.hidden]
    said = [
        *(flag for option in shown for flag in option.opts if flag[0] == "-"),
        *(option.help for option in shown if option.help),
    ]
    assert [one for one in said if "".join(one.split()) not in text] == []
    assert not [one.name for one in command.params if not getattr(one, "help", None) and one.name != "help"]
    flags = [flag for option in command.params for flag in (*option.opts, *option.secondary_opts)]
    assert flags == [flag.lower() for flag in flags], "whatever typer makes of a metavar"
    lines = command.get_help(command.make_context(name, [], resilient_parsing=True, terminal_width=80)).splitlines()
    assert (len(lines) <= 60, max(map(len, lines)) <= 80) == (True, True)


@pytest.mark.parametrize("name", ["coe-bench", "coe-board", "coe-experts", "coe-serve"])
def test_the_list_of_commands_has_whole_sentences(name, call):
    text = "".join(call("--help", command=APPLICATIONS[name]).out.split())
    inner = [command for words, command in COMMANDS.items() if words.rpartition(" ")[0] == name]
    first = [command.help.partition("\n\n")[0] for command in inner]
    assert [one for one in first if "".join(one.split()) not in text] == []


def test_rare_options_are_shown_on_request(call):
    usual, all_ = call("--help", command=inspect), call("--help-all", command=inspect)
    assert (usual.status, all_.status) == (0, 0)
    assert ("--strategy" in usual.out, "--strategy" in all_.out) == (False, True)
    assert "--help-all" in usual.out
    assert call("--help", command=inspect).out == usual.out


def printed(program, **environment):
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"} | environment
    words = [sys.executable, "-c", f"import os, sys\n{program}"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.split()


MEASURES_ONE = """
import torch
from coe.core import Expert
from coe.runtime.trial import peak_bytes
from experts.resnet import resnet18
network = resnet18.skeleton(Expert("a", "resnet18", ("ok", "bad"), 32, "b/a"))
assert peak_bytes(lambda: resnet18.forward(network, torch.zeros(1, 3, 32, 32, dtype=torch.uint8)))
"""


HELP = "import coe.lab.cli.bench, coe.cli.inspect, coe.cli.profile_command, coe.serve.command"
LARGE = {"torch", "cv2", "matplotlib", "networkx", "sqlalchemy", "starlette", "alembic"}
COMPILER = {"torchvision", "torch._dynamo", "sympy"}


@pytest.mark.parametrize(
    ("program", "large"),
    [("import coe", LARGE), (HELP, LARGE), pytest.param(MEASURES_ONE, COMPILER, marks=pytest.mark.slow)],
    ids=["the front door", "help", "a network that is built and measured"],
)
def test_nothing_waits_for_libraries_that_it_does_not_need(program, large):
    assert printed(f"{program}\nprint(*{large} & sys.modules.keys())") == []


@pytest.mark.parametrize(("given", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_the_user_says_otherwise(given, policy):
    assert printed("import coe; print(os.environ['OMP_WAIT_POLICY'])", **given) == [policy]
