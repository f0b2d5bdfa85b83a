"""A result that was written is never lost; what is not this run's is never touched."""

import csv
import errno
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from coe.core import Box, Failure, FailureKind, Finding, Request, Result, Verdict
from coe.errors import ConfigError, ImageError
from coe.helpers import files
from coe.helpers.files import LOCK, DiskFull, NotWritten, write_atomically
from coe.pictures.photographs import Photograph
from coe.pictures.picture_file import FileStamp
from coe.results.records import ResultsFile, read
from coe.results.result_lines import from_line, to_line
from coe.results.run_file import RunIdentity
from coe.results.summary import RunFigures
from coe.scheduler.demand import Drift

RUN = RunFigures("demo", "coserve", 20, 28, 7, 1000, 2000, 3000, 1.6)
FINDINGS = (
    Finding("body", "fp32", "ok", 0.98),
    Finding(
        "joint", "q8", "bridge", 0.875, (Box("bridge", 0.875, (1.0, 2.0, 30.5, 40.25)), Box("joint", 0.5, (0, 0, 9, 9)))
    ),
)


def result(name, verdict=Verdict.OK, error=None, serial="SN1"):
    findings = FINDINGS if verdict else ()
    failure = None if error is None else Failure(FailureKind.IMAGE, error)
    return Result(Request(0, "R0402", name, serial, "R1"), verdict, findings, 0.25, failure)


def failed(name):
    return result(name, None, "is empty")


def item(name, serial="SN1"):
    return Photograph(Path(name), "R0402", serial, "R1", name)


IDENTITY = RunIdentity("demo", "f1", "s", "late-binding", "fp32", {"body": "1", "joint": "2"})


def start(folder, *, resume=False, **other):
    return ResultsFile(folder, replace(IDENTITY, **other), resume=resume)


@pytest.fixture
def run(tmp_path):
    with start(tmp_path / "run") as file:
        yield file


def test_a_line_says_all_of_a_result(run):
    run.write(result("SN1/a.png", Verdict.NG))
    boxes = [
        {"label": "bridge", "score": 0.875, "xyxy": [1.0, 2.0, 30.5, 40.25]},
        {"label": "joint", "score": 0.5, "xyxy": [0.0, 0.0, 9.0, 9.0]},
    ]
    assert json.loads((run.folder / "results.jsonl").read_text()) == {
        **{"image": "SN1/a.png", "serial": "SN1", "component": "R0402", "refdes": "R1", "verdict": "NG"},
        "findings": [
            {"expert": "body", "variant": "fp32", "label": "ok", "score": 0.98, "boxes": []},
            {"expert": "joint", "variant": "q8", "label": "bridge", "score": 0.875, "boxes": boxes},
        ],
        **{"latency_s": 0.25, "late": False, "error": None, "failure": None},
    }


def test_a_line_says_what_kept_an_image_from_being_judged_and_names_its_board(run):
    run.write(failed("a.png"))
    row = json.loads((run.folder / "results.jsonl").read_text())
    assert (row["error"], row["failure"]) == ("is empty", "image")
    of_board = result("a.png", Verdict.OK)
    of_board = replace(of_board, request=replace(of_board.request, board="a"))
    assert json.loads(to_line(of_board))["board"] == "a"
    assert from_line(to_line(of_board).encode(), 0).request.board == "a"
    assert "board" not in json.loads(to_line(result("a.png", Verdict.OK)))
    row = json.loads(to_line(failed("a.png")))
    with pytest.raises(ValueError, match="'bad luck' is not a valid FailureKind"):
        from_line(json.dumps(row | {"failure": "bad luck"}).encode(), 0)


def test_what_was_written_reads_back(run):
    doubtful = Finding("a", "fp32", "none", 1.0, doubt="it does not fit; look")
    written = [
        *(result('a\n"ü\udcff.png', Verdict.REVIEW), failed("b"), result("", Verdict.NG)),
        replace(result("late", Verdict.OK), late=True),
        Result(Request(4, "R", "doubtful"), Verdict.REVIEW, (doubtful,), 0.1),
    ]
    for each in written:
        run.write(each)
    back = read(run.folder / "results.jsonl")
    assert [(r.verdict, r.findings, r.error, r.late, r.request.image) for r in back] == [
        (r.verdict, r.findings, r.error, r.late, r.request.image) for r in written
    ]
    assert [r.request.id for r in back] == [0, 1, 2, 3, 4]
    assert "ü" in (run.folder / "results.jsonl").read_text("utf-8"), "names can be searched for"
    run.finish([item(each.request.image) for each in written], RunFigures("demo"))
    assert "a=none 1.000 (it does not fit; look)" in (run.folder / "results.csv").read_text()


def test_no_nan_gets_into_json(run):
    nan = Finding("x", "fp32", "ok", math.nan, (Box("b", math.inf, (0, math.nan, 1, 1)),))
    run.write(Result(Request(0, "R", "a"), Verdict.REVIEW, (nan,), math.nan))
    text = (run.folder / "results.jsonl").read_text()
    row = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} in JSON"))
    assert row["findings"][0]["score"] is None
    (back,) = read(run.folder / "results.jsonl")
    assert math.isnan(back.findings[0].score)
    summary = run.finish([item("a")], RunFigures("demo", wall_s=math.nan))
    assert json.loads((run.folder / "summary.json").read_text())["wall_s"] is None
    assert summary.total.review == 1


def test_errors_are_tried_again(tmp_path):
    with start(tmp_path) as run:
        for each in (result("a"), failed("b"), result("c")):
            run.write(each)
    with start(tmp_path, resume=True) as run:
        assert run.done == {"a", "c"}
        assert repr(run) == f"<ResultsFile {tmp_path / 'results.jsonl'} 3 images, 2 done>"
        run.write(result("b", Verdict.NG))
        assert run.done == {"a", "b", "c"}
        run.finish([item(name) for name in "cba"], RUN)
    assert [r.request.image for r in read(tmp_path / "results.jsonl")] == ["c", "b", "a"]


def test_a_resumed_run_ends_as_if_it_had_not_been_stopped(tmp_path):
    items = [item(name) for name in "abc"]
    for folder, stops in (("straight", ()), ("stopped", ("a",))):
        order = "cab"
        run = start(tmp_path / folder)
        for name in order:
            run.write(result(name, Verdict.NG if name == "b" else Verdict.OK))
            if name in stops:
                run.close()
                with (tmp_path / folder / "results.jsonl").open("ab") as file:
                    file.write(b'{"image": "b", "serial": "S')
                run = start(tmp_path / folder, resume=True)
        run.finish(items, RUN)
    for name in ("results.jsonl", "results.csv", "summary.json", "run.json"):
        assert (tmp_path / "straight" / name).read_bytes() == (tmp_path / "stopped" / name).read_bytes()


@settings(max_examples=12 * THOROUGH, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_a_file_cut_anywhere_loses_one_line_at_most(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("cut")
    with start(folder) as run:
        for name in "abcd":
            run.write(result(name))
    path = folder / "results.jsonl"
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    with start(folder, resume=True) as run:
        assert len(run.done) == whole[:cut].count(b"\n")
        assert path.stat().st_size == whole[:cut].rfind(b"\n") + 1
        for name in set("abcd") - run.done:
            run.write(result(name))
        run.finish([item(name) for name in "abcd"], RUN)
    assert path.read_bytes() == whole


def damaged(**change):
    return json.dumps({**json.loads(to_line(result("x"))), "findings": [], **change}).encode()


def found_by(**change):
    finding = {"expert": "body", "variant": "fp32", "label": "ok", "score": 0.9, "boxes": [], **change}
    return damaged(findings=[finding])


@pytest.mark.parametrize(
    "damage",
    [
        *(b"\0\0\0\0", b"not json", b'{"image": 3}', b"[]", b'{"verdict": null, "error": null}'),
        damaged(verdict="GOOD"),
        damaged(verdict=["OK"]),
        damaged(verdict=None),
        damaged(error="and an error"),
        damaged(image=3),
        damaged(serial=None),
        damaged(component={}),
        damaged(refdes=["R1"]),
        damaged(findings=3),
        damaged(findings=[3]),
        damaged(latency_s="soon"),
        damaged(latency_s=[]),
        damaged(verdict=None, error=3),
        found_by(label=3),
        found_by(expert=None),
        found_by(variant=[]),
        found_by(score={}),
        found_by(boxes=[{"label": "b", "score": 0.1, "xyxy": [1, 2, 3]}]),
        found_by(boxes=[{"label": 3, "score": 0.1, "xyxy": [1, 2, 3, 4]}]),
        found_by(score=0).replace(b'"score": 0', b'"score": 1' + b"0" * 400),
        b"[" * 100_000,
        b"",
        b"{}",
        b"\xff",
    ],
)
def test_only_the_last_line_may_be_torn(tmp_path, damage):
    with start(tmp_path) as run:
        run.write(result("a"))
    damage += b"\n"
    path = tmp_path / "results.jsonl"
    line = path.read_bytes()
    path.write_bytes(line + damage)
    assert [r.request.image for r in read(path)] == ["a"]
    path.write_bytes(line + damage + line)
    with pytest.raises(ConfigError, match=r"results.jsonl:2: not a result"):
        start(tmp_path, resume=True)
    assert path.read_bytes() == line + damage + line


def test_results_are_never_overwritten(tmp_path):
    with start(tmp_path) as run:
        run.write(result("a"))
    before = (tmp_path / "results.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="--resume"):
        start(tmp_path)
    for other, says in [
        ({"board": "B"}, "'demo', not 'B'"),
        ({"rules": "f2"}, "another version of the board file"),
        ({"images": "elsewhere"}, "'s', not 'elsewhere'"),
        ({"strategy": "coserve"}, "--strategy late-binding"),
        ({"precision": "half"}, "--precision fp32"),
        ({"experts": {"body": "1", "joint": "3"}}, "1 of 2 experts .'joint'"),
        ({"experts": {"body": "1"}}, "1 of 1 experts .'joint'"),
    ]:
        with pytest.raises(ConfigError, match=says):
            start(tmp_path, resume=True, **other)
    assert (tmp_path / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"null", b"[]", b"3", b'"run"', b"\xff\xfe", b"{}", b"[" * 100_000),
        b'{"board": "demo", "experts": 3}',
        b'{"board": "demo", "experts": {}, "figures": 3}',
        b'{"board": "demo", "experts": {}, "figures": {"board": "demo"}}',
        b'{"board": "demo", "experts": {}, "variants": 3}',
        b'{"board": ["demo"], "experts": {}}',
    ],
)
def test_a_damaged_run_json_is_never_believed(tmp_path, text):
    with start(tmp_path) as run:
        run.write(result("a"))
    before = (tmp_path / "results.jsonl").read_bytes()
    (tmp_path / "run.json").write_bytes(text)
    with pytest.raises(ConfigError, match="--out"):
        start(tmp_path, resume=True)
    assert (tmp_path / "results.jsonl").read_bytes() == before


def test_a_run_keeps_its_folder_until_it_is_closed(run):
    for write in (lambda: run.write(result("a")), lambda: run.finish([item("a")], RUN), lambda: None):
        with pytest.raises(ConfigError, match="another run is writing here"):  # the report is still to be written
            start(run.folder, resume=True)
        write()
    run.close()
    assert not list(run.folder.glob(f"*{LOCK}*"))
    with start(run.folder, resume=True) as again:
        assert again.done == {"a"}


def test_a_lock_whose_file_was_taken_away_meanwhile_is_none(tmp_path, monkeypatch):
    """Between opening and locking, the other process ends its run: what was opened is no longer the file there."""
    really, names = files.lock_descriptor, []
    with start(tmp_path) as other:
        other.write(result("a"))

    def lock(number, *, blocking):
        if not names:
            (tmp_path / LOCK).unlink()
        names.append(os.fstat(number).st_nlink)
        return really(number, blocking=blocking)

    monkeypatch.setattr(files, "lock_descriptor", lock)
    with start(tmp_path, resume=True):
        assert names == [0, 1]
        assert (tmp_path / LOCK).exists()


def test_a_run_goes_on_without_a_lock_where_the_file_system_has_none(tmp_path, monkeypatch):
    def lock(number, *, blocking):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(files, "lock_descriptor", lock)
    with start(tmp_path) as run:
        run.write(result("a"))
        run.finish([item("a")], RUN)
    assert [r.request.image for r in read(tmp_path / "results.jsonl")] == ["a"]


def test_the_file_of_results_is_closed_while_another_takes_its_place(run, monkeypatch):
    """Windows puts no file in the place of one that is open."""
    really = os.replace
    here = run.folder / "results.jsonl"

    def replace_as_windows_does(source, target, **kwargs):
        if Path(target) == here and any(Path(one.path) == here for one in psutil.Process().open_files()):
            raise PermissionError(errno.EACCES, "Access is denied", str(target))
        really(source, target)

    run.write(result("a"))
    monkeypatch.setattr(os, "replace", replace_as_windows_does)
    run.finish([item("a")], RUN)
    run.write(result("b"))
    assert [r.request.image for r in read(here)] == ["a", "b"]


def replace_by_another_run(folder):
    shutil.rmtree(folder)
    with start(folder) as other:
        other.write(result("theirs"))


@pytest.mark.parametrize(
    "change",
    [shutil.rmtree, lambda folder: folder.rename(folder.with_name("moved")), replace_by_another_run],
    ids=["taken away", "moved", "replaced"],
)
def test_a_run_whose_folder_is_no_longer_its_own_says_so_and_writes_nothing(tmp_path, change):
    folder = tmp_path / "run"
    with start(folder) as run:
        run.write(result("a"))
        change(folder)
        there = [path.read_bytes() for path in sorted(folder.glob("*"))]
        with pytest.raises(NotWritten, match=r"results.jsonl"):
            run.write(result("b"))
        assert run.finish([item("a")], RUN).total.images == 1
        with pytest.raises(NotWritten, match=r"results.jsonl"):
            run.writes.check()
    assert [path.read_bytes() for path in sorted(folder.glob("*"))] == there


@pytest.mark.parametrize(
    "now",
    [{"component": "C0603"}, {"serial": "SN2"}, {"refdes": "R2"}, {"failure": Failure(FailureKind.IMAGE, "is gone")}],
)
def test_a_verdict_on_something_else_than_an_image_shows_now_is_none(tmp_path, now):
    with start(tmp_path) as run:
        for name in "ab":
            run.write(result(name))
    items = [replace(item("a"), **now), item("b")]
    with start(tmp_path, resume=True) as run:
        left = run.left_of(items, {})
        kept = "failure" in now  # it was seen while it was there
        assert [one.name for one in left] == ([] if kept else ["a"])
        assert run.finish(items, RUN).total.missing == len(left)


@pytest.mark.parametrize(
    ("was", "now", "again"),
    [((9, 1), (9, 1), False), ((9, 1), (9, 2), True), ((9, 1), (8, 1), True), (None, (9, 1), False)],
    ids=["the same", "written again", "another size", "nobody knows which"],
)
def test_a_picture_that_is_another_now_is_inspected_again(tmp_path, was, now, again):
    with start(tmp_path) as run:
        run.write(result("a"), None if was is None else FileStamp(*was))
    with start(tmp_path, resume=True) as run:
        assert [one.name for one in run.left_of([item("a")], {"a": FileStamp(*now)})] == ["a"] * again


def test_a_picture_that_was_changed_after_its_verdict_is_not_shown_beside_it(tmp_path):
    photographs = [replace(item(name), path=tmp_path / f"{name}.png") for name in "ab"]
    for one in photographs:
        one.path.write_bytes(b"picture")
    with start(tmp_path / "run") as run:
        for one in photographs:
            run.write(result(one.name), one.stamp())
        shown = run.unchanged(str.upper, photographs)
        photographs[1].path.write_bytes(b"another picture")
        assert [shown(name) for name in ("a", "c")] == ["A", "C"]
        with pytest.raises(ImageError, match="changed"):
            shown("b")


def test_figures_of_the_parts_of_a_run_add_up(tmp_path):
    items = [item(name) for name in "abc"]
    first = RunFigures("demo", "late-binding", 1, 4, 2, 500, 2000, 900, 2.0, interrupted=True)
    first = replace(first, started="early", drift=(Drift("body", 0.5, 0.6),))
    second = RunFigures("demo", "late-binding", 2, 6, 1, 400, 1000, 950, 1.0, started="late")
    with start(tmp_path) as run:
        run.write(replace(result("a"), late=True))
        run.finish(items, first)
    with start(tmp_path, resume=True) as run:
        run.write(result("b"))
        run.write(result("c"))
        summary = run.finish(items, second).to_json()
    keys = ("started", "timed_images", "switches", "hit_ratio", "images_per_s", "wall_s", "late", "interrupted")
    assert [summary[key] for key in keys] == ["early", 3, 3, 0.7, 1.0, 3.0, 1, False]
    peaks = ("peak_reserved_bytes", "budget_bytes", "peak_rss_bytes")
    assert [summary[key] for key in peaks] == [500, 2000, 950]
    assert summary["usage_drift"] == [{"expert": "body", "rules": 0.5, "estimated": 0.6}]
    before = (tmp_path / "summary.json").read_bytes()
    with start(tmp_path, resume=True) as run:  # nothing is left to do
        run.finish(items, RunFigures("demo", "late-binding", budget_bytes=9000, started="later"))
    assert (tmp_path / "summary.json").read_bytes() == before


def test_experts_that_ran_in_other_variants_are_another_run(tmp_path):
    with start(tmp_path) as run:
        run.bind({"bf16", "fp32"})
        run.write(result("a"))
    with start(tmp_path, resume=True) as run:
        run.bind(["fp32", "bf16"])
        with pytest.raises(ConfigError, match=r"bf16, fp32.*fp16"):
            run.bind({"fp16"})


def test_a_picture_is_known_with_the_reference_that_it_came_with(tmp_path):
    for name, size in (("a.png", 5), ("b.png", 7), ("c.png", 9)):
        (tmp_path / name).write_bytes(bytes(size))
    alone, one, other = (
        Photograph(tmp_path / "a.png", "C", reference=reference and tmp_path / reference).stamp()
        for reference in (None, "b.png", "c.png")
    )
    assert len({alone, one, other}) == 3
    again = Photograph(tmp_path / "a.png", "C", reference=tmp_path / "b.png")
    assert again.stamp() == one
    os.utime(tmp_path / "b.png", ns=(1, 1))
    assert again.stamp() != one
    assert Photograph(tmp_path / "a.png", "C", reference=tmp_path / "gone.png").stamp() is None


def test_resume_of_nothing_is_a_start_and_a_killed_run_keeps_the_figures_before_it(tmp_path):
    with start(tmp_path / "new", resume=True) as run:
        assert run.done == frozenset()
    with start(tmp_path / "new") as run:  # a run that ended before its first result is no results
        assert run.results == []
    with start(tmp_path) as run:
        run.write(result("a"))
        run.finish([item("a")], RUN)
    with start(tmp_path, resume=True) as run:
        run.write(result("b"))  # and then it is killed
    with start(tmp_path, resume=True) as run:
        summary = run.finish([item("a"), item("b")], RunFigures("demo")).to_json()
    assert (summary["images"], summary["timed_images"], summary["switches"]) == (2, 20, 7)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_clear_error(tmp_path):
    (tmp_path / "results.jsonl").symlink_to("/dev/full")
    with start(tmp_path) as run:
        with pytest.raises(DiskFull, match=r"results.jsonl.*--resume"):
            run.write(result("a"))
        assert run.done == frozenset()


def test_a_disk_that_fills_keeps_whole_lines(run, monkeypatch):
    run.write(result("a"))
    really = os.write
    room = [100]

    def write(fd, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        done = really(fd, data[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(DiskFull):
        run.write(result("b"))
    assert (run.folder / "results.jsonl").read_bytes().count(b"\n") == 1
    room[0] = 10_000
    run.write(result("b"))
    assert [r.request.image for r in read(run.folder / "results.jsonl")] == ["a", "b"]


def test_a_disk_that_is_full_at_the_end_leaves_the_results(run, monkeypatch):
    for name in "ba":
        run.write(result(name))
    before = (run.folder / "results.jsonl").read_bytes()

    def full(_):
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(os, "fsync", full)
    assert run.finish([item("a"), item("b")], RUN).total.ok == 2
    with pytest.raises(DiskFull, match="Disk quota exceeded"):
        run.writes.check()
    assert (run.folder / "results.jsonl").read_bytes() == before
    assert sorted(path.name for path in run.folder.iterdir()) == [LOCK, "results.jsonl", "run.json"]


@pytest.mark.parametrize(
    "lies_there",
    [lambda path, _: os.mkfifo(path), Path.symlink_to, lambda path, _: path.write_text("half")],
    ids=["pipe", "link", "leftover"],
)
def test_what_lies_in_the_place_of_the_half_written_file_is_not_written_to(tmp_path, lies_there):
    other = tmp_path / "other.txt"
    other.write_text("as it was")
    lies_there(tmp_path / ".table.csv.tmp", other)
    write_atomically(tmp_path / "table.csv", ["new"])
    assert (tmp_path / "table.csv").read_text() == "new"
    assert other.read_text() == "as it was"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.txt", "table.csv"]


def test_an_atomic_write_that_fails_half_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "x"
    write_atomically(path, ["old"])

    def parts():
        yield "new"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(path, parts())
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("x", "old")]


def test_the_table_and_the_summary(run):
    run.write(result("b, c.png", Verdict.NG))
    run.write(failed("a.png"))
    run.finish([item("a.png"), item("b, c.png"), item("never.png", "SN2")], RUN)
    with (run.folder / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert ([row["image"] for row in rows], rows[0]["error"]) == (["a.png", "b, c.png"], "is empty")
    assert rows[1]["findings"] == "body=ok 0.980 > joint=bridge 0.875 (2 boxes)"
    summary = json.loads((run.folder / "summary.json").read_text())
    (component,) = summary.pop("components").items()
    counts = {"images": 2, "ng": 1, "errors": 1, "missing": 1}
    assert component == ("R0402", dict.fromkeys(("ok", "review", "skipped", "absent", "good_image_share"), 0) | counts)
    none = ("ok", "review", "images_without_serial", "boards_ok", "escalated", "changed", "skipped", "absent", "late")
    empty = ("left_alone", "skipped_boards", "late_boards", "usage_drift", "warnings")
    assert summary == counts | dict.fromkeys(none, 0) | {name: [] for name in empty} | {
        **{"board": "demo", "strategy": "coserve", "started": "", "precision": "fp32", "interrupted": False},
        **{"good_image_share": 0.0, "board_fpy": 0.0, "boards_decided": 1, "boards": {"SN1": "NG", "SN2": "REVIEW"}},
        **{"completeness": "not checked", "incomplete_boards": {}, "accepted": {}, "findings": 2},
        **{"timed_images": 20, "images_per_s": 12.5, "switches": 7, "hit_ratio": 0.75, "wall_s": 1.6, "pace": 1.0},
        **{"peak_reserved_bytes": 1000, "budget_bytes": 2000, "peak_rss_bytes": 3000},
    }


def test_results_of_images_that_are_gone_are_kept(run):
    for name in "xab":
        run.write(result(name))
    assert run.finish([item("a"), item("b")], RUN).total.images == 3
    assert [r.request.image for r in read(run.folder / "results.jsonl")] == ["a", "b", "x"]
    assert [r.request.image for r in run.results] == ["a", "b", "x"]


WRITER = """
import sys
from pathlib import Path
from coe.core import Request, Result, Verdict
from coe.results.records import ResultsFile
from coe.results.run_file import RunIdentity
identity = RunIdentity("demo", "f1", "s", "late-binding", "fp32", {"body": "1", "joint": "2"})
with ResultsFile(Path(sys.argv[1]), identity) as run:
    for number in range(10**9):
        run.write(Result(Request(number, "R", f"{number}.png"), Verdict.OK, (), 0.0))
"""


def test_kill_9_loses_nothing_that_was_written(tmp_path):
    path = tmp_path / "results.jsonl"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    try:
        while not path.exists() or path.stat().st_size < 20_000:
            assert process.poll() is None
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    lines = path.read_bytes().count(b"\n")
    with start(tmp_path, resume=True) as run:
        assert run.done == {f"{number}.png" for number in range(lines)}
