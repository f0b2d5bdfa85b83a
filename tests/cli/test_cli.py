"""The commands as a user meets them: files, exit statuses, sentences; real networks, real files."""

import json
import os
import signal
import sys

import cv2
import numpy as np
import pytest
from tiny_line import STATED

from coe.cli import experts_command as experts_cli
from coe.cli import inspect as inspect_cli
from coe.helpers import ending
from coe.results.records import ResultsFile
from coe.store import kinds, runnable_kinds
from coe.store.store import Store


def run(main, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["command", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.fixture
def folder(tmp_path):
    """Two boards of six images; the B of SN2 is cut off, one file has an unknown component, one is no image."""
    chance = np.random.default_rng(3)
    for serial in ("SN1", "SN2"):
        (tmp_path / "images" / serial).mkdir(parents=True)
        for index, component in enumerate("AABBCC"):
            pixels = chance.integers(0, 255, (60, 60, 3), dtype=np.uint8)
            cv2.imwrite(str(tmp_path / "images" / serial / f"R{index}__{component}.png"), pixels)
    return tmp_path / "images"


@pytest.fixture
def inspect(tiny, folder, tmp_path, monkeypatch):
    board, store = tiny

    def command(*more, out="out"):
        return run(
            inspect_cli.main,
            monkeypatch,
            *("--board", board, "--images", folder, "--store", store, "--out", tmp_path / out, "--memory", "13MB"),
            *more,
        )

    return command


def rows(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def test_boards_that_are_late_are_named_and_counted(inspect, tmp_path, capsys):
    assert inspect("--strategy", "late-binding", "--within", "1ms", "--max-wait", "1min") in (0, 1)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["late"], summary["late_boards"]) == (12, ["SN1", "SN2"])
    assert all(row["late"] for row in rows(tmp_path / "out"))
    said = capsys.readouterr()
    assert ("late: SN1 " in said.err, "late: SN2 " in said.err) == (True, True)
    assert "late: 12 results after the due time, of 2 boards" in said.out


def test_a_run_leaves_all_its_files(inspect, tmp_path, capsys):
    assert inspect() in (0, 1)
    out = tmp_path / "out"
    found = rows(out)
    assert len(found) == 12
    assert set(found[0]) == {
        "image", "board", "serial", "component", "refdes", "verdict", "findings", "latency_s", "late", "error",
        "failure", "taken",
    }  # fmt: skip
    assert found[0]["image"] == "SN1/R0__A.png"
    assert set(found[0]["findings"][0]) == {"expert", "variant", "label", "score", "boxes"}
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert summary["images"] == 12 == summary["ok"] + summary["ng"] + summary["review"]
    assert 0 < summary["peak_reserved_bytes"] <= 100_000_000
    assert (out / "results.csv").read_text(encoding="utf-8").count("\n") == 13
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    said = capsys.readouterr().out
    assert ("SN1" in said, "report" in said) == (True, True)


def test_the_precision_is_said_and_written(inspect, tmp_path, capsys):
    assert inspect("--precision", "mixed") in (0, 1)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert (summary["precision"], summary["escalated"]) == ("mixed", 0)
    assert summary["findings"] == sum(len(row["findings"]) for row in rows(tmp_path / "out"))
    said = capsys.readouterr()
    assert "4 run in fp32 alone (coe-experts prepare makes more, or says why not)" in " ".join(said.err.split())
    assert f"precision mixed: 0 of {summary['findings']} findings were run again in fp32, 0 changed" in said.out


def test_bad_images_get_a_result_and_exit_status_3(inspect, folder, tmp_path, capsys):
    whole = (folder / "SN2" / "R2__B.png").read_bytes()
    (folder / "SN2" / "R2__B.png").write_bytes(whole[: len(whole) // 2])
    (folder / "SN2" / "R9__AB.png").write_bytes(whole)
    (folder / "SN2" / "notes.txt").write_text("not an image")
    assert inspect("--json") == 3
    errors = {row["image"]: row["error"] for row in rows(tmp_path / "out") if row["error"]}
    assert set(errors) == {"SN2/R2__B.png", "SN2/R9__AB.png"}
    assert "truncated" in errors["SN2/R2__B.png"]
    assert "'AB' is not a component" in errors["SN2/R9__AB.png"]
    summary = json.loads(capsys.readouterr().out)
    assert summary["errors"] == 2
    assert summary["boards"]["SN2"] != "OK"


def test_resume_does_only_what_is_missing_and_ends_the_same(inspect, tmp_path):
    inspect(out="whole")
    inspect(out="torn")
    path = tmp_path / "torn" / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:5]) + lines[5][:20], encoding="utf-8")
    assert inspect("--resume", out="torn") in (0, 1)

    def told(out):
        return [{**row, "latency_s": 0} for row in rows(tmp_path / out)]

    assert told("torn") == told("whole")
    assert path.read_text(encoding="utf-8").splitlines(keepends=True)[:5] == lines[:5]


def test_max_errors_stops_the_run(inspect, folder, tmp_path, capsys):
    for path in list(folder.rglob("*__B.png")):
        path.write_bytes(b"")
    assert inspect("--max-errors", "0") == 3
    assert "--resume" in capsys.readouterr().err
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["errors"] >= 1


def _many(folder):
    pixels = (folder / "SN1" / "R0__A.png").read_bytes()
    (folder / "SN3").mkdir()
    for index in range(240):
        (folder / "SN3" / f"R{index}__{'ABC'[index % 3]}.png").write_bytes(pixels)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_the_report_and_says_how_to_go_on(folder, tmp_path, inspect, monkeypatch, capsys, number):
    """It comes twice, as from `timeout`, which sends it to its child and to the group of that."""
    _many(folder)
    write, written = ResultsFile.write, []

    def write_and_interrupt(self, result, *of):
        write(self, result, *of)
        written.append(result)
        if len(written) == 5:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(ending, "SAME_SIGNAL_S", 1e9)
        patch.setattr(ResultsFile, "write", write_and_interrupt)
        assert inspect() == 130
    said = capsys.readouterr().err
    assert ("--resume" in said, "Traceback" in said) == (True, False)
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert summary["interrupted"] is True
    assert summary["errors"] == 0
    assert 5 <= summary["images"] < 252
    assert (tmp_path / "out" / "report.html").exists()


def test_experts_are_listed_shown_and_verified(own_tiny, monkeypatch, capsys):
    _, store = own_tiny
    run(experts_cli.main, monkeypatch, "list", "--store", store)
    assert "tiny/joint" in capsys.readouterr().out
    run(experts_cli.main, monkeypatch, "show", "tiny/joint", "--store", store)
    assert json.loads(capsys.readouterr().out)["kind"] == "narrow_boxes"
    assert run(experts_cli.main, monkeypatch, "verify", "--store", store) == 0
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "resolve", lambda name, allowed=(): runnable_kinds.resolve("no.such:KIND"))
        assert run(experts_cli.main, monkeypatch, "verify", "tiny/joint", "--store", store) == 1
    assert ("0 sound, 0 damaged, 1 of" in (said := capsys.readouterr()).out, "no.such:KIND" in said.err) == (True, True)
    weights = store / "tiny" / "joint" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert run(experts_cli.main, monkeypatch, "verify", "--store", store) == 1
    assert capsys.readouterr().err.count("tiny/joint") == 1


def test_an_unproven_expert_is_said_wherever_it_is_met(own_tiny, folder, tmp_path, monkeypatch, capsys):
    board, root = own_tiny
    store = Store(root)
    with store.changing("tiny/joint") as manifest:
        store.rewrite(manifest.model_copy(update={"unproven": "it finds 0 of 9 held-out objects"}))
    for command in ("list", "verify"):
        assert run(experts_cli.main, monkeypatch, command, "--store", root) == 0
        said = capsys.readouterr()
        assert (said.out + said.err).count("unproven") == 1
    out = tmp_path / "out"
    options = ("--board", board, "--images", folder, "--store", root, "--out", out, "--memory", "13MB")
    run(inspect_cli.main, monkeypatch, *options)
    said, sentence = capsys.readouterr(), "expert 'joint' is unproven: it finds 0 of 9 held-out objects"
    assert f"warning: {sentence}" in " ".join(said.err.split())
    assert f"warning: {sentence}" in said.out
    assert sentence in json.loads((out / "summary.json").read_text(encoding="utf-8"))["warnings"]
    assert "is unproven: it finds 0 of 9" in (out / "report.html").read_text(encoding="utf-8")


def test_synthetic_experts_share_files_and_run(own_tiny, tmp_path, monkeypatch):
    board, _ = own_tiny
    store = tmp_path / "synthetic"
    assert run(experts_cli.main, monkeypatch, "synth", "--board", board, "--files", 1, "--store", store) == 0
    files = [path.stat().st_ino for path in store.rglob("weights.safetensors")]
    assert (len(files), len(set(files))) == (4, 2)


def test_a_state_dict_is_imported_and_a_pickle_is_not(tmp_path, monkeypatch, capsys):
    import pickle

    import torch

    from coe.core import Expert
    from coe.store import kinds

    expert = Expert("x", "narrow", ("ok", "bad"), 48, "t/x")
    torch.save(kinds.resolve("narrow").skeleton(expert).state_dict(), tmp_path / "good.pt")
    options = ("--kind", "narrow", "--labels", "ok,bad", "--input", "48", "--store", tmp_path / "store", *STATED)
    assert run(experts_cli.main, monkeypatch, "import", "t/x", tmp_path / "good.pt", *options) == 0
    assert run(experts_cli.main, monkeypatch, "verify", "t/x", "--store", tmp_path / "store") == 0

    class Evil:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'ran'}",)

    with (tmp_path / "evil.pt").open("wb") as file:
        pickle.dump(Evil(), file)
    assert run(experts_cli.main, monkeypatch, "import", "t/y", tmp_path / "evil.pt", *options) == 2
    assert not (tmp_path / "ran").exists()
    assert "Traceback" not in capsys.readouterr().err


def test_a_classifier_is_trained_from_a_labelled_folder(tmp_path, monkeypatch):
    chance = np.random.default_rng(0)
    for label, level in (("dark", 40), ("light", 200)):
        (tmp_path / "data" / label).mkdir(parents=True)
        for index in range(20):
            pixels = np.clip(chance.normal(level, 20, (40, 40, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "data" / label / f"{index}.png"), pixels)
    (tmp_path / "data" / "light").rename(tmp_path / "elsewhere")
    (tmp_path / "data" / "light").symlink_to(tmp_path / "elsewhere")  # as people collect data sets
    options = ("--kind", "narrow", "--input", "32", "--epochs", "2", "--batch", "8", "--threads", "1")
    store = tmp_path / "store"
    status = run(
        experts_cli.main, monkeypatch, "train", "t/light", "--data", tmp_path / "data", *options, "--store", store
    )
    assert status == 0
    manifest = json.loads((store / "t" / "light" / "manifest.json").read_text(encoding="utf-8"))
    assert (manifest["labels"], manifest["metrics"]["held_out"]) == (["dark", "light"], 8)
    assert 0 <= manifest["metrics"]["accuracy"] <= 1
    # Prepared on pictures that it was trained with, by itself.
    assert {name: one["agreement"]["images"] for name, one in manifest["variants"].items()} == dict.fromkeys(
        ("fp32", "q8", "int8"), 32
    )
