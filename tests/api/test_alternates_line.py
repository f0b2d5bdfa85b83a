"""Components whose good parts have two looks: each picture is compared with the reference that it fits best."""

import json
import shutil

import numpy as np
import pytest
from built_once import linked_copy
from golden_parts import bad, half_second, moved, noisy, part, second_look
from picture_folders import saved

from coe import Inspector
from coe.cli import experts_command, inspect
from coe.errors import StoreError
from coe.learn.golden_reference import learn
from coe.results import records
from coe.store.references import References
from coe.store.store import Store

ALLOW = ("--allow-kind", "golden_parts")
BOARD = """\
board: two
experts:
  any: {kind: "golden_parts:PatchPart", labels: [strange], input: 96, reject: [strange], then: {none: OK}}
  day: {kind: "golden_parts:FirstDay", labels: [different], input: 160, reject: [different], then: {none: any}}
components:
  U1: {inspect: day, reference: [blank, marked]}
"""
DAY_ALONE = [line.replace("none: any", "none: OK") for line in BOARD.splitlines() if "PatchPart" not in line]
LOOKS = {"blank": np.copy, "marked": second_look}


def shot(pixels, seed):
    """Return a part as a camera sees it: noisy, shifted by up to three pixels."""
    right, down = np.random.default_rng(seed).integers(-3, 4, 2)
    return moved(noisy(pixels, seed), float(right), float(down))


@pytest.fixture(scope="module")
def made(tmp_path_factory, backbone):
    """A board of two looks, its references and experts; do not change it."""
    folder = tmp_path_factory.mktemp("two-looks")
    linked_copy(backbone.parents[2], folder / "store")
    (folder / "two.yaml").write_text(BOARD, encoding="utf-8")
    for name, look in LOOKS.items():
        saved(folder / name / "U1", *(shot(look(part()), seed) for seed in range(4)))
    saved(folder / "good", *(shot(look(part()), seed) for look in LOOKS.values() for seed in range(10, 15)))
    training = ("--board", "two.yaml", "--data", "good", "--epochs", "1", "--threads", "1", "--no-prepare", *ALLOW)
    for words in (
        *(("reference", "two.yaml", "--images", name, "--as", name) for name in LOOKS),
        *(("train", f"two/{expert}", *training) for expert in ("any", "day")),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr("sys.argv", ["coe-experts", *words])
            with pytest.raises(SystemExit) as ended:
                experts_command.main()
        assert not ended.value.code
    return folder


@pytest.fixture
def learned(made, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True)


def test_each_picture_is_judged_by_the_look_that_it_fits_best(learned, call):
    pictures = {"blank": [np.copy, bad, half_second], "marked": [np.copy, bad, lambda picture: picture[::-1]]}
    for name, changes in pictures.items():
        saved(learned / "line" / name, *(shot(change(LOOKS[name](part())), 40) for change in changes))
    rows = [f"{name}/0{number}.png,U1" for name in LOOKS for number in range(3)]
    (learned / "line" / "images.csv").write_text("path,component\n" + "\n".join(rows) + "\n", encoding="utf-8")
    run = ("--board", "two.yaml", "--images", "line", "--out", "run", "--memory", "200MiB", "--precision", "fp32")
    ran = call(*run, *ALLOW, command=inspect)
    assert ran.status == 1, ran.err
    results = {result.request.image: result for result in records.read(learned / "run" / "results.jsonl")}
    said = {name: (result.verdict, result.findings[-1].reference) for name, result in results.items()}
    assert said == {
        "blank/00.png": ("OK", "two/blank"),
        "blank/01.png": ("NG", "two/blank"),
        "blank/02.png": ("NG", "two/blank"),
        "marked/00.png": ("OK", "two/marked"),
        "marked/01.png": ("NG", "two/marked"),
        "marked/02.png": ("REVIEW", said["marked/02.png"][1]),
    }, "the mark of the other look is a defect of this one"
    report = (learned / "run" / "report.html").read_text(encoding="utf-8")
    assert all(f"two/{name}, version 1" in report for name in LOOKS)
    used = json.loads((learned / "run" / "run.json").read_text(encoding="utf-8"))["references"]
    assert used == {f"two/{name}": References(Store(None)).manifest(f"two/{name}").checksum for name in LOOKS}


def test_calibration_judges_as_the_line_does_and_a_bundle_takes_all_alternates_along(learned, call):
    for label, change in (("none", np.copy), ("strange", bad)):
        saved(learned / "seen" / "any" / label, *(shot(change(LOOKS[name](part())), 60) for name in LOOKS))
    judged = call("evaluate", "two.yaml", "--images", "seen", *ALLOW, command=experts_command)
    assert "any: 4 of 4 as labelled" in judged.out, judged.out + judged.err
    assert call("bundle", "two.yaml", command=experts_command).status == 0
    unpacked = ("install", "two.coe", "--store", "other", "--rules", "elsewhere", *ALLOW)
    assert call(*unpacked, command=experts_command).status == 0
    assert References(Store(learned / "other")).ids() == ["two/blank", "two/marked"]


def test_an_expert_is_bound_to_all_frames_in_which_it_learned(learned, call):
    verify = ("verify", *ALLOW)
    assert call(*verify, command=experts_command).status == 0
    (learned / "turned.yaml").write_text(BOARD.replace("[blank, marked]", "[marked, blank]"), encoding="utf-8")
    with pytest.raises(StoreError, match="was trained with other references"):
        Inspector("turned.yaml", allow_kinds=["golden_parts"], profile=None)
    References(Store(None)).put("two/marked", learn({"new": second_look(part(3))}).encoded("another"))
    assert call(*verify, command=experts_command).status == 1
    with pytest.raises(StoreError, match="was trained with other references"):
        Inspector("two.yaml", allow_kinds=["golden_parts"], profile=None)


def test_limits_of_good_parts_are_bound_to_the_reference_from_which_they_were_measured(learned):
    (learned / "day.yaml").write_text("\n".join(DAY_ALONE) + "\n", encoding="utf-8")
    Inspector("day.yaml", allow_kinds=["golden_parts"], profile=None).close()
    References(Store(None)).put("two/marked", learn({"new": second_look(part(3))}).encoded("another"))
    with pytest.raises(StoreError, match="was trained with other references"):
        Inspector("day.yaml", allow_kinds=["golden_parts"], profile=None)


@pytest.mark.usefixtures("learned")
@pytest.mark.parametrize(("arguments", "words"), [((), "blank, marked"), (("--as", "mark"), "'marked'")])
def test_it_must_be_said_which_look_pictures_show(call, arguments, words):
    refused = call("reference", "two.yaml", "--images", "blank", *arguments, command=experts_command)
    assert (refused.status, words in refused.words) == (2, True), refused.err


def test_missing_and_unlike_alternates_are_refused_at_the_start(learned):
    options = {"allow_kinds": ["golden_parts"], "profile": None}
    (learned / "gone.yaml").write_text(BOARD.replace("marked]", "mark]"), encoding="utf-8")
    with pytest.raises(StoreError, match=r"'two/mark' .*'two/marked'"):
        Inspector("gone.yaml", **options)
    References(Store(None)).put("two/marked", learn({"small": part()[:60, :60]}).encoded("small"))
    with pytest.raises(StoreError, match=r"'two/blank' .*160 x 160 .*'two/marked' .*60 x 60"):
        Inspector("two.yaml", **options)
