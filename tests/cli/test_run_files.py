"""A run's folder under attack: other runs, damage, odd places, full disks, and pictures that change meanwhile.

Each case ends with the exit status that is promised and with a result for every image; what was written stays.
"""

import errno
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import odd_files
import pytest
import torch
from odd_files import ODD
from PIL import Image
from tables import with_slow_rows

from coe.cli import inspect
from coe.core import Failure, FailureKind, Finding, Request, Result, Verdict
from coe.errors import CoeError
from coe.inspector import line as line_module
from coe.pictures.decoding import decode
from coe.results.metrics import Recorder
from coe.results.records import ResultsFile
from coe.store.store import Store

BOARD = """
board: idle
experts:
  body: {kind: resnet18, labels: [ok, bad], input: 48}
  joint: {kind: resnet18, labels: [ok, bad], input: 48, then: {ok: OK, bad: NG}}
components:
  A: {count: 5, inspect: body, then: {ok: joint, bad: NG}}
  B: {count: 3, inspect: joint}
"""
PICTURES = 6


def make(folder, chance=0):
    """Put a board file, a store with weights of four bytes, and six pictures of two boards into a folder."""
    (folder / "idle.yaml").write_text(BOARD, encoding="utf-8")
    for name in ("body", "joint"):
        state = {"w": torch.full((1,), float(chance))}
        Store(folder / "store").put(f"idle/{name}", kind="resnet18", labels=("ok", "bad"), input_size=48, state=state)
    for index in range(PICTURES):
        path = folder / "images" / f"SN{index % 2}" / f"R{index}__{'AB'[index % 2]}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16, 3), 10 * index, np.uint8)).save(path)


class IdleLine:
    """A line that runs no network: it decodes each picture and says OK. `between` is called with the picture's path."""

    budget_bytes = 1000
    verdict = Verdict.OK
    devices = ("cpu",)
    opened = 0
    between = None

    def __init__(self, line_options):
        type(self).opened += 1
        self.plan = SimpleNamespace(executors=[SimpleNamespace(device=device) for device in self.devices])
        self._stopped = False
        self._answered = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Nothing runs."""

    def stop(self):
        self._stopped = True

    def drift(self):
        return []

    def metrics(self):
        empty = Recorder({}).metrics()
        return SimpleNamespace(
            images_per_s=1.0,
            hit_ratio=0.5,
            stages=2 * self._answered,
            switches=self._answered,
            peak_reserved_bytes=100 + self._answered,
            wall_s=0.5 * self._answered,
            pace=1.0,
            late=empty.late,
        )

    def stream(self, pictures):
        for number, picture in enumerate(pictures):
            self._answered += 1
            request = Request(number, picture.component, picture.name, picture.serial, picture.refdes)
            source = picture.image
            try:
                decode(source)
                if self.between is not None:
                    type(self).between(source.path)
                decode(source)
            except CoeError as error:
                yield Result(request, None, (), 0.1, Failure(FailureKind.IMAGE, str(error)))
            else:
                yield Result(request, self.verdict, (Finding("body", "fp32", "ok", 0.9),), 0.1)
            if self._stopped:
                return


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    return folder


@pytest.fixture
def place(made, tmp_path):
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture
def run(place, call, monkeypatch):
    class Line(IdleLine):
        pass

    monkeypatch.setattr(line_module, "Line", Line)

    def command(*more, line=None, out="out"):
        for name, value in (line or {}).items():
            monkeypatch.setattr(Line, name, value)
        return call(
            *("--board", place / "idle.yaml", "--images", place / "images", "--store", place / "store"),
            *("--out", place / str(out), *more),
            command=inspect,
        )

    return command


def rows(out):
    return [json.loads(line) for line in (out / "results.jsonl").read_text(encoding="utf-8").splitlines()]


def summary(out):
    return json.loads((out / "summary.json").read_text(encoding="utf-8"))


def half(out):
    """Leave a run as a kill would: three results, no summary."""
    lines = (out / "results.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (out / "results.jsonl").write_text("".join(lines[:3]), encoding="utf-8")


def other_weights(place):
    make(place, chance=1)


def one_other_expert(place):
    Store(place / "store").put(
        "idle/joint", kind="resnet18", labels=("ok", "bad"), input_size=48, state={"w": torch.ones(1)}
    )


def other_calibration(place):
    (place / "idle.calibration.yaml").write_text("board: idle\nexperts: {}\n")


def other_rules(place):
    with (place / "idle.yaml").open("a", encoding="utf-8") as file:
        file.write("# another version\n")


@pytest.mark.parametrize("finished", [True, False], ids=["finished", "half done"])
@pytest.mark.parametrize(
    ("change", "options", "named"),
    [
        (other_weights, (), ["2 of 2 experts", "'body', 'joint'"]),
        (one_other_expert, (), ["1 of 2 experts", "'joint'"]),
        (lambda place: shutil.rmtree(place / "store" / "idle" / "joint"), (), ["1 of 2 experts", "'joint'"]),
        (other_rules, (), ["board file"]),
        (other_calibration, (), ["board file"]),
        (None, ("--precision", "mixed"), ["--precision fp32"]),
        (None, ("--strategy", "coserve"), ["--strategy late-binding"]),
        (None, ("--images", "images/SN0"), ["images"]),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_run_goes_on_with_nothing_else_than_it_began_with(run, place, monkeypatch, change, options, named, finished):
    monkeypatch.chdir(place)
    run()
    if not finished:
        half(place / "out")
    if change:
        change(place)
    before = {path.name: path.read_bytes() for path in (place / "out").iterdir()}
    said = run("--resume", *options)
    assert (said.status, [word for word in (*named, "--out") if word not in said.words]) == (2, [])
    assert {path.name: path.read_bytes() for path in (place / "out").iterdir()} == before


def test_devices_on_which_other_variants_run_are_refused_before_a_picture_is_inspected(run, place):
    manifest = place / "store" / "idle" / "body" / "manifest.json"
    row = json.loads(manifest.read_text())
    agreement = {"images": 9, "labels_equal": 1.0, "largest_score_difference": 0.0}
    prepared = {"bytes": 1, "agreement": agreement, "escalate_below": 0.1}
    row["variants"] = {name: {"file": name, "digest": name, **prepared} for name in ("int8", "fp16")}
    manifest.write_text(json.dumps(row))
    assert run("--precision", "mixed").status == 0
    half(place / "out")
    said = run("--precision", "mixed", "--resume", line={"devices": ("cuda",)})
    assert (said.status, "fp32, int8" in said.words, "fp16, fp32" in said.words) == (2, True, True)
    assert len(rows(place / "out")) == 3
    assert run("--precision", "mixed", "--resume", line={"devices": ("cpu",)}).status == 0


def folder(path):
    (path / "in the way").mkdir(parents=True)


@pytest.mark.parametrize(
    ("where", "what"),
    [
        *(("out", one) for one in ("noise", "pipe", "link-to-itself")),
        *(("out/results.jsonl", one) for one in ("pipe", "folder", "link-to-itself")),
        *((f"out/{name}", "folder") for name in ("run.json", ".run.json.tmp")),
    ],
)
def test_a_folder_that_cannot_take_a_run_is_refused_before_it(run, place, where, what):
    (place / where).parent.mkdir(exist_ok=True)
    folder(place / where) if what == "folder" else ODD[what](place / where)
    opened = IdleLine.opened
    said = run()
    assert (said.status, "--out" in said.words, IdleLine.opened) == (2, True, opened)


@pytest.mark.parametrize("name", ["results.csv", "summary.json", "report.html", ".report.html.tmp"])
@pytest.mark.parametrize("verdict", [Verdict.OK, Verdict.NG])
def test_a_file_at_the_end_that_cannot_be_written_is_status_4(run, place, name, verdict):
    folder(place / "out" / name)
    said = run(line={"verdict": verdict})
    assert said.status == 4
    assert name.strip(".").removesuffix(".tmp") in said.words
    assert [row["verdict"] for row in rows(place / "out")] == [verdict.value] * PICTURES
    shutil.rmtree(place / "out" / name)
    assert run("--resume").status == (0 if verdict is Verdict.OK else 1)
    assert summary(place / "out")["timed_images"] == PICTURES


@pytest.mark.parametrize(
    "reason", with_slow_rows([errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS], fast=1)
)
@pytest.mark.parametrize("file_", ["results.jsonl", "results.csv", "run.json", "summary.json", "report.html"])
def test_a_disk_that_fails_at_the_end_is_status_4_and_the_run_can_go_on(run, place, monkeypatch, reason, file_):
    really, wrote = os.replace, []

    def replace(old, new, **more):
        wrote.append(Path(new).name)
        if Path(new).name == file_ and wrote.count("run.json") > 2:  # from `finish` on
            raise OSError(reason, os.strerror(reason))
        really(old, new, **more)

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", replace)
        broken.setattr(Path, "replace", replace)
        said = run()
    assert said.status == 4
    assert os.strerror(reason) in said.words
    assert len(rows(place / "out")) == PICTURES
    assert not list((place / "out").glob(".*"))
    assert run("--resume").status == 0
    assert summary(place / "out")["images"] == PICTURES
    assert (place / "out" / "report.html").exists()


# What becomes of a picture while it is inspected: at any time, and between its experts.
def odd(name):
    return lambda path: odd_files.replace(path, name)


# What becomes of a picture while it is inspected: at any time, and between its experts.
CHANGES = {
    "vanish": Path.unlink,
    **{name: odd(name) for name in ("folder", "pipe", "link-to-itself", "endless-device", "link-to-nothing", "empty")},
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-20]),
    "swell": lambda path: os.truncate(path, 10**10),
}
BETWEEN = CHANGES | {
    "grow": lambda path: path.write_bytes(path.read_bytes() + b"more"),
    "swap": lambda path: path.write_bytes(path.with_name("R4__A.png").read_bytes()),
}
NAME = "SN0/R0__A.png"


@pytest.mark.parametrize("change", BETWEEN.values(), ids=BETWEEN)
def test_a_picture_that_changes_between_its_experts_is_an_error_alone(run, place, change):
    def between(path):
        if path.name == Path(NAME).name:
            change(path)

    assert run(line={"between": staticmethod(between)}).status == 3
    found = rows(place / "out")
    assert len(found) == PICTURES
    assert [row["image"] for row in found if row["error"]] == [NAME]
    assert summary(place / "out")["errors"] == 1
    assert "<html" in (place / "out" / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_picture_that_is_gone_when_the_report_is_written_is_a_note_there(run, place, monkeypatch, change):
    really = ResultsFile.finish

    def finish(self, *arguments, **options):
        found = really(self, *arguments, **options)
        change(place / "images" / NAME)
        return found

    monkeypatch.setattr(ResultsFile, "finish", finish)
    assert run(line={"verdict": Verdict.NG}).status == 1
    page = (place / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("can no longer be read.") == 1
    assert page.count("<img") == PICTURES - 1


# What changes between the reading of the board and the opening of the line


@pytest.mark.parametrize("resumed", [False, True], ids=["new", "resumed"])
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (other_weights, "experts in the store were changed"),
        (one_other_expert, "experts in the store were changed"),
        (other_rules, "idle.yaml, or its calibration"),
        (other_calibration, "idle.yaml, or its calibration"),
    ],
)
def test_a_line_that_opened_with_something_else_inspects_nothing(run, place, change, sentence, resumed):
    before = []
    if resumed:
        assert run().status == 0
        half(place / "out")
        before = rows(place / "out")

    def opened(self, board, **settings):
        change(place)
        IdleLine.__init__(self, board, **settings)

    said = run(*(["--resume"] if resumed else []), line={"__init__": opened})
    assert (said.status, sentence in said.words) == (2, True)
    assert rows(place / "out") == before
