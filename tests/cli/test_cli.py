"""The commands as a user meets them: files, exit statuses, sentences; real networks, real files."""

import json
import os
import signal

import cv2
import numpy as np
import pytest

from coe.cli import experts_command
from coe.cli import inspect as inspect_cli
from coe.helpers import ending
from coe.results.records import ResultsFile
from coe.store import kinds, runnable_kinds
from coe.store.store import Store


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
def inspect(tiny, folder, tmp_path, call):
    board, store = tiny
    given = ("--board", board, "--images", folder, "--store", store, "--out", tmp_path / "out", "--memory", "13MB")
    return lambda *more: call(*given, *more, command=inspect_cli)


def rows(folder):
    return [json.loads(line) for line in (folder / "out" / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def summary_of(folder):
    return json.loads((folder / "out" / "summary.json").read_text(encoding="utf-8"))


def test_boards_that_are_late_are_named_and_counted(inspect, tmp_path):
    said = inspect("--strategy", "late-binding", "--within", "1ms", "--max-wait", "1min")
    assert said.status in (0, 1)
    summary = summary_of(tmp_path)
    assert (summary["late"], summary["late_boards"]) == (12, ["SN1", "SN2"])
    assert all(row["late"] for row in rows(tmp_path))
    assert ("late: SN1 " in said.err, "late: SN2 " in said.err, "late: 12 " in said.out) == (True, True, True)


def test_a_run_leaves_all_its_files_which_say_its_precision(inspect, tmp_path):
    said = inspect("--precision", "mixed")
    assert said.status in (0, 1)
    out, found, summary = tmp_path / "out", rows(tmp_path), summary_of(tmp_path)
    assert len(found) == 12
    assert set(found[0]) == {
        "image", "board", "serial", "component", "refdes", "verdict", "findings", "latency_s", "late", "error",
        "failure", "taken",
    }  # fmt: skip
    assert found[0]["image"] == "SN1/R0__A.png"
    assert set(found[0]["findings"][0]) == {"expert", "variant", "label", "score", "boxes"}
    assert summary["images"] == 12 == summary["ok"] + summary["ng"] + summary["review"]
    assert 0 < summary["peak_reserved_bytes"] <= 100_000_000
    assert (summary["precision"], summary["escalated"]) == ("mixed", 0)
    assert summary["findings"] == sum(len(row["findings"]) for row in found)
    assert (out / "results.csv").read_text(encoding="utf-8").count("\n") == 13
    assert "<html" in (out / "report.html").read_text(encoding="utf-8")
    assert ("4 run in fp32 alone" in said.words, "SN1" in said.out, "report" in said.out) == (True, True, True)
    assert f"precision mixed: 0 of {summary['findings']} " in said.out


def test_bad_images_get_a_result_and_exit_status_3(inspect, folder, tmp_path):
    whole = (folder / "SN2" / "R2__B.png").read_bytes()
    (folder / "SN2" / "R2__B.png").write_bytes(whole[: len(whole) // 2])
    (folder / "SN2" / "R9__AB.png").write_bytes(whole)
    (folder / "SN2" / "notes.txt").write_text("not an image")
    said = inspect("--json")
    errors = {row["image"]: row["error"] for row in rows(tmp_path) if row["error"]}
    assert (said.status, set(errors)) == (3, {"SN2/R2__B.png", "SN2/R9__AB.png"})
    assert ("R2__B.png" in said.words, "R9__AB.png" in said.words) == (True, True), "also where nothing else is shown"
    assert ("truncated" in errors["SN2/R2__B.png"], "'AB'" in errors["SN2/R9__AB.png"]) == (True, True)
    summary = json.loads(said.out)
    assert (summary["errors"], summary["boards"]["SN2"] != "OK") == (2, True)


def test_max_errors_stops_the_run(inspect, folder, tmp_path):
    for path in list(folder.rglob("*__B.png")):
        path.write_bytes(b"")
    said = inspect("--max-errors", "0")
    assert (said.status, "--resume" in said.err, summary_of(tmp_path)["errors"] >= 1) == (3, True, True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_the_report_and_says_how_to_go_on(folder, tmp_path, inspect, monkeypatch, number):
    """It comes twice, as from `timeout`, which sends it to its child and to the group of that."""
    pixels = (folder / "SN1" / "R0__A.png").read_bytes()
    (folder / "SN3").mkdir()
    for index in range(240):
        (folder / "SN3" / f"R{index}__{'ABC'[index % 3]}.png").write_bytes(pixels)
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
        said = inspect()
    assert (said.status, "--resume" in said.err, "Traceback" in said.err) == (130, True, False)
    summary = summary_of(tmp_path)
    assert (summary["interrupted"], summary["errors"]) == (True, 0)
    assert 5 <= summary["images"] < 252
    assert (tmp_path / "out" / "report.html").exists()


def test_experts_are_listed_shown_and_verified(own_tiny, monkeypatch, call):
    _, store = own_tiny

    def experts(*words):
        return call(*words, "--store", store, command=experts_command)

    assert "tiny/joint" in experts("list").out
    assert json.loads(experts("show", "tiny/joint").out)["kind"] == "narrow_boxes"
    assert experts("verify").status == 0
    with monkeypatch.context() as patch:
        patch.setattr(kinds, "resolve", lambda name, allowed=(): runnable_kinds.resolve("no.such:KIND"))
        said = experts("verify", "tiny/joint")
    assert (said.status, "0 sound, 0 damaged, 1 of" in said.out, "no.such:KIND" in said.err) == (1, True, True)
    weights = store / "tiny" / "joint" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    said = experts("verify")
    assert (said.status, said.err.count("tiny/joint")) == (1, 1)


def test_an_unproven_expert_is_said_wherever_it_is_met(own_tiny, folder, tmp_path, call):
    board, root = own_tiny
    store, reason = Store(root), "it finds 0 of 9 held-out objects"
    with store.changing("tiny/joint") as manifest:
        store.rewrite(manifest.model_copy(update={"unproven": reason}))
    for command in ("list", "verify"):
        said = call(command, "--store", root, command=experts_command)
        assert (said.status, (said.out + said.err).count("unproven")) == (0, 1)
    options = ("--board", board, "--images", folder, "--store", root, "--out", tmp_path / "out", "--memory", "13MB")
    said = call(*options, command=inspect_cli)
    (warning,) = [one for one in summary_of(tmp_path)["warnings"] if reason in one]
    assert "'joint'" in warning
    assert (warning in said.words, warning in said.out) == (True, True)
    assert reason in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")


def test_synthetic_experts_share_files_and_run(own_tiny, tmp_path, call):
    store = tmp_path / "synthetic"
    assert call("synth", "--board", own_tiny[0], "--files", 1, "--store", store, command=experts_command).status == 0
    files = [path.stat().st_ino for path in store.rglob("weights.safetensors")]
    assert (len(files), len(set(files))) == (4, 2)


def test_a_classifier_is_trained_from_a_labelled_folder(tmp_path, call):
    chance = np.random.default_rng(0)
    for label, level in (("dark", 40), ("light", 200)):
        (tmp_path / "data" / label).mkdir(parents=True)
        for index in range(20):
            pixels = np.clip(chance.normal(level, 20, (40, 40, 3)), 0, 255).astype(np.uint8)
            cv2.imwrite(str(tmp_path / "data" / label / f"{index}.png"), pixels)
    (tmp_path / "data" / "light").rename(tmp_path / "elsewhere")
    (tmp_path / "data" / "light").symlink_to(tmp_path / "elsewhere")  # as people collect data sets
    options = ("--kind", "narrow", "--input", "32", "--epochs", "2", "--batch", "8", "--threads", "1")
    given = ("train", "t/light", "--data", tmp_path / "data", *options, "--store", tmp_path / "store")
    assert call(*given, command=experts_command).status == 0
    manifest = Store(tmp_path / "store").manifest("t/light")
    assert (manifest.labels, manifest.metrics["held_out"]) == (("dark", "light"), 8)
    assert 0 <= manifest.metrics["accuracy"] <= 1
    # Prepared on pictures that it was trained with, by itself.
    assert {name: one.agreement.images for name, one in manifest.variants.items()} == {"fp32": 32, "q8": 32, "int8": 32}
