"""What ships runs on a system without `fcntl`, `resource`, `/proc`, a nameless C library and descriptors of folders."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import portable_run
import pytest

from coe.core import Verdict
from coe.results.records import read

ROOT = Path(__file__).parents[2]


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
