"""The wheel holds what ships and no more, and runs where there is no checkout."""

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer

from coe.results.records import read

ROOT = Path(__file__).parents[2]

# Neither the checkout nor the environment's own `coe` can be imported: `-S` leaves out .pth files, which name it.
BARE = "import sys; sys.path[:0] = sys.argv.pop(1).split('|'); from coe.cli import start; getattr(start, sys.argv[0])()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build the wheel, with nothing from outside, and return the folder that it unpacks to."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    # In a copy: a build leaves files behind.
    for name in ("coe", "experts", "routing_rules", "apps", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    subprocess.run([*command, "--wheel-dir", place, source], check=True, cwd=place, capture_output=True, timeout=200)
    (wheel,) = place.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place / "site")
    return place / "site"


def run(installed, command, *arguments, folder):
    """Run a command of the wheel's, with the libraries of this environment and nothing else of it."""
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(typer.__file__).parents[1])}
    paths = "|".join([str(installed), *libraries])
    script = BARE.replace("sys.argv[0]", repr(command))
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", script, paths, *map(str, arguments)],
        check=False, capture_output=True, text=True, encoding="utf-8", cwd=folder, timeout=250,
    )  # fmt: skip


@pytest.mark.slow
def test_the_wheel_holds_the_packages_that_ship(installed):
    assert sorted(path.name for path in installed.iterdir() if path.suffix != ".dist-info") == [
        "coe", "experts", "routing_rules",
    ]  # fmt: skip
    for file in ("coe/py.typed", "coe/results/report.html.j2", "routing_rules/demo.yaml"):
        assert (installed / file).is_file()
    assert list(installed.glob("coe/lab/presets/*.yaml"))
    for package in ("coe", "experts"):
        shipped = {path.relative_to(installed) for path in (installed / package).rglob("*.py")}
        assert shipped == {path.relative_to(ROOT) for path in (ROOT / package).rglob("*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("command", ["inspect", "experts", "profile", "bench", "serve"])
def test_each_command_says_what_it_does(installed, tmp_path, command):
    helped = run(installed, command, "--help", folder=tmp_path)
    assert (helped.returncode, helped.stderr) == (0, "")
    assert "--help" in helped.stdout


HIDING = """
import contextlib, io, json, sys
sys.modules.update(dict.fromkeys(["sqlalchemy", "starlette", "uvicorn", "alembic", "prometheus_client"]))
from coe.cli import start
said = []
for command in sys.argv[1:]:
    name, *words = command.split()
    sys.argv = [f"coe-{name}", *words]
    with contextlib.redirect_stderr(io.StringIO()) as errors, contextlib.redirect_stdout(io.StringIO()):
        try:
            getattr(start, name)()
        except SystemExit as end:
            said.append((end.code or 0, errors.getvalue()))
json.dump(said, sys.stdout)
"""


@pytest.mark.slow
def test_without_an_extra_its_commands_say_what_to_install(tmp_path):
    commands = ["serve init folder --board demo", "bench serve --parts intake", "inspect --help", "experts --help"]
    run_hiding = [sys.executable, "-c", HIDING, *commands]
    ended = subprocess.run(run_hiding, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=250)
    said = json.loads(ended.stdout)
    assert [(status, words.count("\n")) for status, words in said] == [(2, 1), (2, 1), (0, 0), (0, 0)]
    assert ["coe-vision[serve]" in words for _, words in said] == [True, True, False, False]


@pytest.mark.slow
def test_a_board_that_ships_is_inspected_without_a_checkout(installed, tmp_path):
    helped = run(installed, "inspect", "--help", folder=tmp_path)
    assert (helped.returncode, "--images" in helped.stdout) == (0, True), helped.stderr
    made = run(installed, "experts", "synth", "--board", "demo", "--store", "store", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    picture = tmp_path / "images" / "SN1" / "R1__R0402-10K.png"
    picture.parent.mkdir(parents=True)
    cv2.imwrite(str(picture), np.random.default_rng(1).integers(0, 255, (64, 64, 3), np.uint8))
    arguments = ["--board", "demo", "--store", "store", "--images", "images", "--memory", "150MB"]
    for strategy in ("late-binding", "coserve"):
        ended = run(installed, "inspect", *arguments, "--strategy", strategy, "--out", strategy, folder=tmp_path)
        assert ended.returncode in (0, 1), ended.stderr
        (result,) = read(tmp_path / strategy / "results.jsonl")
        assert result.request.image == "SN1/R1__R0402-10K.png"
        assert (tmp_path / strategy / "report.html").is_file()
