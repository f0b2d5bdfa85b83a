"""Lines of commands that cannot work: the rows of wrong_lines.yaml."""

import shlex
from pathlib import Path

import pytest
import yaml
from picture_folders import encoded, write

from coe.cli import experts_command, inspect, profile_command
from coe.lab.cli import bench

COMMANDS = {"inspect": inspect, "profile": profile_command, "experts": experts_command, "bench": bench}
TABLE = yaml.safe_load(Path(__file__).with_name("wrong_lines.yaml").read_text(encoding="utf-8"))
ROWS = [pytest.param(name, line, words, id=f"{name} {line}") for name in TABLE for line, words in TABLE[name].items()]


@pytest.mark.parametrize(("name", "line", "words"), ROWS)
def test_a_line_that_cannot_work_is_one_sentence(tiny, tmp_path, monkeypatch, call, name, line, words):
    write(tmp_path / "images" / "C" / "a.png", encoded())
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    stated = {
        "rest": "--images {images} --store {store}",
        **{"board": str(tiny[0]), "store": str(tiny[1]), "images": str(tmp_path / "images")},
        **{"long": "x" * 300, "path": "t/" * 3000, "digits": "9" * 5000},
    }
    for word, text in stated.items():
        line = line.replace(f"{{{word}}}", text)
    said = call(*shlex.split(line), command=COMMANDS[name])
    assert (said.status, said.out) == (2, "")
    assert words in said.words
    assert said.err.count("error:") + said.err.count("─ Error ─") == 1
    assert "Traceback" not in said.err
    assert len(said.words) < 1000
    assert not list((tmp_path / "work").rglob("summary.json"))
