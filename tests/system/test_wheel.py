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
import pages
import portable_run
import pytest
import typer

from coe.board import rules
from coe.core import Verdict
from coe.results.records import read
from coe.store import kinds

ROOT = Path(__file__).parents[2]

# Neither the checkout nor the environment's own `coe` can be imported: `-S` leaves out .pth files, which name it.
BARE = "import sys; sys.path[:0] = sys.argv.pop(1).split('|'); from coe.cli import start; getattr(start, sys.argv[0])()"


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Build an sdist, and from that the wheel; return the folder that the wheel unpacks to."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    # In a copy: a build leaves files behind.
    for name in ("coe", "experts", "routing_rules", "apps", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    built("build_sdist", place, source)
    (packed,) = place.glob("*.tar.gz")
    shutil.unpack_archive(packed, place, filter="data")
    built("build_wheel", place, place / packed.name.removesuffix(".tar.gz"))
    (wheel,) = place.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(place / "site")
    return place / "site"


def built(what, place, source):
    script = f"from setuptools import build_meta; build_meta.{what}({str(place)!r})"
    subprocess.run([sys.executable, "-c", script], check=True, cwd=source, capture_output=True, timeout=200)


def run(installed, command, *arguments, folder):
    return bare(installed, BARE.replace("sys.argv[0]", repr(command)), *arguments, folder=folder)


def bare(installed, script, *arguments, folder):
    libraries = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(Path(typer.__file__).parents[1])}
    paths = "|".join([str(installed), *libraries])
    return subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", script, paths, *map(str, arguments)],
        check=False, capture_output=True, text=True, encoding="utf-8", cwd=folder, timeout=250,
    )  # fmt: skip


def test_the_wheel_holds_the_packages_that_ship(installed):
    assert sorted(path.name for path in installed.iterdir() if path.suffix != ".dist-info") == [
        "coe", "experts", "routing_rules",
    ]  # fmt: skip
    for package in ("coe", "experts", "routing_rules"):
        shipped = {path.relative_to(installed) for path in (installed / package).rglob("*") if path.is_file()}
        kept = {path.relative_to(ROOT) for path in (ROOT / package).rglob("*") if path.is_file()}
        kept.discard(Path("routing_rules/first_look.yaml"))
        assert shipped == {path for path in kept if "__pycache__" not in path.parts}
    boards = [rules.load(path) for path in (installed / "routing_rules").glob("*.yaml")]
    assert {expert.kind for board in boards for expert in board.experts.values()} <= set(kinds.names())


@pytest.mark.slow
def test_the_tutorial_runs_in_an_empty_folder(installed, tmp_path):
    tutorial = [block for block in pages.blocks(ROOT / "docs" / "tutorial.md") if block.language == "python"]
    paths = "import sys\nsys.path[:0] = sys.argv[1].split('|')\n"
    ended = bare(installed, paths + "\n".join(block.text for block in tutorial), folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "".join(block.output for block in tutorial)


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
