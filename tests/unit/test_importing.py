"""`coe-experts import`: labelled pictures judged at once, folders of weights, backbones, models in several files."""

import shutil

import onnx
import pytest
import torch
from lamp import BOARD, STATED, lamp, picture
from safetensors.torch import save_file

from coe.board import rules
from coe.cli import experts_command
from coe.core import Expert, Finding, Verdict
from coe.store import kinds
from coe.store.store import Store

LAMP = ("--kind", "onnx", "--input", "32", *STATED, "--no-prepare", "--labels", "dark,bright")


@pytest.fixture
def run(tmp_path, call, monkeypatch):
    """Return a function that runs `coe-experts` with a store, in a folder of its own."""
    (here := tmp_path / "here").mkdir()
    monkeypatch.chdir(here)
    return lambda *arguments: call(*arguments, "--store", tmp_path / "store", command=experts_command)


def state(labels=2):
    kind = kinds.resolve("narrow")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        expert = Expert("x", "narrow", tuple(map(str, range(labels))), 32, "t/x")
        return dict(kind.skeleton(expert).state_dict())


def test_labelled_pictures_are_judged_at_once(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    for number, level in enumerate(range(5, 100, 5)):
        picture(tmp_path / "labelled" / "dark" / f"{number}.png", level)
    for number, level in enumerate(range(200, 250, 5)):
        picture(tmp_path / "labelled" / "bright" / f"{number}.png", level)
    said = run("import", "b/lamp", tmp_path / "lamp.onnx", *LAMP, "--images", tmp_path / "labelled")
    assert (said.status, "lamp: 29 of 29 as labelled" in said.out) == (0, True)
    picture(tmp_path / "labelled" / "bright" / "odd.png", 20)
    (tmp_path / "labelled" / "bright" / "0.png").unlink()
    said = run("import", "b/lamp", tmp_path / "lamp.onnx", *LAMP, "--images", tmp_path / "labelled")
    assert (said.status, "lamp: 28 of 29 as labelled" in said.out) == (0, True)
    assert "bright/odd.png: expected bright" in said.out
    assert "nothing was checked" not in said.out
    # The layout of `evaluate` is taken, too.
    shutil.move(tmp_path / "labelled", tmp_path / "lamp")
    (tmp_path / "labelled").mkdir()
    shutil.move(tmp_path / "lamp", tmp_path / "labelled" / "lamp")
    said = run("import", "b/lamp", tmp_path / "lamp.onnx", *LAMP, "--images", tmp_path / "labelled")
    assert "lamp: 28 of 29 as labelled" in said.out
    assert "`coe-experts restore b/lamp@2`" in said.out
    assert run("restore", "b/lamp@2").status == 0
    # A board's folders of components say nothing of one expert: the folder to give is named.
    shutil.move(tmp_path / "labelled" / "lamp", tmp_path / "labelled" / "L1")
    said = run("import", "b/lamp", tmp_path / "lamp.onnx", *LAMP, "--images", tmp_path / "labelled")
    assert (said.status, str(tmp_path / "labelled" / "L1") in said.words) == (2, True)


OWN = """
from dataclasses import replace
from coe.store import kinds

narrow = kinds.resolve("narrow")


class Own(type(narrow)):
    preprocessing = None

    def preprocess(self, image, expert):
        return super().preprocess(image, replace(expert, preprocessing=narrow.preprocessing))
"""


def test_a_kind_that_states_nothing_must_be_right_all_the_same(run, tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    save_file(state(), tmp_path / "x.safetensors")
    for label in ("ok", "bad"):
        picture(tmp_path / "labelled" / label / "a.png", 100)
    options = ("--kind", "own:Own", "--allow-kind", "own", "--input", "32", "--labels", "ok,bad", "--no-prepare")
    line = ("import", "b/x", tmp_path / "x.safetensors", *options, "--images", tmp_path / "labelled")
    said = run(*line)
    assert (said.status, "x: 1 of 2 as labelled" in said.out) == (1, True), said.err
    assert run(*line, "--right", "0.5").status == 0


def test_without_pictures_it_says_that_nothing_was_checked(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    said = run("import", "b/lamp", tmp_path / "lamp.onnx", *LAMP)
    assert said.status == 0
    assert said.out.splitlines()[-1].startswith("nothing was checked")


def test_pictures_that_are_unclear_keep_the_expert_out(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    picture(tmp_path / "labelled" / "dim" / "a.png", 5)
    said = run("import", "b/lamp", tmp_path / "lamp.onnx", *LAMP, "--images", tmp_path / "labelled")
    assert (said.status, "'dim' is not a label of 'lamp'" in said.words) == (2, True)
    assert not (tmp_path / "store").exists()


def test_a_picture_that_cannot_be_read_is_told(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    picture(tmp_path / "labelled" / "dark" / "a.png", 5)
    picture(tmp_path / "labelled" / "bright" / "a.png", 250)
    (tmp_path / "labelled" / "dark" / "b.png").write_bytes(b"no picture")
    said = run("import", "b/lamp", tmp_path / "lamp.onnx", *LAMP, "--images", tmp_path / "labelled")
    assert (said.status, "not judged: dark/b.png" in said.words) == (1, True)
    assert "2 of 2 as labelled" in said.out


def test_a_folder_of_weights_becomes_experts_and_a_draft(run, tmp_path):
    (folder := tmp_path / "weights").mkdir()
    torch.save({"state_dict": state(), "epoch": 3}, folder / "Body A.pth.tar")
    save_file(state(), folder / "body-b.safetensors")
    lamp(folder / "lamp.onnx")
    (folder / "broken.pt").write_bytes(b"no weights")
    (folder / "pointer.onnx").write_text("version https://git-lfs.github.com/spec/v1\n")
    (folder / "readme.md").write_text("weights")
    for name, level in (("a", 10), ("b", 20)):
        picture(tmp_path / "labelled" / "lamp" / "ok" / f"{name}.png", level)
    picture(tmp_path / "labelled" / "lamp" / "bad" / "c.png", 230)
    options = ("--kind", "narrow", "--labels", "ok,bad", "--no-prepare", *STATED, "--normalize", "0..255")
    (folder / "model.yaml").write_text("input: 32\n")
    said = run("import", "line7", folder, *options, "--images", tmp_path / "labelled")
    assert said.status == 1
    assert "broken.pt:" in said.words
    assert "git lfs pull" in said.words
    assert "left out: readme.md" in said.words
    assert "lamp.onnx" not in said.words
    assert "3 of 5 files imported" in said.out
    assert "lamp: 3 of 3 as labelled" in said.out
    assert Store(tmp_path / "store").ids() == ["line7/Body-A", "line7/body-b", "line7/lamp"]
    board = rules.load(tmp_path / "here" / "line7.yaml")
    assert {id: expert.weights for id, expert in board.experts.items()} == {
        name: f"line7/{name}" for name in ("Body-A", "body-b", "lamp")
    }
    for name, component in board.components.items():
        said_ok = board.router.next(component.root, Finding(name, "fp32", "ok", 1.0))
        assert said_ok.verdict is Verdict.REVIEW


def test_a_file_of_a_folder_that_its_pictures_refute_stays_out(run, tmp_path):
    (folder := tmp_path / "weights").mkdir()
    for name in ("lamp", "other"):
        lamp(folder / f"{name}.onnx")
    for number in range(10):
        picture(tmp_path / "labelled" / "lamp" / "dark" / f"{number}.png", 5 + number)
        picture(tmp_path / "labelled" / "lamp" / "bright" / f"{number}.png", 240 + number)
    options = ("--input", "32", "--labels", "bright,dark", "--no-prepare", *STATED)
    said = run("import", "b", folder, *options, "--images", tmp_path / "labelled")
    assert (said.status, "--labels dark,bright" in said.words) == (1, True)
    assert Store(tmp_path / "store").ids() == ["b/other"]
    (tmp_path / "labelled" / "othr").mkdir()
    said = run("import", "b", folder, *options, "--images", tmp_path / "labelled")
    assert (said.status, "othr" in said.words) == (1, True)


def test_a_table_is_held_against_each_file_of_a_folder(run, tmp_path):
    (folder := tmp_path / "weights").mkdir()
    for name in ("lamp", "other"):
        lamp(folder / f"{name}.onnx")
    rows = ["path,expert,label"]
    for number in range(10):
        for label, level in (("dark", 5), ("bright", 240)):
            picture(tmp_path / "shown" / label / f"{number}.png", level + number)
            rows.append(f"{label}/{number}.png,lamp,{label}")
    (table := tmp_path / "shown" / "images.csv").write_text("\n".join(rows))
    options = ("--input", "32", "--labels", "bright,dark", "--no-prepare", *STATED)
    for images_at in (tmp_path / "shown", table):
        said = run("import", "b", folder, *options, "--images", images_at)
        assert (said.status, "--labels dark,bright" in said.words) == (1, True)
        assert Store(tmp_path / "store").ids() == ["b/other"]
    table.write_text("\n".join([*rows, "dark/1.png,othr,dark"]))
    said = run("import", "b", folder, *options, "--images", table)
    assert (said.status, "'othr' is not an expert" in said.words) == (1, True)


def test_a_draft_replaces_no_file(run, tmp_path):
    (folder := tmp_path / "weights").mkdir()
    lamp(folder / "lamp.onnx")
    options = ("--input", "32", "--labels", "dark,bright", "--no-prepare", *STATED)
    (tmp_path / "here" / "b.yaml").write_text("mine")
    said = run("import", "b", folder, *options)
    assert (said.status, "b.yaml" in said.words) == (0, True)
    assert (tmp_path / "here" / "b.yaml").read_text() == "mine"
    said = run("import", "b", folder, *options, "--draft", tmp_path / "here" / "b.yaml")
    assert (said.status, (tmp_path / "here" / "b.yaml").read_text()) == (2, "mine")
    for_board = ("--board", tmp_path / "here" / "b.yaml", "--draft", tmp_path / "other.yaml")
    assert run("import", "b", folder, *options, *for_board).status == 2
    said = run("import", "b", folder, *options, "--draft", tmp_path / "other.yaml")
    assert (said.status, "lamp" in rules.load(tmp_path / "other.yaml").experts) == (0, True)


@pytest.mark.parametrize(
    ("id", "names", "says"),
    [
        ("b/x", ["lamp.onnx"], "a board's name alone"),
        ("b", [], "holds no file of weights"),
        ("b", ["notes.txt"], "holds no file of weights"),
    ],
)
def test_folders_that_cannot_be_imported(run, tmp_path, id, names, says):
    (folder := tmp_path / "weights").mkdir()
    for name in names:
        (folder / name).touch()
    said = run("import", id, folder, *LAMP)
    assert (said.status, says in said.words) == (2, True)


def test_two_files_of_one_name_are_both_refused(run, tmp_path):
    (folder := tmp_path / "weights").mkdir()
    lamp(folder / "lamp.onnx")
    torch.save(state(), folder / "lamp.pt")
    said = run("import", "b", folder, *LAMP)
    assert (said.status, said.err.count("2 files would be")) == (1, 2)
    assert not (tmp_path / "store").exists()


def test_a_backbone_has_no_head_and_judges_nothing(run, tmp_path):
    many = {f"model.{name}": value for name, value in state(1000).items()}
    torch.save({"state_dict": many}, tmp_path / "x.pth")
    options = ("--kind", "narrow", "--input", "32")
    assert run("import", "base/x", tmp_path / "x.pth", *options, "--labels", "ok,bad").status == 2
    said = run("import", "base/x", tmp_path / "x.pth", *options, "--as-backbone")
    assert said.status == 0
    store = Store(tmp_path / "store")
    kept, whole = store.load("base/x"), state(1000)
    assert kept.keys() == {name for name in whole if not name.startswith("fc.")}
    assert all(torch.equal(kept[name], whole[name]) for name in kept)
    assert run("verify").status == 0
    assert run("prepare").status == 0
    (tmp_path / "b.yaml").write_text(
        "board: b\nexperts:\n  x: {kind: narrow, labels: [ok, bad], input: 32, reject: [bad], weights: base/x}\n"
        "components:\n  A: {inspect: x}\n"
    )
    picture(tmp_path / "labelled" / "x" / "ok" / "a.png", 9)
    said = run("evaluate", tmp_path / "b.yaml", "--images", tmp_path / "labelled")
    assert (said.status, "a backbone" in said.words) == (2, True)


def test_a_training_starts_from_a_backbone(run, tmp_path):
    torch.save(state(1000), tmp_path / "x.pth")
    assert run("import", "base/x", tmp_path / "x.pth", "--kind", "narrow", "--input", "32", "--as-backbone").status == 0
    for label, level in (("ok", 200), ("bad", 20)):
        for number in range(3):
            picture(tmp_path / "data" / label / f"{number}.png", level + number)
    options = ("--kind", "narrow", "--input", "32", "--epochs", "1", "--no-prepare", "--data", tmp_path / "data")
    kept = ("--body", "base/x", "--freeze", "conv1,bn1")
    said = run("train", "b/x", *options, *kept)
    assert said.status == 0, said.err
    assert torch.equal(Store(tmp_path / "store").load("b/x")["conv1.weight"], state(1000)["conv1.weight"])
    assert run("train", "b/y", *options, "--init", "base/x").status == 0


@pytest.mark.parametrize(
    "options", [("--labels", "ok,bad"), ("--images", "."), ("--board", "demo"), ("--kind", "onnx")], ids=str
)
def test_options_that_make_no_backbone(run, tmp_path, options):
    lamp(tmp_path / "x.onnx")
    said = run("import", "base/x", tmp_path / "x.onnx", "--input", "32", "--as-backbone", *options)
    assert said.status == 2
    assert not (tmp_path / "store").exists()


def test_a_backbone_of_another_kind_is_refused(run, tmp_path):
    torch.save({"conv1.weight": torch.ones(3)}, tmp_path / "x.pth")
    said = run("import", "base/x", tmp_path / "x.pth", "--kind", "narrow", "--input", "32", "--as-backbone")
    assert (said.status, "which the file lacks" in said.words) == (2, True)
    other = {name: value if name != "conv1.weight" else torch.ones(2, 2) for name, value in state().items()}
    torch.save(other, tmp_path / "x.pth")
    said = run("import", "base/x", tmp_path / "x.pth", "--kind", "narrow", "--input", "32", "--as-backbone")
    assert (said.status, "needs conv1.weight" in said.words) == (2, True)


def test_a_model_of_two_files_goes_into_the_store_as_one(run, tmp_path):
    lamp(tmp_path / "one.onnx")
    model = onnx.load(str(tmp_path / "one.onnx"))
    for tensor in model.graph.initializer:
        tensor.raw_data = onnx.numpy_helper.to_array(tensor).tobytes()
    (home := tmp_path / "two").mkdir()
    onnx.save(model, str(home / "lamp.onnx"), save_as_external_data=True, location="lamp.onnx.data", size_threshold=0)
    assert (home / "lamp.onnx.data").stat().st_size
    picture(tmp_path / "labelled" / "dark" / "a.png", 5)
    picture(tmp_path / "labelled" / "bright" / "b.png", 250)
    said = run("import", "b/lamp", home / "lamp.onnx", *LAMP, "--images", tmp_path / "labelled")
    assert (said.status, "2 of 2 as labelled" in said.out) == (0, True)
    shutil.rmtree(home)
    assert run("verify", "b/lamp").status == 0


def test_a_model_in_a_newer_form_says_so(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    for change in ({"ir_version": 99}, {"opset": 99}):
        model = onnx.load(str(tmp_path / "lamp.onnx"))
        if "opset" in change:
            model.opset_import[0].version = 99
        else:
            model.ir_version = 99
        (tmp_path / "new.onnx").write_bytes(model.SerializeToString())
        said = run("import", "b/lamp", tmp_path / "new.onnx", *LAMP)
        assert (said.status, "newer than onnxruntime" in said.words) == (2, True), said.err


def test_what_nobody_says_is_asked_at_once_and_model_yaml_answers(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    asked = run("import", "b/lamp", tmp_path / "lamp.onnx", "--no-prepare")
    assert asked.status == 2
    assert all(option in asked.words for option in ("--labels", "--resize", "--channels", "--activation"))
    asked = run("import", "b/lamp", tmp_path / "lamp.onnx", "--no-prepare", "--labels", "dark,bright")
    assert asked.status == 2
    assert all(f"{key}: " in asked.words for key in ("resize", "channels", "activation"))
    assert "normalize" not in asked.words  # it takes bytes
    said = "labels: [dark, bright]\nresize: stretch\nchannels: rgb\nactivation: softmax\n"
    (tmp_path / "model.yaml").write_text(said)
    assert run("import", "b/lamp", tmp_path / "lamp.onnx", "--no-prepare").status == 0
    stored = Store(tmp_path / "store").manifest("b/lamp")
    assert (stored.labels, stored.input_size) == (("dark", "bright"), 32)
    assert stored.preprocessing is not None
    assert (stored.preprocessing.resize, stored.outputs and stored.outputs.activation) == ("stretch", "softmax")
    # Options count before the file, and neither counts before what a record says.
    assert run("import", "b/lamp", tmp_path / "lamp.onnx", "--no-prepare", "--resize", "letterbox").status == 0
    assert Store(tmp_path / "store").manifest("b/lamp").preprocessing.resize == "letterbox"  # type: ignore[union-attr]
    (tmp_path / "model.yaml").write_text(said.replace("[dark, bright]", "[no, on]"))  # as written, not False and True
    assert run("import", "b/lamp", tmp_path / "lamp.onnx", "--no-prepare").status == 0
    assert Store(tmp_path / "store").manifest("b/lamp").labels == ("no", "on")
    for more, word in (
        ("normalize: imagenet", "contradict"),
        ("size: 3", "'size'"),
        ("labels: [bright, dark]", "labels"),
        ("kind:", "kind"),
        ("input: big", "pixels"),
        ("[", ""),
    ):
        (tmp_path / "model.yaml").write_text(said + more)
        refused = run("import", "b/lamp", tmp_path / "lamp.onnx", "--no-prepare")
        assert (refused.status, word in refused.words) == (2, True)


def test_model_yaml_is_held_against_the_board(run, tmp_path):
    lamp(tmp_path / "lamp.onnx")
    (board := tmp_path / "lamps.yaml").write_text(BOARD)
    said = "resize: stretch\nchannels: rgb\nactivation: softmax\n"
    options = ("import", "lamps/lamp", tmp_path / "lamp.onnx", "--board", board, "--no-prepare")
    (tmp_path / "model.yaml").write_text(f"{said}labels: [bright, dark]\n")  # in the order of the outputs
    assert run(*options).status == 0
    assert Store(tmp_path / "store").manifest("lamps/lamp").labels == ("bright", "dark")
    for more, word in (("labels: [cat, dog]", "cat, dog"), ("input: 64", "64")):
        (tmp_path / "model.yaml").write_text(said + more)
        refused = run(*options)
        assert (refused.status, word in refused.words, "model.yaml" in refused.words) == (2, True, True)
    (tmp_path / "model.yaml").write_text(said)
    assert run(*options, "--labels", "bright,dark").status == 2


def test_records_of_hugging_face_beside_a_model_count(run, tmp_path):
    (folder := tmp_path / "w").mkdir()
    lamp(folder / "lamp.onnx")
    (folder / "config.json").write_text('{"id2label": {"0": "dark", "1": "bright"}}')
    (folder / "preprocessor_config.json").write_text('{"do_resize": true, "size": {"height": 32, "width": 32}}')
    said = run("import", "b/lamp", folder / "lamp.onnx", "--no-prepare", "--channels", "rgb")
    assert (said.status, "config.json" in said.words) == (0, True), said.err
    stored = Store(tmp_path / "store").manifest("b/lamp")
    assert (stored.labels, stored.preprocessing and stored.preprocessing.resize) == (("dark", "bright"), "stretch")
    assert run("import", "b/lamp", folder / "lamp.onnx", *LAMP[:-1], "dark,dim").status == 2
    lamp(folder / "other.onnx")  # whose records they are is open now
    assert run("import", "b/lamp", folder / "lamp.onnx", *LAMP[:-1], "dark,dim").status == 0
    (folder / "other.onnx").unlink()
    (folder / "config.json").write_text("{broken")
    assert run("import", "b/lamp", folder / "lamp.onnx", *LAMP).status == 2


def test_a_folder_that_is_a_model_of_another_program_says_the_way_out(run, tmp_path):
    (folder := tmp_path / "model").mkdir()
    (folder / "saved_model.pb").write_text("x")
    said = run("import", "b/lamp", folder, *LAMP)
    assert (said.status, "ONNX" in said.words) == (2, True)
