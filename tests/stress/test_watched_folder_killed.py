"""5,000 pictures from three writers, a share that vanishes, a killed watcher: one verdict each, of a whole file.

A bright picture that is half written is dark, and so its verdict would be another one than that which its writer noted.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import cv2
import numpy as np
from lamp import lamp_board

PICTURES, KILLS, AWAY_S = 5000, 10, 60.0
ENDINGS = (".png", ".jpg", ".bmp", ".tif")
SHARE = threading.Lock()
"""Held by a writer while it writes a piece, and by whoever takes the share away."""


def content(chance, ending):
    """Give a picture that is bright or dark, and its verdict."""
    bright = chance.random() < 0.7
    noise = np.frombuffer(chance.randbytes(40 * 40 * 3), np.uint8).reshape(40, 40, 3) // 16
    flags = [cv2.IMWRITE_TIFF_COMPRESSION, 1] if ending == ".tif" else []
    done, data = cv2.imencode(ending, noise + np.uint8(235 if bright else 1), flags)
    assert done
    return data.tobytes(), "OK" if bright else "NG"


class Writer(threading.Thread):
    """Writes every third picture in a way of its own, some of them twice, and notes the last verdict of each."""

    def __init__(self, number, folder, seed):
        super().__init__()
        self.number, self.folder, self.chance = number, folder, random.Random(seed)
        self.verdicts = {}
        self.error = None

    def run(self):
        try:
            for index in range(self.number, PICTURES, 3):
                name = f"SN{index // 10}/R{index % 10}__L{self.chance.choice(ENDINGS)}"
                self.write(name)
                if self.chance.random() < 0.03:
                    self.write(name)  # taken again
        except BaseException as error:
            self.error = error

    def write(self, name):
        data, self.verdicts[name] = content(self.chance, Path(name).suffix)
        path = self.folder / name
        if self.number == 2:
            upload = (
                path.with_name(path.name + ".part") if self.chance.random() < 0.5 else path.with_name("." + path.name)
            )
            self.pieces(upload, data, reserve=self.chance.random() < 0.5)
            with SHARE:
                os.replace(upload, path)
        else:
            # As cameras do: a picture that is taken again is a new file.
            with SHARE:
                path.unlink(missing_ok=True)
            self.pieces(path, data, reserve=self.number == 1)

    def pieces(self, path, data, *, reserve):
        """Write a file in three pieces, now and then with a pause in which it stands still for long."""
        with SHARE:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"")
            if reserve:
                os.truncate(path, len(data))
        cuts = [0, *sorted(self.chance.sample(range(1, len(data)), 2)), len(data)]
        for begin, end in pairwise(cuts):
            time.sleep(1.5 if self.chance.random() < 0.01 else self.chance.uniform(0, 0.02))
            with SHARE, path.open("r+b") as file:
                file.seek(begin)
                file.write(data[begin:end])


def test_each_picture_has_one_verdict_and_none_is_of_a_torn_file(tmp_path, chance):
    into, away, out, done = (tmp_path / name for name in ("share", "away", "out", "done"))
    into.mkdir()
    board, store = lamp_board(tmp_path)
    command = [
        *(sys.executable, "-c", "from coe.cli.start import inspect; inspect()", "--board", str(board)),
        *("--watch", str(into), "--out", str(out), "--done", str(done), "--settle", "0.5", "--quiet-time", "3"),
        *("--store", str(store), "--memory", "100MB", "--profile", "none", "--quiet"),
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    writers = [Writer(number, into, f"{chance.random()}") for number in range(3)]
    for writer in writers:
        writer.start()
    kills, vanished = 0, False
    process = subprocess.Popen(command, env=environment)
    while any(writer.is_alive() for writer in writers) or kills < KILLS:
        time.sleep(chance.uniform(2, 6))
        assert process.poll() is None, "the watcher goes on, whatever comes"
        if not vanished and out.exists():
            vanished = True
            with SHARE:  # a writer on a share that is away stands still, too
                os.replace(into, away)
                time.sleep(AWAY_S)
                os.replace(away, into)
        if kills < KILLS:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            process = subprocess.Popen(command, env=environment)
    assert [writer.error for writer in writers] == [None, None, None]
    process.send_signal(signal.SIGKILL)
    process.wait()
    ended = subprocess.run([*command, "--until-idle", "5s"], env=environment, check=False)
    assert ended.returncode == 1
    expected = {name: verdict for writer in writers for name, verdict in writer.verdicts.items()}
    rows = [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {row["image"]: row["verdict"] for row in rows}
    assert len(rows) == len(found) == PICTURES == len(expected)
    assert found == expected
    assert not [path for path in into.rglob("*") if path.is_file()], "all is moved"
    boards = {row["serial"]: row for row in map(json.loads, (out / "boards.jsonl").read_text().splitlines())}
    assert {serial: board["pictures"] for serial, board in boards.items()} == {
        f"SN{number}": 10 for number in range(PICTURES // 10)
    }
    for serial, board in boards.items():
        of_board = {verdict for name, verdict in expected.items() if name.startswith(f"{serial}/")}
        assert board["verdict"] == ("NG" if "NG" in of_board else "OK")
