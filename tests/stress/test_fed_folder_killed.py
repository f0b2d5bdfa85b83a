"""Three writers, a share that vanishes, a gate that is killed: the service takes each picture once, and whole."""

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise

import cv2
import numpy as np
import yaml
from lamp import lamp_board

from coe.serve.database import board_rows, states, views
from coe.serve.database.connecting import open_database
from coe.serve.enums import Process

BOARDS, PLACES, KILLS, VANISHES = 120, 5, 6, 3
SHARE = threading.Lock()
"""Held by a writer while it writes a piece, and by whoever takes the share away."""


def write_boards(folder, number, seed, written):
    """Write every third board, in slow pieces, into reserved files and under the names of uploads."""
    chance = random.Random(seed)
    for board in range(number, BOARDS, 3):
        for place in range(PLACES):
            ending = chance.choice((".png", ".jpg", ".bmp", ".tif"))
            noise = np.frombuffer(chance.randbytes(48 * 48 * 3), np.uint8).reshape(48, 48, 3) // 16
            flags = [cv2.IMWRITE_TIFF_COMPRESSION, 1] if ending == ".tif" else []
            data = cv2.imencode(ending, noise + np.uint8(chance.choice((1, 235))), flags)[1].tobytes()
            written.add(hashlib.sha256(data).hexdigest())
            path = folder / f"Bräd {board}" / f"R{place}__L{ending}"
            upload = path if chance.random() < 0.6 else path.with_name(f"{path.name}.part")
            with SHARE:
                path.parent.mkdir(exist_ok=True)
                upload.write_bytes(b"")
                if chance.random() < 0.4:
                    os.truncate(upload, len(data))
            for begin, end in pairwise((0, len(data) // 3, len(data) - chance.choice((64, 200, 400)), len(data))):
                time.sleep(1.2 if chance.random() < 0.03 else chance.uniform(0, 0.03))
                with SHARE, upload.open("r+b") as file:
                    file.seek(begin)
                    file.write(data[begin:end])
            if upload != path:
                with SHARE:
                    os.replace(upload, path)


def kill_gate(database):
    beat = database.read(states.heartbeats).get(Process.WEB)
    if beat is not None and beat.pid:
        with suppress(ProcessLookupError):  # it is being started again
            os.kill(beat.pid, signal.SIGKILL)


def test_each_picture_is_handed_in_once(tmp_path, chance):
    into, done, away = tmp_path / "in", tmp_path / "done", tmp_path / "away"
    into.mkdir()
    rules, store = lamp_board(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    serve = [sys.executable, "-c", "from coe.cli.start import serve; serve()"]
    board = ["--board", str(rules), "--store", str(store), "--memory", "100MB"]
    subprocess.run([*serve, "init", str(tmp_path / "line"), *board], env=environment, check=True)
    config = tmp_path / "line" / "serve.yaml"
    folder = {"path": str(into), "done": str(done), "recipe": "lamps", "settle_s": 0.5, "quiet_s": 3}
    settings = yaml.safe_load(config.read_text()) | {"listen": {"port": 0}, "folders": {"camera": folder}}
    config.write_text(yaml.safe_dump(settings), encoding="utf-8")
    written = set()
    writers = [
        threading.Thread(target=write_boards, args=(into, number, f"{chance.random()}", written)) for number in range(3)
    ]
    service = subprocess.Popen([*serve, "run", str(config)], env=environment)
    database = open_database(f"sqlite:///{tmp_path}/line/data/serve.db")
    try:
        for writer in writers:
            writer.start()
        kills = vanishes = 0
        while any(writer.is_alive() for writer in writers) or kills < KILLS:
            time.sleep(chance.uniform(2, 4))
            if vanishes < VANISHES:
                vanishes += 1
                with SHARE:
                    os.replace(into, away)
                    time.sleep(chance.uniform(1, 5))
                    os.replace(away, into)
            if kills < KILLS:
                kills += 1
                kill_gate(database)
        until_s = time.monotonic() + 300
        while any(path.is_file() for path in into.rglob("[!.]*")) and time.monotonic() < until_s:
            time.sleep(1)
        with database.reading() as connection:
            boards = board_rows.newest(connection, limit=10 * BOARDS)
            taken = [view.sha256 for board in boards for view in views.of_board(connection, board.key)]
    finally:
        service.terminate()
        service.wait()
        database.close()
    assert len(taken) == len(set(taken)) == BOARDS * PLACES
    assert set(taken) == written, "none is torn, and none is lost"
    assert sum(path.is_file() for path in done.rglob("*")) == len(taken)
