"""`coe-bench serve`: its figures, and that each part runs against a real gate and a real line."""

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from quick_line import QuickDevice
from serving import Served, png
from stations import LIGHT, deciding, quick_opener
from tiny_line import Call

from coe.board import rules
from coe.lab.workloads import synthetic
from coe.pictures.found_image import FoundImage
from coe.serve import failpoints
from coe.serve.benchmark import benchmark_boards, past_boards, steady_pace
from coe.serve.benchmark.benchmark_boards import Heard
from coe.serve.benchmark.benchmark_figures import Aim, Measured, Part, times_ms
from coe.serve.benchmark.processes import Stamps
from coe.serve.benchmark.running import Client, Service
from coe.serve.benchmark.steady_pace import BoardPace, Sample
from coe.serve.clock import now_us
from coe.serve.database import audit, recipe_versions
from coe.serve.database.hourly import Window, board_counts


def sample(at_s: float, rss: int, fds: int = 40) -> Sample:
    sizes = {
        "gate: memory": rss,
        "gate: descriptors": fds,
        steady_pace.LOG: 4_000_000,
        steady_pace.DATABASE: 10_000_000,
    }
    return Sample(at_s, {**sizes, steady_pace.ROWS: int(at_s), steady_pace.WAITING: 1})


def test_a_slope_leaves_the_first_third_out() -> None:
    # 100 MB at the start, and from a third of the hour on 10 MB more each hour.
    sizes = [50_000_000 if minute < 20 else 100_000_000 + minute * 10**7 // 60 for minute in range(61)]
    samples = [sample(60.0 * minute, size) for minute, size in enumerate(sizes)]
    found = steady_pace.slope(samples, "gate: memory")
    assert found.per_hour == pytest.approx(1e7, rel=1e-3)
    assert found.grows


def test_noise_is_no_growth() -> None:
    samples = [sample(60.0 * minute, 100_000_000 + minute % 2 * 10**6) for minute in range(61)]
    assert not steady_pace.slope(samples, "gate: memory").grows
    figures = {one.name: one for one in steady_pace.verdicts(samples, 10, 0)}
    assert figures["gate: memory"].is_met
    assert figures["boards without exactly one decision"].is_met
    assert figures["rows"].value == pytest.approx(3600)
    leaking = [sample(60.0 * minute, 10**8 + minute * 10**6, 40 + minute) for minute in range(61)]
    figures = {one.name: one for one in steady_pace.verdicts(leaking, 10, 1)}
    assert [figures[name].is_met for name in ("gate: memory", "gate: descriptors")] == [False, False]
    assert figures["boards without exactly one decision"].is_met is False


def test_goals_are_upper_bounds_unless_they_say_otherwise() -> None:
    for goal, met in ((Aim(5), [True, True, False]), (Aim(5, at_least=True), [False, True, True])):
        assert [Measured(Part.PAGES, "/", value, "ms", 1, goal).is_met for value in (4, 5, 6)] == met
    assert Measured(Part.PAGES, "/", 1, "ms", 1).is_met is None
    median, worst = times_ms(Part.INTAKE, "x", [0.001] * 50 + [0.2] * 50, 150)
    assert (median.goal, worst.is_met) == (None, False)


def test_a_history_is_one_that_the_service_could_have_written(served: Served) -> None:
    (recipe,) = served.database.read(recipe_versions.all_active)
    past_boards.fill(served.database, recipe.id, ["A", "B"], 50, now_us())
    with served.database.reading() as connection:
        assert audit.prove(connection).broken_id is None
        counted = board_counts(connection, Window(0, now_us() + 1))
    assert sum(one.boards for one in counted) == 49  # one in fifty is a second pass


@pytest.fixture
def measured(served: Served, tiny: tuple[Path, Path], tmp_path: Path) -> Iterator[Service]:
    """A gate and a line in this process, as the benchmark sees them."""
    stamps = tmp_path / "stamps.txt"
    writer = Stamps(stamps)
    port = int(served.address.rpartition(":")[2])
    listen = served.gate.config.listen.model_copy(update={"port": port})
    config = served.gate.config.model_copy(update={"listen": listen, "station": "tiny"})
    keys = {
        role: client.headers["Authorization"].removeprefix("Bearer ")
        for role, client in (("feeder", served.feeder), ("operator", served.operator), ("admin", served.admin))
    }
    failpoints.hook = writer.reached
    opener = quick_opener(tiny, QuickDevice(), watchers=[writer])
    try:
        with deciding(served.gate.config, served.database, opener):
            service = Service(config, keys, stamps, psutil.Process())
            yield service
            service.database.close()
    finally:
        failpoints.hook = lambda point: None
        writer.close()


def test_each_part_measures_a_running_service(measured: Service, served: Served, tmp_path: Path) -> None:
    path = tmp_path / "part.png"
    path.write_bytes(LIGHT)
    pictures = [FoundImage(path, "C")]
    past_boards.fill(served.database, 1, ["C"], 20, now_us())
    figures = [
        *benchmark_boards.decisions(measured, pictures, 3),
        *benchmark_boards.intake(measured, 2),
        *benchmark_boards.pages(measured, 1),
        *benchmark_boards.clients(measured, 3, 2, pictures[0]),
        *steady_pace.pace(measured, pictures, BoardPace(72_000, 4, 30.0, 0.2)),
    ]
    assert [one.part for one in figures[:4]] == [Part.DECISIONS, Part.DECISIONS, Part.INTAKE, Part.INTAKE]
    assert [one.name for one in figures if one.part is Part.PAGES] == list(benchmark_boards.PAGES)
    assert all(one.value >= 0 for one in figures)
    by_name = {one.name: one for one in figures}
    assert by_name["late boards"].value == 0
    # Each client hears of the acceptance, the start and the decision of each board, and of the verification.
    assert by_name["an event at 3 clients, p50"].samples >= 3 * 2 * 3
    assert by_name["an event at 3 clients, p99"].note.startswith("0 of")


def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once(number: int) -> None:
            connection, _ = server.accept()
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d" % number)
            connection.close()

        client = Client(server.getsockname()[1], "key")
        for number in (1, 2, 3):
            answering = threading.Thread(target=answer_once, args=(number,))
            answering.start()
            assert client.send("GET", "/").body == b"%d" % number
            answering.join()
        client.close()
    with pytest.raises(ConnectionRefusedError):
        client.send("GET", "/")


def test_an_event_that_came_before_all_clients_were_there_was_missed_by_nobody() -> None:
    first = [Heard(1, 0.9), Heard(None, 0.8), Heard(2, 0.1), Heard(2, 0.2)]
    assert benchmark_boards.heard_of([2], [first, [Heard(2, 0.3), Heard(2, 0.4)]]) == ([0.1, 0.2, 0.3, 0.4], 0)
    assert benchmark_boards.heard_of([2], [first, [Heard(2, 0.3)]]) == ([0.1, 0.2, 0.3], 1)


def test_a_soak_tells_what_grew(measured: Service, tmp_path: Path) -> None:
    path = tmp_path / "part.png"
    path.write_bytes(LIGHT)
    figures = steady_pace.soak(measured, [FoundImage(path, "C")], BoardPace(7200, 2, 30.0, 1.0))
    assert figures[0].value == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--parts", "speeed"), "'speeed'; did you mean 'speed'"),
        (("--parts", "pages", "--soak", "5"), "--soak is a part by itself"),
    ],
)
def test_wrong_options_are_said(call: Call, arguments: tuple[str, ...], sentence: str) -> None:
    said = call("serve", *arguments)
    assert said.status == 2
    assert sentence in said.words


@pytest.mark.slow
def test_the_command_starts_the_service_and_measures_every_part(call: Call, tmp_path: Path) -> None:
    board, store = synthetic.synthetic_board(tmp_path, kind="resnet18", experts=2, input_size=32, seed=0)
    for number, component in enumerate(rules.load(board).components):
        path = tmp_path / "images" / "S1" / f"P{number}__{component}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    figures = tmp_path / "figures.json"
    said = call(
        *("serve", "--quick", "--board", board, "--store", store.root, "--memory", "500MB"),
        *("--images", tmp_path / "images", "--work", tmp_path / "work", "--json", figures),
    )
    assert said.status == 0, said.err
    found = json.loads(figures.read_text())
    assert {figure["part"] for figure in found["figures"]} == {part.value for part in Part} - {"soak"}
    assert "machine: " in said.out
