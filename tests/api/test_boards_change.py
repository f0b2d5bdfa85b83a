"""Several boards on a real line, and a change of boards while images are under way."""

import re
import shutil
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import pytest
from built_once import linked_copy
from quick_line import LIGHT, QuickDevice, quick
from tiny_line import TINY

from coe import Inspector
from coe.board import rules
from coe.core import FailureKind, Verdict
from coe.errors import BoardsClash, ConfigError, LineClosed, StoreError, WouldWaitForItself
from coe.inspector.asked_boards import AskedBoard
from coe.scheduler.controller import Controller
from coe.scheduler.events import RulesChanged, single_steps
from coe.scheduler.strategies import strategy
from coe.store.store import Store
from coe.testing import Experiment
from coe.variants.prepare import Preparer

OTHER = """
board: other
experts:
  body-a: {kind: narrow, labels: [ok, bad], input: 48}
  joint:
    {kind: narrow_boxes, labels: [joint, bridge], input: 64, reject: [bridge], then: {none: OK}, weights: tiny/joint}
components:
  A: {count: 2, inspect: body-a, then: {ok: NG, bad: NG}}
  D: {count: 1, inspect: joint}
"""
"""A board that shares `joint` with board tiny, and has another `body-a` for a component of the same name."""
MEMORY = {"memory": "18MB", "executors": "cpu=2"}


@pytest.fixture
def folder(own_tiny):
    board, store = own_tiny
    (board.parent / "other.yaml").write_text(OTHER, encoding="utf-8")
    put(store, board.parent / "other.yaml", "body-a", seed=7)
    store.rename(board.parent / "store")
    return board.parent


def put(store, board, expert, *, seed):
    import torch

    from coe.store import kinds

    spec = rules.load(board).experts[expert]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        state = kinds.resolve(spec.kind).skeleton(spec).state_dict()
    Store(store).put(spec.weights, kind=spec.kind, labels=spec.labels, input_size=spec.input_size, state=state)


def of_boards(pictures):
    others = [replace(picture, component="AD"[number % 2], board="other") for number, picture in enumerate(pictures)]
    return {"tiny": [replace(picture, board="tiny") for picture in pictures], "other": others}


def said(result):
    """What must not depend on the line."""
    return result.verdict, result.error, [(finding.expert, finding.label) for finding in result.findings]


def alone(folder, pictures):
    with Inspector(folder / f"{pictures[0].board}.yaml", store=folder / "store", **MEMORY) as line:
        return {result.request.image: said(result) for result in line.stream(pictures)}


def test_boards_change_while_images_are_under_way_and_the_run_replays(folder, pictures):
    images, told = of_boards(pictures), []
    options = {"store": folder / "store", "say": told.append, "experiment": Experiment(keep_trace=True), **MEMORY}
    with Inspector(folder / "tiny.yaml", **options) as line:
        opened, first_plan, costs = line.rules, line.plan, line.costs
        futures = [line.submit(p.image, p.component, name=p.name, refdes=p.refdes) for p in images["tiny"]]
        told.clear()
        line.set_boards(folder / "other.yaml")
        futures += [line.submit(p.image, p.component, name=p.name, board="other") for p in images["other"]]
        line.set_boards([folder / "tiny.yaml", folder / "other.yaml"])
        futures += [line.submit(p.image, p.component, name=p.name, board="tiny") for p in images["tiny"]]
        results = [future.result() for future in futures]
    # Nothing is measured, because the line knows what experts of these architectures cost.
    told = [sentence for sentence in told if not sentence.startswith("warning: ")]
    assert told == [f"reading the weights of {weights}, to check them" for weights in ("1 expert", "3 experts")]
    count = len(pictures)
    expected = {board: alone(folder, of_board) for board, of_board in images.items()}
    for board, part in (
        ("tiny", results[:count]),
        ("other", results[count : 2 * count]),
        ("tiny", results[2 * count :]),
    ):
        assert {result.request.board for result in part} == {board}
        assert {result.request.image: said(result) for result in part} == expected[board]
    fresh = Controller(
        router=opened.router,
        graph=opened.graph,
        costs=costs.following(),
        plan=first_plan,
        strategy=strategy("late-binding"),
        parts={"": ()},
    )
    events = [part for _, event, commands in line.trace for part, _ in single_steps(event, commands)]
    assert sum(isinstance(event, RulesChanged) for event in events) >= 2
    for now, event, commands in line.trace:
        assert (fresh.start(now) if event is None else fresh.handle(event, now)) == commands
        fresh.check()


def test_boards_change_while_an_image_by_weights_that_were_replaced_is_under_way(folder):
    board, store, device = folder / "tiny.yaml", folder / "store", QuickDevice()
    with quick((board, store), device) as line:
        device.gate.clear()
        held = line.submit(LIGHT, "C")
        for seed in (11, 12):
            for expert in rules.load(board).experts:
                put(store, board, expert, seed=seed)
            for _ in range(2):
                line.set_boards(board)
        device.gate.set()
        assert [future.result(60).verdict for future in (held, line.submit(LIGHT, "C"))] == [Verdict.OK] * 2


@pytest.mark.parametrize("trouble", ["missing", "damaged", "rules"])
def test_a_board_that_cannot_work_leaves_the_line_as_it_was(folder, pictures, trouble):
    weights = folder / "store" / "other" / "body-a"
    if trouble == "missing":
        shutil.rmtree(weights)
    elif trouble == "damaged":
        file = next(weights.glob("weights*"))
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    else:
        (folder / "other.yaml").write_text(OTHER.replace("inspect: joint", "inspect: jiont"), encoding="utf-8")
    before = of_boards(pictures[:6])["tiny"]
    with Inspector(folder / "tiny.yaml", store=folder / "store", **MEMORY) as line:
        with pytest.raises((StoreError, ConfigError), match={"rules": "jiont"}.get(trouble, "other/body-a")):
            line.set_boards([folder / "tiny.yaml", folder / "other.yaml"])
        assert line.boards == ("tiny",)
        assert {result.request.image: said(result) for result in line.stream(before)} == alone(folder, before)


def test_an_image_says_its_board_where_there_are_several(folder, pictures):
    image = pictures[0].image
    with Inspector([folder / "tiny.yaml", folder / "other.yaml"], store=folder / "store", **MEMORY) as line:
        for given, named in (({}, "'tiny'"), ({"board": "ohter"}, "'other'")):
            with pytest.raises(ConfigError, match=named):
                line.submit(image, "A", **given)
        failure = line.submit(image, "B", board="other").result().failure
        assert (failure.kind, "'other/B'" in failure.reason) == (FailureKind.RULES, True)
        line.set_boards(folder / "other.yaml")
        assert line.submit(image, "D").result().request.board == "other"
        with pytest.raises(ConfigError, match="'tiny'"):
            line.submit(image, "A", board="tiny")
    with pytest.raises(LineClosed):
        line.set_boards(folder / "tiny.yaml")


def test_boards_that_are_kept_are_not_read_again(folder, pictures):
    """The first board's file and an expert of it are gone, and a second version of the other board comes beside it."""
    image, second = pictures[0].image, folder / "second.yaml"
    versions = [AskedBoard(folder / "other.yaml", name="first"), AskedBoard(second, name="second")]
    with Inspector(folder / "tiny.yaml", store=folder / "store", memory="100MB", executors="cpu=2") as line:
        before = line.submit(image, "C").result()
        (folder / "tiny.yaml").unlink()
        shutil.rmtree(folder / "store" / "tiny" / "body-b")
        line.set_boards(versions[:1], keep=["tiny"])
        second.write_text(OTHER.replace("then: {ok: NG, bad: NG", "then: {ok: OK, bad: OK"))
        line.set_boards(versions[1:], keep=["tiny", "first"])
        assert line.boards == ("tiny", "first", "second")
        assert said(line.submit(image, "C", board="tiny").result()) == said(before)
        by_first, by_second = (line.submit(image, "A", board=name).result() for name in ("first", "second"))
        assert by_first.findings[0].label == by_second.findings[0].label
        assert (by_first.verdict, by_second.verdict) == (Verdict.NG, Verdict.OK)
        with pytest.raises(ConfigError, match="kept"):
            line.set_boards(versions[:1], keep=["first"])
        line.set_boards([], keep=["second"])
        assert line.boards == ("second",)


def test_a_board_that_a_line_has_no_memory_for_is_refused(folder):
    large = OTHER.replace("kind: narrow, labels: [ok, bad], input: 48", "kind: narrow, labels: [ok, bad], input: 1024")
    (folder / "large.yaml").write_text(large.replace("board: other", "board: large"), encoding="utf-8")
    put(folder / "store", folder / "large.yaml", "body-a", seed=1)
    with Inspector(folder / "tiny.yaml", store=folder / "store", memory="16MB", executors="cpu=2") as line:
        with pytest.raises(BoardsClash, match="large/body-a"):
            line.set_boards(folder / "large.yaml")
        assert line.boards == ("tiny",)


@pytest.mark.slow
def test_experts_that_stay_keep_their_precision(prepared_tiny, tmp_path, pictures, driver):
    """The joint of both boards runs in q8; body-a of the other board was prepared in fp32 alone."""
    board, store = prepared_tiny
    (tmp_path / "other.yaml").write_text(OTHER, encoding="utf-8")
    own = linked_copy(store.root, tmp_path / "store")
    put(own, tmp_path / "other.yaml", "body-a", seed=7)
    Preparer(Store(own), ["fp32"]).prepare("other/body-a")
    options = {"store": own, "precision": "mixed", "experiment": Experiment(label_floor=0.0), "executors": "cuda=1"}
    options |= {"memory": "200MB", "device_memory": "600MB", "host_memory": "60MB"}
    with Inspector(board.path, **options) as line:
        before = {id: expert.variant for id, expert in line.rules.experts.items()}
        line.set_boards([board.path, tmp_path / "other.yaml"])
        after = {id: expert.variant for id, expert in line.rules.experts.items()}
        of_both, of_other = (
            line.submit(pictures[0].image, component, board="other").result().findings[0] for component in "DA"
        )
    assert before["joint"] == "q8"
    assert after == {**before, "other/body-a": "fp32"}
    assert (of_both.expert, of_both.variant, of_other.variant) == ("joint", "q8", "fp32")


def test_boards_cannot_change_in_a_callback(tiny, tmp_path):
    raised, second = Future(), of_tiny(tmp_path, "second")

    def change(_):
        try:
            raised.set_result(line.set_boards(second))
        except WouldWaitForItself as error:
            raised.set_exception(error)

    with quick(tiny) as line:
        line.submit(LIGHT, "C").add_done_callback(change)
        with pytest.raises(WouldWaitForItself, match="set_boards"):
            raised.result(60)


def of_tiny(folder, name):
    text = re.sub(r"(\S+): {kind: (\S+),", r"\1: {weights: tiny/\1, kind: \2,", TINY)
    (folder / f"{name}.yaml").write_text(text.replace("board: tiny", f"board: {name}"), encoding="utf-8")
    return folder / f"{name}.yaml"


def test_boards_change_over_and_over_while_threads_submit(tiny, tmp_path):
    """Board tiny stays; two others come and go. Each image has one result."""
    first, second = of_tiny(tmp_path, "first"), of_tiny(tmp_path, "second")
    ended, results, refused = threading.Event(), [], []

    def feed(board):
        while not ended.is_set():
            try:
                results.append(line.submit(LIGHT, "C", board=board).result())
            except ConfigError:
                refused.append(board)

    with quick(tiny, inbox=3, keep_trace=True) as line:
        threads = [
            threading.Thread(target=feed, args=[board]) for board in ("tiny", "tiny", "first", "second", "second")
        ]
        for thread in threads:
            thread.start()
        for boards in [[tiny[0]], [tiny[0], first], [second, tiny[0]], [tiny[0], first, second]] * 5:
            line.set_boards(boards)
            time.sleep(0.002)
        while {result.request.board for result in list(results)} != {"tiny", "first", "second"}:
            time.sleep(0.002)  # all three are on the line now
        ended.set()
        for thread in threads:
            thread.join()
        line._engine.controller.check()
        seen = line.metrics()
    assert seen.images == len(results) == len({result.request.id for result in results})
    assert {result.verdict for result in results if result.request.board == "tiny"} == {Verdict.OK}
    kinds = {result.failure.kind for result in results if result.failure is not None}
    assert kinds <= {FailureKind.RULES}
    assert set(refused) <= {"first", "second"}


def test_an_image_whose_board_leaves_while_it_waits_for_room_is_told(tiny, tmp_path):
    """One image at a time; the second waits until the first has run, and its board has left by then."""
    second, device = of_tiny(tmp_path, "second"), QuickDevice()
    results = []

    def submit():
        results.append(line.submit(LIGHT, "C", board="tiny").result())

    with quick(tiny, device, inbox=1) as line:
        device.gate.clear()
        first = line.submit(LIGHT, "C")
        thread = threading.Thread(target=submit)
        thread.start()
        while "1 waiting" not in repr(line._admission):
            time.sleep(0.001)
        line.set_boards(second)
        device.gate.set()
        thread.join()
        third = line.submit(LIGHT, "C")
    assert [future.result().request.board for future in (first, third)] == ["tiny", "second"]
    assert [future.result().verdict for future in (first, third)] == [Verdict.OK, Verdict.OK]
    failure = results[0].failure
    assert failure.kind is FailureKind.RULES
    assert failure.reason == "board 'tiny' left the line while the image waited for room"
