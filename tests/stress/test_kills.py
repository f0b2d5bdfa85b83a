"""A run that is killed again and again, and gone on with each time, ends with the results of a run that was not."""

import json
import os
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

KILLS = 50


@pytest.fixture
def folder(tmp_path, chance):
    for number in range(2400):
        board = tmp_path / "images" / f"SN{number // 12}"
        board.mkdir(parents=True, exist_ok=True)
        pixels = np.frombuffer(chance.randbytes(40 * 40 * 3), np.uint8).reshape(40, 40, 3)
        path = board / f"R{number % 12}__{'ABC'[number % 3]}.png"
        cv2.imwrite(str(path), pixels)
        if number % 50 == 7:
            path.write_bytes(path.read_bytes()[:100])
    return tmp_path / "images"


def rows(out):
    """Give the rows by image, without what a clock decides; each image must be there once."""
    found = {}
    for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        del row["latency_s"]
        for finding in row["findings"]:
            # Sums of a batch of another size differ in the last digits.
            finding["score"] = round(finding["score"], 3)
        assert row["image"] not in found
        found[row["image"]] = row
    return found


def same(one, other):
    """Tell whether two rows say the same: verdict, labels and error exactly, scores but for a thousandth."""
    scores = zip(one.pop("findings"), other.pop("findings"), strict=True)
    return one == other and all(
        a["label"] == b["label"] and abs(a["score"] - b["score"]) <= 2e-3 and len(a["boxes"]) == len(b["boxes"])
        for a, b in scores
    )


def test_a_run_that_is_killed_fifty_times_ends_like_one_that_was_not(tiny, folder, tmp_path, chance):
    board, store = tiny
    command = [
        *(
            sys.executable,
            "-c",
            "from coe.cli.start import inspect; inspect()",
            "--board",
            str(board),
            "--images",
            str(folder),
        ),
        *("--store", str(store), "--memory", "75MB", "--profile", "none", "--quiet"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    whole = subprocess.run([*command, "--out", str(tmp_path / "whole")], env=environment, check=False)
    assert whole.returncode == 3
    out, killed = tmp_path / "out", 0
    while killed < KILLS:
        more = ["--resume"] if out.exists() else []
        process = subprocess.Popen([*command, "--out", str(out), *more], env=environment)
        _wait_for_work(process, out, chance)
        process.send_signal(signal.SIGKILL)
        if process.wait() != -signal.SIGKILL:
            break
        killed += 1
        if out.is_dir() and chance.random() < 0.3 and len(done := (out / "results.jsonl").read_bytes()) > 100:
            # A power cut may also take what was not on the disk yet: the tail of the file.
            (out / "results.jsonl").write_bytes(done[: len(done) - chance.randrange(0, 100)])
    ended = subprocess.run([*command, "--out", str(out), "--resume"], env=environment, check=False)
    assert ended.returncode == 3
    print(f"{killed} kills")
    assert killed >= KILLS // 2, "the run ended before it was killed often enough to tell"
    expected, found = rows(tmp_path / "whole"), rows(out)
    assert expected.keys() == found.keys()
    assert [name for name, row in expected.items() if not same(row, found[name])] == []
    summaries = [
        json.loads((place / "summary.json").read_text(encoding="utf-8")) for place in (tmp_path / "whole", out)
    ]
    for part in ("images", "ok", "ng", "review", "errors", "missing", "boards", "components"):
        assert summaries[0][part] == summaries[1][part]


def _wait_for_work(process, out, chance):
    """Wait until the process has written some more results, or for some other moment of its life."""
    if chance.random() < 0.2:
        time.sleep(chance.uniform(0.0, 4.0))
        return
    results = out / "results.jsonl"
    before = results.stat().st_size if results.exists() else 0
    wanted = before + chance.randrange(1, 12_000)
    until = time.monotonic() + 60.0
    while process.poll() is None and time.monotonic() < until:
        if results.exists() and results.stat().st_size >= wanted:
            return
        time.sleep(0.005)
