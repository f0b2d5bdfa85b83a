"""Files as trainers save them: exact names behind a prefix, records of known programs, and a question for the rest."""

import argparse
import collections
import datetime
import functools
import json
import pathlib
import random
import re
import zipfile
from contextlib import nullcontext
from dataclasses import replace

import narrow
import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file
from tiny_line import STATED
from torch import nn

from coe.bring.facts import Wishes
from coe.bring.importing import bring, unwrapped
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import CoeError, StoreError
from coe.helpers.preprocessing import NORMALIZATIONS
from coe.store import kinds
from coe.store.kinds import Foreign
from coe.store.skeletons import skeleton
from coe.store.store import Store
from experts import records
from experts.checkpoint import read_checkpoint
from experts.efficientnet import efficientnet_lite0
from experts.resnet import resnet18

EXPERT = Expert("x", "narrow", ("ok", "bad"), 32, "t/x")
SEEN = {"resize": "letterbox", "channels": "rgb", "mean": (0.5,) * 3, "std": (0.5,) * 3}


@pytest.fixture(scope="module", autouse=True)
def few_weights():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(narrow, "HIDDEN", 64)
        yield


def brought(path, saved=None, prefix=""):
    """Import what a training saved, which is written first, without a command."""
    if saved is not None:
        torch.save(saved, path)
    return bring(path, EXPERT, kinds.resolve("narrow"), Wishes(SEEN, prefix=prefix), path.parent)


def network():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return kinds.resolve("narrow").skeleton(EXPERT)


def same(took, state):
    return took is not None and all(torch.equal(took[name], value) for name, value in state.items())


@pytest.fixture(scope="module")
def state():
    return dict(network().state_dict())


def under(prefix, state):
    return {f"{prefix}{name}": value for name, value in state.items()}


def altered(state):
    return {name: value + 1 if value.is_floating_point() else value for name, value in state.items()}


def averaged(state):
    module = network()
    module.load_state_dict(state)
    return dict(torch.optim.swa_utils.AveragedModel(module).state_dict())


def training(state):
    """What scripts save beside the weights: arguments, dates, paths, numbers, random states, optimizers."""
    optimizer = torch.optim.SGD([nn.Parameter(value) for value in state.values() if value.is_floating_point()], 0.1)
    return {
        "args": argparse.Namespace(model="narrow", lr=0.1, out=pathlib.Path("out"), betas=(0.9, 0.99)),
        "date": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "took": datetime.timedelta(seconds=3),
        "where": pathlib.PureWindowsPath("c:/x"),
        "optimizer": optimizer.state_dict(),
        "best_acc1": torch.tensor(85.0),
        "metric": np.float64(0.5),
        "history": np.arange(6, dtype=np.int64).reshape(2, 3),
        "numpy_rng": np.random.default_rng(1).bit_generator.state,
        "legacy_rng": np.random.RandomState(1).get_state(),
        "python_rng": random.Random(1).getstate(),
        "rng_state": torch.get_rng_state(),
        "counts": collections.defaultdict(int, a=1),
        "last": collections.deque([1, 2], maxlen=3),
        "kinds": frozenset(("a", "b")),
        "augment": functools.partial(max, 1),
        "epoch": 3,
    }


WRAPPED = {
    **{
        prefix: lambda s, prefix=prefix: under(prefix, s)
        for prefix in ("_orig_mod.", "module.", "model.", "backbone.", "net.module.", "a.b.c.", "module._orig_mod.")
    },
    "AveragedModel": averaged,
    "reference script": lambda s: {"model": s, **training(s)},
    "weights": lambda s: {"weights": s, "epoch": 1, "accuracy": torch.tensor(0.9)},
    "figures among them": lambda s: s | {"best_acc": torch.tensor(0.9), "train/loss": torch.tensor(0.1)},
    "the same twice": lambda s: {"last": s, "best": dict(s)},
    "parts that were compiled": lambda s: {
        f"model.{name.replace('layer1.', 'layer1._orig_mod.').replace('fc.', '_fsdp_wrapped_module.fc.')}": value
        for name, value in s.items()
    },
    "behind a Dropout": lambda s: {name.replace("fc.", "fc.1."): value for name, value in under("model.", s).items()},
    "without counters": lambda s: {n: v for n, v in s.items() if not n.endswith("num_batches_tracked")},
    "halves": lambda s: {n: v.half() if v.is_floating_point() else v for n, v in s.items()},
    "halves of counters too": lambda s: {
        n: torch.tensor(70_000.0).half() if n.endswith("num_batches_tracked") else v for n, v in s.items()
    },
    "doubles": lambda s: {n: v.double() if v.is_floating_point() else v for n, v in s.items()},
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_weights_are_found_behind_one_prefix(tmp_path, state, name):
    took = brought(tmp_path / "x.pt", WRAPPED[name](state))
    took.put(Store(tmp_path / "store"), "x.pt")
    stored = Store(tmp_path / "store").load("t/x")
    assert stored.keys() == state.keys()
    kept = state if name != "halves" else {n: v.half().to(v.dtype) for n, v in state.items()}
    assert all(torch.equal(stored[n], kept[n]) for n in state if not n.endswith("num_batches_tracked"))


SEVERAL = {
    "an average": (lambda s: {"model": altered(s), "model_ema": averaged(s), **training(s)}, "model_ema/module"),
    "timm": (lambda s: {"state_dict": altered(s), "state_dict_ema": s}, "state_dict_ema"),
    "one dict": (lambda s: under("student.", altered(s)) | under("teacher.", s), "teacher"),
    "another network": (lambda s: {"model": s, "teacher": {"other": torch.ones(3)}}, "model"),
    "lightning": (
        lambda s: {
            "state_dict": under("model.", s) | {"loss.weight": torch.ones(3), "train_acc.tp": torch.ones(2)},
            "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}}],
        },
        "state_dict/model",
    ),
    "a head behind it": (lambda s: under("backbone.", s) | {"head.weight": torch.ones(2, 2)}, "backbone"),
    "beside no prefix": (lambda s: {**s, "ema": {"other": torch.ones(3)}}, "."),
}


@pytest.mark.parametrize(("make", "prefix"), SEVERAL.values(), ids=SEVERAL)
def test_of_several_networks_the_user_says_the_prefix(tmp_path, state, make, prefix):
    with pytest.raises(StoreError, match=rf"--prefix.*{re.escape(prefix)}"):
        brought(tmp_path / "x.pt", make(state))
    assert same(brought(tmp_path / "x.pt", prefix=prefix).state, state)
    with pytest.raises(StoreError, match="no network of this kind"):
        brought(tmp_path / "x.pt", prefix="elsewhere")


def test_a_number_inside_of_the_network_is_not_left_out(tmp_path, state):
    with pytest.raises(StoreError, match="temperature"):
        brought(tmp_path / "x.pt", {"model": {**state, "temperature": torch.tensor(2.0)}})


def test_safetensors_have_wrappers_too(tmp_path, call, state):
    save_file(under("model.backbone.", state), tmp_path / "x.safetensors", metadata={"format": "pt", "by": "somebody"})
    options = ("--kind", "narrow", "--input", "32", "--labels", "ok,bad", "--no-prepare", "--store", tmp_path / "store")
    said = call("import", "t/x", tmp_path / "x.safetensors", *options, *STATED, command=experts_command)
    assert (said.status, "under 'model.backbone.'" in said.words) == (0, True)


UNCLEAR = {
    "profiled": lambda s: s | {"conv1.total_ops": torch.ones(1)},
    "pruned": lambda s: {n.replace("conv1.weight", "conv1.weight_orig"): v for n, v in s.items()},
    "a last layer of another name beside it": lambda s: {
        n.replace("fc.", "classifier.") if n.startswith("fc.") else f"backbone.{n}": v for n, v in s.items()
    },
    "2 last layers": lambda s: {n.replace("fc.", "fc.3."): v for n, v in s.items()} | {"fc.0.weight": torch.ones(4)},
}


@pytest.mark.parametrize("make", UNCLEAR.values(), ids=UNCLEAR)
def test_other_names_are_refused_with_the_way_out(tmp_path, state, make):
    with pytest.raises(StoreError, match="ONNX"):
        brought(tmp_path / "x.pt", make(state))


def test_names_of_a_kind_that_maps_them_itself_are_left_alone(state):
    foreign = Foreign({f"other.{name}.x": value for name, value in state.items()})
    assert unwrapped(foreign, state, "x").state == foreign.state


def test_a_whole_network_is_taken_also_of_torchvision(tmp_path, state):
    for module in (network(), nn.DataParallel(network())):
        assert same(brought(tmp_path / "x.pt", {"model": module, "epoch": 3}).state, state)
    module = torchvision.models.resnet18(num_classes=2)
    torch.save(module, tmp_path / "x.pt")
    expert = replace(EXPERT, kind="resnet18")
    took = bring(tmp_path / "x.pt", expert, kinds.resolve("resnet18"), Wishes(SEEN), tmp_path).state
    assert same(took, module.state_dict())
    module.layer1[0].conv1.stride = (2, 2)
    torch.save(module, tmp_path / "x.pt")
    with pytest.raises(StoreError, match="ONNX"):
        bring(tmp_path / "x.pt", expert, kinds.resolve("resnet18"), Wishes(SEEN), tmp_path)


OTHER_NETWORKS = {
    "eps": ("ONNX", lambda m: setattr(m.bn1, "eps", 0.01)),
    "stride": ("ONNX", lambda m: setattr(m.layer1.conv1, "stride", (1, 1))),
    "padding": ("ONNX", lambda m: setattr(m.conv1, "padding", (0, 0))),
    "activation": ("ONNX", lambda m: setattr(m, "relu", nn.ReLU6())),
    "pooling": ("ONNX", lambda m: setattr(m, "avgpool", nn.AdaptiveMaxPool2d(1))),
    "a sigmoid behind": ("ONNX", lambda m: m.append(nn.Sigmoid())),
    "another head": ("ONNX", lambda m: setattr(m, "fc", nn.Sequential(m.fc, nn.Sigmoid()))),
    "more labels": ("5 outputs", lambda m: setattr(m, "fc", nn.Linear(m.fc.in_features, 5))),
    "a layer before it": ("further layers", lambda m: nn.Sequential(nn.Upsample(scale_factor=2), m)),
    "a layer behind it": ("further layers", lambda m: nn.Sequential(m, nn.ReLU())),
}


@pytest.mark.parametrize(("words", "change"), OTHER_NETWORKS.values(), ids=OTHER_NETWORKS)
def test_a_whole_network_that_computes_something_else_is_refused(tmp_path, words, change):
    module = network()
    with pytest.raises(StoreError, match=words):
        brought(tmp_path / "x.pt", {"model": change(module) or module, "criterion": nn.CrossEntropyLoss()})


def test_labels_by_text_stand_in_the_order_of_their_numbers(tmp_path):
    module = network()
    module.names = {str(number): f"c{number}" for number in range(11)}
    torch.save({"model": module}, tmp_path / "x.pt")
    assert read_checkpoint(tmp_path / "x.pt").labels == tuple(f"c{number}" for number in range(11))


RECORDS = {
    "torchvision": (
        {"args": argparse.Namespace(val_crop_size=40, val_resize_size=48, interpolation="bilinear", lr=0.1)},
        {"size": 40, "resize": "center-crop", "shortest_edge": 48, "interpolation": "bilinear-antialias"}
        | {"mean": NORMALIZATIONS["imagenet"][0], "channels": "rgb"},
    ),
    "timm": (
        {"args": {"crop_pct": 0.8, "img_size": 40, "mean": [0.5] * 3, "std": [0.4] * 3, "interpolation": "bicubic"}},
        {"size": 40, "resize": "center-crop", "shortest_edge": 50, "std": (0.4,) * 3, "channels": "rgb"},
    ),
    "timm squashes": ({"args": {"crop_pct": 1, "img_size": 40, "crop_mode": "squash"}}, {"resize": "stretch"}),
    "timm's border": ({"args": {"crop_pct": 0.9, "img_size": 40, "crop_mode": "border"}}, {"unsaid": {"resize"}}),
    "Lanczos": ({"args": {"crop_pct": 1, "img_size": 40, "interpolation": "lanczos"}}, {"unsaid": {"interpolation"}}),
    "timm's defaults": ({"args": {"crop_pct": None, "img_size": None, "mean": None, "std": None}}, {"unsaid": set()}),
    "OpenMMLab": (
        {
            "meta": {
                "CLASSES": ("ok", "bad"),
                "cfg": "data_preprocessor = dict(mean=[127.5, 127.5, 127.5], std=[63.75, 63.75, 63.75], to_rgb=True)",
            }
        },
        {"labels": ("ok", "bad"), "channels": "rgb", "mean": (0.5,) * 3, "std": (0.25,) * 3},
    ),
    "OpenMMLab in BGR": (
        {"meta": {"cfg": "data_preprocessor = dict(mean=[103.5, 116.3, 123.7], std=[1.0, 1.0, 1.0], to_rgb=False)"}},
        {"channels": "bgr"},
    ),
    "nobody": ({"mean": [1], "std": [1], "size": 9}, {"size": None, "labels": None, "seen": {}}),
    "a list of labels": ({"classes": ["ok", "bad"]}, {"labels": ("ok", "bad")}),
    "labels by number": ({"idx_to_class": {0: "ok", 1: "bad"}}, {"labels": ("ok", "bad")}),
    "numbers by label": ({"class_to_idx": {"bad": 1, "ok": 0}}, {"labels": ("ok", "bad")}),
    "labels of Lightning": ({"hyper_parameters": {"class_names": ["ok", "bad"]}}, {"labels": ("ok", "bad")}),
    "labels of samples": ({"labels": ["ok", "ok", "bad"]}, {"labels": None}),
    "names of something else": ({"names": [f"run {number}" for number in range(777)]}, {"labels": None}),
}


@pytest.mark.parametrize(("content", "expected"), RECORDS.values(), ids=RECORDS)
def test_records_of_known_programs_count(tmp_path, state, content, expected):
    torch.save({"state_dict": state, **content}, tmp_path / "x.pt")
    read = resnet18.read(tmp_path / "x.pt")
    found = {**read.seen, "seen": dict(read.seen), "labels": read.labels, "size": read.input_size}
    found["unsaid"] = {*read.unsaid}
    assert {key: found[key] for key in expected} == expected


CROP = {"do_resize": True, "do_center_crop": True, "crop_size": 40, "resample": 2, "image_mean": [0.5] * 3}
CROP |= {"image_std": [0.5] * 3}
HUGGING = {
    "a shorter side": (CROP | {"size": {"shortest_edge": 48}}, ("center-crop", 48, 40)),
    "a square": (CROP | {"size": {"height": 48, "width": 48}}, ("stretch", 48, 40)),
    "ConvNext": ({"do_resize": True, "size": {"shortest_edge": 40}, "crop_pct": 0.8333, "resample": 2}, ("resize",)),
    "no crop": ({"do_resize": True, "size": {"shortest_edge": 40}}, ("resize",)),
    "a number": (CROP | {"size": 48}, ("resize",)),
    "another step": (CROP | {"size": 48, "do_pad": True}, ("resize", "mean")),
    "other colours": (CROP | {"do_flip_channel_order": True}, ("resize", "mean")),
    "the nearest pixel": (CROP | {"size": {"shortest_edge": 48}, "resample": 0}, ("interpolation",)),
    "no size": (CROP | {"size": [[40, 40]]}, ("resize",)),
}


@pytest.mark.parametrize("name", HUGGING)
def test_what_hugging_faces_processors_say(name):
    processor, expected = HUGGING[name]
    read = records.hugging_face(processor)
    if len(expected) < 3:
        assert read.unsaid.keys() == {*expected}
    else:
        assert (read.seen["resize"], read.seen["shortest_edge"], read.input_size) == expected
        assert (read.unsaid, read.seen["rounds_down"], read.seen["interpolation"]) == ({}, True, "bilinear-antialias")


@pytest.mark.parametrize("odd", [[], {}, "x", 10**400, float("nan"), [[1]], None, True, 0])
def test_records_of_another_form_say_nothing(odd):
    keys = ("size", "crop_size", "resample", "image_mean", "rescale_factor", "crop_pct", "mean", "std", "interpolation")
    settings = {**dict.fromkeys((*keys, "input_size", "img_size", "val_crop_size", "val_resize_size"), odd)}
    settings |= {"do_resize": True, "do_center_crop": True, "data_preprocessor": settings, "args": settings}
    for read in (records.of_checkpoint, records.torchvision, records.timm, records.hugging_face, records.openmmlab):
        found = read(settings)
        assert (found.input_size, found.seen.get("mean", found.seen.get("resize"))) == (None, None)


def test_records_beside_the_weights_count(tmp_path, state):
    save_file(state, tmp_path / "model.safetensors")
    tuned = {"input_size": [3, 64, 64], "crop_pct": 1.0, "mean": [0.5] * 3, "std": [0.5] * 3}
    for name, text in (
        ("args.yaml", "mean: [0.5, 0.5, 0.5]\nstd: [0.5, 0.5, 0.5]\ncrop_pct: 1.0\nimg_size: 64\nlr: 0.1\n"),
        ("config.json", json.dumps({"architecture": "resnet18", "pretrained_cfg": tuned, "label_names": ["a", "b"]})),
    ):
        (tmp_path / name).write_text(text)
        read = resnet18.read(tmp_path / "model.safetensors")
        assert (read.input_size, read.seen["mean"], read.seen["channels"]) == (64, (0.5,) * 3, "rgb")
        assert read.seen["resize"] == "center-crop"
        assert read.labels == (("a", "b") if name == "config.json" else None)
        assert name in " ".join(read.remarks)
        (tmp_path / name).unlink()


def test_weights_that_are_given_as_a_network_of_onnx_say_so(tmp_path, state):
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(StoreError, match="give the --kind of their network"):
        bring(tmp_path / "x.pt", replace(EXPERT, kind="onnx"), kinds.resolve("onnx"), Wishes(), tmp_path)


def test_hugging_faces_names_of_a_resnet_are_known(tmp_path):
    expert = Expert("x", "resnet18", ("ok", "bad"), 32, "t/x")
    wanted = skeleton(resnet18, expert, optional=()).state_dict()
    theirs = {}
    for name, value in wanted.items():
        layer, leaf = name.rsplit(".", 1)
        stage, *inner = re.findall(r"\d+", layer) if layer.startswith("layer") else ["0"]
        place = f"resnet.encoder.stages.{int(stage) - 1}.layers.{inner[0] if inner else ''}"
        part = "convolution" if re.search(r"conv\d$|downsample\.0", layer) else "normalization"
        other = "classifier.1" if layer == "fc" else f"resnet.embedder.embedder.{part}"
        if "downsample" in layer:
            other = f"{place}.shortcut.{part}"
        elif inner:
            other = f"{place}.layer.{int(inner[1]) - 1}.{part}"
        theirs[f"{other}.{leaf}"] = value
    save_file(theirs, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"id2label": {"0": "ok", "1": "bad"}, "hidden_act": "relu"}))
    read = resnet18.read(tmp_path / "model.safetensors")
    assert read.labels == ("ok", "bad")
    assert all(torch.equal(read.state[name], value) for name, value in wanted.items())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # what users saved in its time still comes
def test_a_file_that_is_something_else_says_the_way_out(tmp_path):
    scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2)))
    scripted.save(str(tmp_path / "script.pt"))
    (tmp_path / "lfs.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    (tmp_path / "page.pth").write_text("<!DOCTYPE html><html></html>")
    (tmp_path / "keras.pt").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    (tmp_path / "lite.pt").write_bytes(b"\x1c\0\0\0TFL3" + bytes(100))
    for name in ("frozen.pb", "x.onnx"):
        (tmp_path / name).write_bytes(b"\n\x12\n\5input" + bytes(100))
    for name, inside in (("packed.zip", "w/best.pt"), ("whole.keras", "config.json"), ("tm.zip", "labels.txt")):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr(inside, "x")
            archive.writestr("model.weights.h5", "x")
    save_file({"a": torch.ones(1)}, tmp_path / "safe.pt")
    ways = dict.fromkeys(("script.pt", "keras.pt", "lite.pt", "whole.keras", "tm.zip"), "ONNX")
    ways |= {"lfs.pt": "git lfs pull", "page.pth": "torch.save", "safe.pt": ".safetensors", "frozen.pb": "torch.save"}
    ways |= {"x.onnx": "--kind onnx", "packed.zip": "unpack"}
    for name, way in ways.items():
        with pytest.raises(CoeError) as refused:
            brought(tmp_path / name)
        assert way in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*torch.quantize:UserWarning")
def test_a_quantised_network_says_so(tmp_path):
    packed = (torch.quantize_per_tensor(torch.ones(2, 2), 1, 0, torch.qint8), torch.ones(2))
    torch.save({"model": {"fc.scale": torch.ones(()), "fc._packed_params._packed_params": packed}}, tmp_path / "x.pt")
    with pytest.raises(StoreError, match="quantised"):
        read_checkpoint(tmp_path / "x.pt")


def args(**said):
    return {"args": argparse.Namespace(**said)}


@pytest.mark.parametrize(
    ("said", "is_other"),
    [
        ({"arch": "resnetblur50"}, True),
        ({"arch": "resnet", **args(model="resnetaa50.d_in1k")}, True),
        ({"arch": "resnet50.a1_in1k"}, False),
        ({"arch": "resnet", **args(model="my_resnet")}, False),
        (args(gp="max"), True),
        (args(model_kwargs={"act_layer": "silu"}), True),
        ({"hyper_parameters": {"model_name": "resnetblur50"}}, True),
        (args(model="efficientnet_lite0"), True),
        (args(model="tf_efficientnet_lite0.in1k"), False),
        ({"meta": {"cfg": "model = dict(backbone=dict(depth=50, style='caffe'))"}}, True),
        ({"meta": {"cfg": "model = dict(head=dict(type='MultiLabelLinearClsHead'))"}}, True),
        (args(gp=None, model_kwargs={"drop_path_rate": 0.1, "act_layer": "relu"}), False),
        ({"args": {"act_layer": "None", "model_kwargs": {"act_layer": "torch.nn.ReLU"}}}, False),
        ({"args": {"act_layer": "<class 'torch.nn.modules.activation.ReLU'>"}}, False),
        ({"hyper_parameters": {"act_layer": "nn.ReLU(inplace=True)"}}, False),
        ({"args": {"replace_stride_with_dilation": (False, False, False), "aa_layer": ""}}, False),
        ({"hyper_parameters": {"global_pool": "avg", "teacher": "resnetaa101", "output_stride": 32}}, False),
        ({"meta": {"cfg": "model = dict(backbone=dict(depth=50, style='pytorch'))"}}, False),
    ],
)
def test_settings_of_a_network_that_computes_something_else(tmp_path, state, said, is_other):
    torch.save({"state_dict": state, **said}, tmp_path / "x.pt")
    with pytest.raises(StoreError, match="ONNX") if is_other else nullcontext():
        resnet18.read(tmp_path / "x.pt")


def test_each_kind_knows_its_own_activation(tmp_path, state):
    for activation, expected in (("ReLU6", nullcontext()), ("silu", pytest.raises(StoreError, match="silu"))):
        torch.save({"state_dict": state, "args": {"act_layer": activation}}, tmp_path / "x.pt")
        with expected:
            efficientnet_lite0.read(tmp_path / "x.pt")


def test_a_wrong_number_of_labels_and_another_kind_name_the_file(tmp_path, state):
    wide = {name: value.repeat(2, *[1] * (value.dim() - 1)) for name, value in state.items() if name.startswith("fc.")}
    with pytest.raises(StoreError, match=r"x\.pt.*4 outputs"):
        brought(tmp_path / "x.pt", state | wide)
    torch.save(state, tmp_path / "x.pt")
    with pytest.raises(StoreError, match=r"x\.pt.*another kind"):
        bring(tmp_path / "x.pt", replace(EXPERT, kind="resnet18"), kinds.resolve("resnet18"), Wishes(SEEN), tmp_path)
