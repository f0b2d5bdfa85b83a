"""The service on several boxes: boards of several recipes, and a product changeover, get the verdicts of one box."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from serving import activated, embedded_database
from stations import DARK, LIGHT, accept, deciding, state_of
from tiny_line import TINY
from waiting import eventually

from coe import Inspector
from coe.core import Verdict
from coe.serve.clock import now_us
from coe.serve.database import call_rows, fault_log, recipe_versions, row_types
from coe.serve.database.tables import Activation
from coe.serve.enums import ActivationState
from coe.serve.service_config import LineSettings
from coe.testing import Experiment

SHOWN = {"R1": LIGHT, "R2": DARK}


database = embedded_database(busy_s=0.2)


def on_cluster(config, tiny, cluster):
    line = LineSettings(
        store=tiny[1], memory=100_000_000, executors="cpu=1", threads=1, profile="none", cluster=cluster
    )
    return config.model_copy(update={"line": line})


def verdicts_of_one_box(tiny):
    with Inspector(tiny[0], store=tiny[1], memory="100MB", executors="cpu=1", threads=1, profile=None) as alone:
        return {
            refdes: alone.submit(np.asarray(Image.open(io.BytesIO(content))), "C", order="RGB").result().verdict
            for refdes, content in SHOWN.items()
        }


def change_over(config, database, tiny, adjust):
    """Inspect boards of two recipes, activate a third in the middle, and compare all with one box."""
    called = {refdes for refdes, verdict in verdicts_of_one_box(tiny).items() if verdict is not Verdict.OK}
    boards = [accept(config, database, activated(database, TINY, name).id, SHOWN, key=name) for name in ("one", "two")]
    with deciding(config, database, None, adjust=adjust):
        eventually(lambda: all(state_of(database, board.id).verdict is not None for board in boards), 200)
        with database.writing() as connection:
            content = {"rules": TINY.replace("count: 1", "count: 2")}
            third = recipe_versions.add(connection, "one", content, by="ann", now_us=now_us())
            asked = recipe_versions.ask_activation(connection, third.id, by="ann", now_us=now_us())

        def state():
            found = database.read(row_types.get, Activation, asked.id)
            return found.state

        eventually(lambda: state() is ActivationState.ACTIVE, 200)
        # The new version, and a board of a recipe that was on the line before.
        boards += [
            accept(config, database, third.id, SHOWN, key="third"),
            accept(config, database, boards[1].recipe_id, SHOWN, key="fourth"),
        ]
        eventually(lambda: all(state_of(database, board.id).verdict is not None for board in boards), 200)
    with database.reading() as connection:
        assert fault_log.open_faults(connection) == []
        for board in boards:
            assert {call.refdes for call in call_rows.of_board(connection, board.id)} == called


def test_products_change_on_several_boxes(config, database, tiny, thread_boxes):
    made = []

    def adjust(line):
        made.append(thread_boxes(2))
        return line.but(experiment=Experiment(make_boxes=made[-1]))

    change_over(on_cluster(config, tiny, "auto"), database, tiny, adjust)
    assert len(made) == 2, "the boxes were opened again for the new version, once"
    assert made[0].address == "auto"


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.filterwarnings("default")
def test_products_change_on_machines_of_a_ray_cluster(config, database, tiny, monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed (requirements.real.lock)")
    from ray.cluster_utils import Cluster

    here = Path(__file__).parents[1]
    path = [str(here.parent), str(here / "installed"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    node = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        change_over(on_cluster(config, tiny, cluster.address), database, tiny, None)
    finally:
        cluster.shutdown()
