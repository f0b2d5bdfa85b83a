"""`coe-profile` on a small board with real weights files, and a line that uses what it found."""

import json
from functools import partial

import pytest
from built_once import linked_copy

from coe import Inspector, config
from coe.cli import profile_command as command
from coe.helpers.system import usable_cores
from coe.inspector import profile
from coe.lab.workloads.synthetic import synthetic_board, synthetic_pictures
from coe.profiler import confirm, other_load, profiling
from coe.runtime.cuda import torch_driver


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(profiling, "QUICK", profiling.Effort(kind_s=0.1, confirm_images=8))
    monkeypatch.setattr(profiling, "SAMPLE_REQUESTS", 60)
    monkeypatch.setattr(profiling, "_CONFIRM_S", 0.0)
    monkeypatch.setattr(confirm, "_LONG_ENOUGH_S", 1e-9)
    # The machine of a test may be as busy as it likes.
    monkeypatch.setattr(other_load.LoadWatch, "before", lambda self: None)
    monkeypatch.setattr(other_load.LoadWatch, "step", lambda self, what: None)


@pytest.fixture
def run(call):
    return partial(call, command=command)


@pytest.fixture(scope="module")
def bench(synthetic_work, tmp_path_factory):
    folder = linked_copy(synthetic_work, tmp_path_factory.mktemp("bench") / "work")
    path, store = synthetic_board(folder, kind="narrow", experts=4, input_size=32, seed=0)
    return path, store.root


@pytest.mark.slow
def test_a_machine_is_profiled_and_lines_use_it_by_themselves(bench, run, call, tmp_path, monkeypatch):
    board, store = bench
    place = tmp_path / "data" / "profile.json"
    monkeypatch.setenv(config.PROFILE_VARIABLE, str(place))
    said = run("--board", board, "--store", store, "--memory", "150MB", "--quick")
    assert said.status == 0
    known = profile.load(place)
    (name,) = known.boards
    chosen = known.boards[name].chosen
    assert {kind.kind for kind in known.kinds} == {"narrow"}
    assert chosen.images_per_s >= 0.98 * chosen.casual_images_per_s > 0
    assert (chosen.sample_images, "narrow 32 px" in said.out) == (8, True)
    assert place.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in place.parent.iterdir()) == ["profile.json", "profile.png"]

    sentences = []
    with Inspector(board, store=store, say=sentences.append) as line:
        results = list(line.stream(synthetic_pictures(board, 12, seed=1)))
        used, plan = line.memory_bytes, line.plan
    assert not any("measuring" in sentence for sentence in sentences)
    sentences = [sentence for sentence in sentences if not sentence.startswith("warning: ")]
    assert sentences[0].startswith("using this machine's profile of ")
    assert ([result.error for result in results], used) == ([None] * 12, 150_000_000)
    assert len(plan.executors) == sum(chosen.executors.values())
    # The strategy joins the pools of a device's executors.
    joined = {device: number * chosen.workspace_bytes[device] for device, number in chosen.executors.items()}
    assert {pool.device: pool.workspace_bytes for pool in plan.pools} == joined

    shown = run("--show")
    assert shown.status == 0
    for words in (f"board {name}", "memory score", "the process grew by"):
        assert words in shown.out

    # What the bench calls by name is what was chosen, beside the default split, on the same images.
    rows = tmp_path / "rows.json"
    names = "late-binding-paper-default,late-binding-profile"
    synthetic = ("--work", str(board.parent), "--kind", "narrow", "--experts", "4", "--input", "32")
    bench_run = ("run", *synthetic, "--requests", "6", "--repeat", "2", "--strategy", names, "--json", str(rows))
    assert call(*bench_run).status == 0
    casual, tuned = json.loads(rows.read_text())
    assert (casual["strategy"], tuned["strategy"]) == ("late-binding-paper-default", "late-binding-profile")
    assert casual["device"] == "cpu=1"
    assert tuned["device"] == f"cpu={chosen.executors['cpu']}"
    assert casual["budget_bytes"] == tuned["budget_bytes"] == 150_000_000
    said = call(*bench_run, "--memory", "149MB")
    assert said.status == 2
    assert "was profiled under 143.1 MiB, not 142.1 MiB" in said.words


@pytest.mark.slow
def test_sample_runs_may_take_place_on_the_machine(bench, run, tmp_path):
    board, store = bench
    place = tmp_path / "profile.json"
    arguments = ("--board", board, "--memory", "150MB", "--quick", "--on-machine", "--out", place)
    said = run(*arguments, "--store", store)
    assert said.status == 0
    (known,) = profile.load(place).boards.values()
    assert known.executors
    assert all(point.measured for point in known.executors)
    lines = [line for line in said.err.splitlines() if line.strip()[:1].isdigit() and "%" in line]
    percents = [int(line.partition("%")[0]) for line in lines]
    assert (percents[0], percents) == (0, sorted(set(percents)))
    assert percents[-1] < 100
    said = run(*arguments, "--store", tmp_path / "empty")
    assert said.status == 2
    assert "4 of 4 experts" in said.words


@pytest.fixture
def driver(driver, monkeypatch):
    """A GPU that is there, the better half of whose memory somebody else has."""
    driver.total, driver.context = 2 << 30, 1200 << 20
    monkeypatch.setattr(torch_driver, "is_there", lambda: True)
    return driver


@pytest.mark.slow
def test_a_gpu_is_measured_and_its_executors_are_tried_first(bench, run, tmp_path, monkeypatch, driver):
    board, store = bench
    place = tmp_path / "profile.json"
    monkeypatch.setenv(config.PROFILE_VARIABLE, str(place))
    arguments = ("--board", board, "--store", store, "--memory", "150MB", "--quick")
    said = run(*arguments, "--device-memory", "400MB", "--host-memory", "100MB")
    assert said.status == 0
    assert "warning: only 848.0 MiB of the GPU's 2.00 GiB are free" in said.words
    known = profile.load(place)
    (entry,) = known.boards.values()
    assert (entry.memory_bytes, entry.device_bytes, entry.host_bytes) == (150_000_000, 400_000_000, 100_000_000)
    assert {(kind.device, kind.precision) for kind in known.kinds} == {("cpu", "fp32"), ("cuda", "fp32")}
    most = min(profiling.MOST_ON_GPU, usable_cores())
    assert [len(speeds) for speeds in known.scaling["cuda"].values()] == [most]
    assert entry.executors[0].executors == {"cuda": 1}
    assert "381.5 MiB of the GPU, 95.4 MiB for copies" in " ".join(said.out.split())
    assert driver.peak <= 400e6
    # A line by this profile, on the machine's GPU if that was chosen.
    sentences = []
    with Inspector(board, store=store, say=sentences.append, executors="cuda=1") as line:
        assert [result.error for result in line.stream(synthetic_pictures(board, 6, seed=1))] == [None] * 6
    assert not any("measuring" in sentence for sentence in sentences)
    assert any(sentence.startswith("cuda: 381.5 MiB of 2.00 GiB") for sentence in sentences)
    # The paper's own search of the GPU's memory (figure 18); the kinds are known by now.
    said = run(*arguments, "--device-memory", "400MB", "--host-memory", "100MB", "--faithful", 1)
    assert said.status == 0
    (entry,) = profile.load(place).boards.values()
    assert entry.windows


@pytest.mark.slow
def test_a_gpu_without_weights_or_room_for_the_board_is_left_out(bench, run, tmp_path, driver):
    board, store = bench
    for folder, sizes in ((tmp_path / "empty", ()), (store, ("400MB", "100MB"))):
        place = tmp_path / f"{folder.name}.json"
        arguments = ("--board", board, "--store", folder, "--memory", "150MB", "--quick", "--out", place)
        # The kinds are known the second time; the budget is another.
        for size in [("--device-memory", size) for size in sizes] or [()]:
            said = run(*arguments, *size)
            assert said.status == 0
        known = profile.load(place)
        (entry,) = known.boards.values()
        assert (set(entry.chosen.executors), entry.device_bytes) == ({"cpu"}, None)
        if not sizes:
            assert "no weights" in said.words
            assert {kind.device for kind in known.kinds} == {"cpu"}


def test_memory_of_a_gpu_that_there_is_not_is_refused(bench, run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch_driver, "is_there", lambda: False)
    board, store = bench
    arguments = ("--board", board, "--store", store, "--quick", "--out", tmp_path / "p.json")
    said = run(*arguments, "--device-memory", "1GB")
    assert said.status == 2
    assert "--device-memory and --host-memory have no effect" in said.words


def test_an_interrupted_run_goes_on_where_it_was(bench, run, tmp_path, monkeypatch):
    board, store = bench
    place = tmp_path / "profile.json"
    arguments = ("--board", board, "--store", store, "--memory", "150MB", "--quick", "--out", place)

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    def disturbed(watch):
        watch.disturbed["measuring"] = other_load.OtherLoad(1.0)

    with monkeypatch.context() as patch:
        patch.setattr(profiling, "confirm", interrupted)
        with monkeypatch.context() as busy:
            busy.setattr(other_load.LoadWatch, "end", disturbed)
            assert run(*arguments).status == 130
        assert not list(tmp_path.iterdir()), "figures beside other programs are too slow"
        assert run(*arguments).status == 130
    assert not place.exists()
    measured = []
    monkeypatch.setattr(profiling, "measure", lambda subject, **o: measured.append(subject.expert.kind))
    monkeypatch.setattr(profiling, "joint_speeds", lambda subject, known, most, **o: known)
    said = run(*arguments)
    assert (said.status, measured) == (0, [])
    assert "resuming an interrupted run" in said.words
    assert place.exists()


@pytest.mark.slow
def test_a_board_without_weights_is_measured_with_random_ones_and_says_so(bench, run, tmp_path):
    place = tmp_path / "profile.json"
    said = run("--board", bench[0], "--store", tmp_path / "store", "--memory", "150MB", "--quick", "--out", place)
    assert (said.status, "measured with random weights" in said.words) == (0, True)
    assert "4 of 4 experts" in said.out
    assert profile.load(place).boards
