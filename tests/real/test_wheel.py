"""The wheel holds what ships and no more, and runs where there is no checkout."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import portable_run
import pytest
import typer

from coe.core import Verdict
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


def on_a_poor_system(*arguments, path=None):
    """Run a command, named as `module:function`, where the system offers little; `path` may hold the module."""
    found = os.pathsep.join(str(folder) for folder in (ROOT, ROOT / "tests" / "installed", path) if folder)
    return subprocess.run(
        [sys.executable, portable_run.__file__, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": found},
    )


@pytest.mark.slow
def test_every_module_of_the_framework_can_be_imported(tmp_path):
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in ("coe", "experts")
        for path in sorted((ROOT / package).rglob("*.py"))
        # Alembic runs migrations, nobody imports them; only to tell a broker of AMQP 1.0 a package is needed.
        if "migrations" not in path.parts and (path.name != "amqp_connection.py" or find_spec("proton"))
    ]
    (tmp_path / "every.py").write_text(
        "import importlib\ndef main():\n    for name in "
        f"{modules!r}:\n        importlib.import_module(name)\n"
        "    from coe.helpers import system\n"
        "    print(system.OPEN_FLAGS, system.forget_peak(), system.processor_features())\n",
        encoding="utf-8",
    )
    ended = on_a_poor_system("every:main", path=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "0 False frozenset()\n"), ended.stderr


@pytest.mark.slow
def test_a_run_is_inspected_and_written(tiny, pictures, tmp_path):
    board, store = tiny
    images = tmp_path / "images" / "SN1"
    images.mkdir(parents=True)
    for picture in pictures[:6]:
        cv2.imwrite(str(images / f"{picture.refdes}__{picture.component}.png"), picture.image)
    out = tmp_path / "run"
    ended = on_a_poor_system(
        "coe.cli.start:inspect", "--board", board, "--store", store, "--images", images.parent, "--memory", "18MB",
        "--out", out,
    )  # fmt: skip
    assert ended.returncode in (0, 1), ended.stderr
    results = read(out / "results.jsonl")
    assert len(results) == 6
    assert all(isinstance(result.verdict, Verdict) for result in results)
    assert sorted(path.name for path in out.iterdir()) == [
        "report.html", "results.csv", "results.jsonl", "run.json", "summary.json",
    ]  # fmt: skip
