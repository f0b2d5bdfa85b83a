"""The demo line as a service, with boards that arrive by themselves: `make serve`.

It creates a service for the first-look board if there is none, starts `coe-serve run`, prints which page to open and
which key to use, and submits a board every few seconds until Ctrl-C.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import httpx

from coe.board import rules
from coe.pictures import finding
from coe.pictures.photographs import Photograph
from coe.serve import service_config as configs
from coe.serve.creation import CONFIG, KEYS, Wanted, create

BOARD, MEMORY, KINDS, WITHIN_S = "first_look", "25MB", ("apps.demo",), 20.0
STARTS_S = 120.0
"""Longest time until the line answers: it imports torch and prepares experts."""
_RUN = "import sys; sys.argv[0] = 'coe-serve'; from coe.cli.start import serve; serve()"


def client_of(port: int, key: str = "") -> httpx.Client:
    """Return a client of the service, with a key if one is given."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60, trust_env=False)


def boards_in(folder: Path) -> dict[str, list[Photograph]]:
    """Return the pictures of each board in a folder."""
    found, _ = finding.find(folder, rules.load(BOARD).components)
    boards: dict[str, list[Photograph]] = defaultdict(list)
    for item in found:
        boards[item.serial].append(item)
    return boards


def hand_in(feeder: httpx.Client, name: str, serial: str, items: Sequence[Photograph]) -> None:
    """Hand a board in, with its pictures; raises HTTPError if it is refused, or if nobody answers."""
    for item in items:
        content = item.path.read_bytes()
        headers = {"X-SHA256": hashlib.sha256(content).hexdigest()}
        feeder.put(f"/api/v1/boards/{name}/views/{item.refdes}", content=content, headers=headers).raise_for_status()
    views = {item.refdes: {"refdes": item.refdes, "component": item.component} for item in items}
    feeder.post(f"/api/v1/boards/{name}", json={"recipe": BOARD, "serial": serial, "views": views}).raise_for_status()


def wait_until_ready(anybody: httpx.Client, service: subprocess.Popen[bytes]) -> bool:
    """Wait until the line would decide a board; False if the service ended, or takes too long."""
    ends = time.monotonic() + STARTS_S
    while time.monotonic() < ends and service.poll() is None:
        with suppress(httpx.HTTPError):
            if anybody.get("/health/ready").is_success:
                return True
        time.sleep(0.5)
    return False


def feed(
    feeder: httpx.Client, boards: Mapping[str, Sequence[Photograph]], every_s: float, is_running: Callable[[], bool]
) -> None:
    """Hand boards in, the same ones again under new serials, until Ctrl-C, or until the service has ended."""
    begun = int(time.time())
    for number, (serial, items) in enumerate(itertools.cycle(boards.items())):
        try:
            hand_in(feeder, f"demo-{begun}-{number}", f"{serial}-{begun % 100_000}-{number}", items)
        except httpx.HTTPError as error:  # the service starts a gate again that has died
            print(f"board {number} was not accepted: {error}", flush=True)
        if not is_running():
            return
        time.sleep(every_s)


def main() -> None:
    """Make the service, run it, and feed it."""
    parser = argparse.ArgumentParser(prog="python -m apps.serve_demo.line", description=__doc__)
    parser.add_argument("--images", type=Path, default=Path("build/first-look/images"))
    parser.add_argument("--store", type=Path, default=Path("store"))
    parser.add_argument("--folder", type=Path, default=Path("build/serve"), help="folder of the service")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two boards")
    options = parser.parse_args()
    if not (options.folder / CONFIG).exists():
        create(options.folder, Wanted(BOARD, options.store, MEMORY, KINDS, options.port, WITHIN_S))
    config = configs.load(options.folder / CONFIG)
    keys = json.loads((options.folder / KEYS).read_text(encoding="utf-8"))
    port = config.listen.port
    # A shell that starts this in the background lets it ignore Ctrl-C; the service must end with it in any case.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    service = subprocess.Popen([sys.executable, "-c", _RUN, "run", str(options.folder / CONFIG)])
    try:
        if not wait_until_ready(client_of(port), service):
            raise SystemExit("the service did not start; see its messages above")
        print(f"open http://127.0.0.1:{port}/ and sign in as engineer with the key {keys['engineer']}", flush=True)
        print(f"keys of the other roles are in {options.folder / KEYS}\nCtrl-C stops it", flush=True)
        feed(client_of(port, keys["feeder"]), boards_in(options.images), options.every, lambda: service.poll() is None)
    except KeyboardInterrupt:
        pass
    finally:
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main()
