"""The demo board made for real: a build in small, and the full one's figures where it has been made."""

from pathlib import Path

import pytest
from rich.console import Console

from apps.demo.build import build, missing_experts
from apps.demo.evaluate import inspect, tally, total
from apps.demo.production import lot, read_truth
from coe.inspector import Inspector
from coe.store import Store


def test_a_small_build_trains_what_is_asked_for_and_is_not_made_twice(tmp_path: Path) -> None:
    images, store = tmp_path / "images", Store(tmp_path / "store")
    settings = {"boards": 1, "quick": True, "only": {"chip-resistor", "crystal-can"}, "workers": 1}
    trained = build(images, store, console=Console(quiet=True), **settings)
    assert store.ids() == ["demo/chip-resistor", "demo/crystal-can"]
    assert set(trained) == {"chip-resistor", "crystal-can"}
    assert store.manifest("demo/crystal-can").metrics["accuracy"] == trained["crystal-can"]["accuracy"]
    assert {path.relative_to(images).as_posix() for path in images.rglob("*.png")} == set(read_truth(images))
    assert build(images, store, console=Console(quiet=True), **settings) == {}


@pytest.mark.slow
def test_the_full_build_judges_boards_that_it_never_saw() -> None:
    store = Store()
    if missing_experts(store, 1, False):
        pytest.skip("the demo board is not built, or from another recipe: python -m apps.demo.build")
    with Inspector("demo", store=store, memory="1.5GiB") as line:
        parts, _ = tally(inspect(line, lot(4, seed=9101)))
    assert total(parts).accuracy >= 0.97
