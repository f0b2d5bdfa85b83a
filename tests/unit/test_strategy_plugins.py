"""A strategy is found by a name, a former name or a dotted path; whatever is wrong with one is one sentence."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from coe.errors import ConfigError
from coe.scheduler.policies.coserve import COSERVE
from coe.scheduler.strategies import LATE_BINDING, names, present_name, strategy

HASTY = replace(COSERVE, name="hasty")
"""A user's strategy, which lies in no package of ours."""
RUN = """
import sys
from coe.cli.start import bench
ended = []
for name in ("coserve", "theirs"):
    sys.argv[1:] = ["sim", "--task", "A1", "--images", "3", "--strategy", name]
    try:
        bench()
    except SystemExit as end:
        ended.append(f"{name} {end.code or 0}")
print(*ended, "torch" in sys.modules, sep=", ")
"""
PATH = f"{__name__}:HASTY"


@pytest.mark.parametrize("name", ["late-binding", "line", "coe.scheduler.strategies:LATE_BINDING"])
def test_ours_is_found_by_each_of_its_names(name):
    found = strategy(name)
    assert replace(found, name="late-binding") == LATE_BINDING
    assert strategy(found.name) == found


def test_one_of_a_user_or_of_a_package_is_found_and_named():
    assert strategy(PATH) == replace(HASTY, name=PATH)
    assert strategy(HASTY) is HASTY
    assert {"late-binding", "coserve", "samba", "narrow-minded"} <= set(names())
    assert strategy("narrow-minded").name == "narrow-minded"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("coserv", ["'coserv'", "did you mean", "'coserve'"]),
        ("", ["''", "package.module:NAME"]),
        ("no_such_package:FAST", ["no_such_package:FAST", "No module named", "PYTHONPATH"]),
        (f"{__name__}:NOBODY", ["NOBODY"]),
        (f"{__name__}:PATH", [PATH, "coe.scheduler.strategies.Strategy"]),
        ("a-b:C", ["'a-b:C'", "package.module:NAME"]),
        (3, ["strategy=3"]),
        (None, ["strategy=None"]),
    ],
)
def test_what_is_no_strategy_is_refused_in_one_sentence(name, words):
    with pytest.raises(ConfigError) as refused:
        strategy(name)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("former", "present"),
    [("line", "late-binding"), ("line-usual", "late-binding-usual"), ("linear", "linear"), ("samba", "samba")],
)
def test_names_in_files_of_earlier_versions_are_known(former, present):
    assert present_name(former) == present


def test_a_package_that_cannot_be_imported_ends_no_run_without_its_strategy(tmp_path):
    (tmp_path / "theirs-1.dist-info").mkdir()
    (tmp_path / "theirs-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (tmp_path / "theirs-1.dist-info" / "entry_points.txt").write_text("[coe.strategies]\ntheirs = theirs:NONE\n")
    (tmp_path / "theirs.py").write_text("raise RuntimeError('no licence')\n")
    said = subprocess.run(
        [sys.executable, "-c", RUN], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert said.stdout.splitlines()[-1] == "coserve 0, theirs 2, False", "a simulation starts without torch"
    assert said.stderr.count("no licence") == 1
