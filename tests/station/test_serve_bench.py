"""`coe-bench serve`: its figures, and that each part runs against a real gate and a real line."""

import json
from dataclasses import replace

import psutil
import pytest
from quick_line import QuickDevice
from serving import png
from stations import LIGHT, deciding, quick_opener

from coe.board import rules
from coe.lab import past_boards, serve_bench
from coe.lab.serve_bench import PAGES, PARTS, QUICK, Measured, Service
from coe.lab.workloads import synthetic
from coe.pictures.photographs import Photograph
from coe.serve.clock import now_us
from coe.serve.database import audit, recipe_versions
from coe.serve.database.hourly import Window, board_counts


def test_goals_are_upper_bounds_unless_they_say_otherwise():
    for at_least, met in ((False, [True, True, False]), (True, [False, True, True])):
        assert [Measured("pages", "/", value, "ms", 1, 5, at_least).is_met for value in (4, 5, 6)] == met
    assert Measured("pages", "/", 1, "ms", 1).is_met is None


def test_a_history_is_one_that_the_service_could_have_written(served):
    (recipe,) = served.database.read(recipe_versions.all_active)
    past_boards.fill(served.database, recipe.id, ["A", "B"], 50, now_us())
    with served.database.reading() as connection:
        assert audit.prove(connection).broken_id is None
        counted = board_counts(connection, Window(0, now_us() + 1))
    assert sum(one.boards for one in counted) == 49  # one in fifty is a second pass


@pytest.mark.slow
def test_each_part_measures_a_running_service(served, tiny, tmp_path):
    path = tmp_path / "part.png"
    path.write_bytes(LIGHT)
    roles = ("feeder", "operator", "engineer")
    keys = {role: getattr(served, role).headers["Authorization"].removeprefix("Bearer ") for role in roles}
    url = served.database.url.render_as_string(hide_password=False)
    config = served.gate.config.model_copy(update={"station": "tiny", "database": url})
    service = Service(served.address, config, keys, psutil.Process())
    past_boards.fill(served.database, 1, ["C"], 20, now_us())
    much, pictures = replace(QUICK, clients=3), [Photograph(path, "C")]
    with deciding(served.gate.config, served.database, quick_opener(tiny, QuickDevice())):
        measures = (serve_bench.decisions, serve_bench.intake, serve_bench.pages, serve_bench.clients, serve_bench.pace)
        figures = [figure for measure in measures for figure in measure(service, pictures, much)]
    assert [one.name for one in figures if one.part == "pages"] == list(PAGES)
    assert all(one.value >= 0 for one in figures)
    by_name = {one.name: one for one in figures}
    # Each client hears of the acceptance, the start and the decision of each board, and of the verification.
    assert by_name["an event at 3 clients, p50"].samples >= 3 * 20 * 3
    assert by_name["an event at 3 clients, p99"].note.startswith("0 of")


def test_a_wrong_part_is_told(call):
    said = call("serve", "--parts", "speeed")
    assert said.status == 2
    assert "'speeed'; did you mean 'speed'" in said.words


@pytest.mark.slow
def test_the_command_starts_the_service_and_measures_every_part(call, tmp_path):
    board, store = synthetic.synthetic_board(tmp_path, kind="resnet18", experts=2, input_size=32, seed=0)
    for number, component in enumerate(rules.load(board).components):
        path = tmp_path / "images" / "S1" / f"P{number}__{component}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    figures = tmp_path / "figures.json"
    said = call(
        *("serve", "--quick", "--board", board, "--store", store.root, "--memory", "500MB"),
        *("--images", tmp_path / "images", "--json", figures),
    )
    assert said.status == 0, said.err
    assert {figure["part"] for figure in json.loads(figures.read_text())} == set(PARTS)
    assert "machine: " in said.out
