"""ONNX models with weights in other files: carried into the store as one file, and read from nowhere else."""

import os

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx_files import written

from coe.errors import StoreError
from experts.onnx_reading import bundled


def model(path):
    """Write a model of one matrix, whose numbers lie in another file."""
    matrix = np.arange(32, dtype=np.float32).reshape(4, 8)
    whole = onnx.load(written(path, "float[n,4] x", "y = MatMul(x, w)", "float[n,8] y", w=matrix))
    onnx.save(whole, str(path), save_as_external_data=True, location="x.onnx.data", size_threshold=0)
    return path


def changed(path, **entries):
    """Say other places of the numbers in a model's file."""
    made = onnx.load(str(path), load_external_data=False)
    (tensor,) = made.graph.initializer
    kept = {entry.key: entry.value for entry in tensor.external_data} | entries
    del tensor.external_data[:]
    for key, value in kept.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    path.write_bytes(made.SerializeToString())


def test_one_file_holds_what_two_held(tmp_path):
    path = model(tmp_path / "x.onnx")
    (out := tmp_path / "out").mkdir()
    whole = bundled(path, out)
    assert whole == out / "x.onnx"
    session = onnxruntime.InferenceSession(whole.read_bytes())
    (said,) = session.run(None, {"x": np.ones((1, 4), np.float32)})
    assert said.tolist() == [[48, 52, 56, 60, 64, 68, 72, 76]]


def test_a_model_in_one_file_stays_as_it_is(tmp_path):
    path = tmp_path / "x.onnx"
    made = onnx.load(str(model(tmp_path / "two.onnx")))
    onnx.save(made, str(path))
    assert bundled(path, tmp_path) == path
    (tmp_path / "no.onnx").write_bytes(b"no model")
    assert bundled(tmp_path / "no.onnx", tmp_path) == tmp_path / "no.onnx"


@pytest.mark.parametrize(
    "entries",
    [
        *[{"location": place} for place in ("../secret", "/etc/hostname", "sub/../../secret", "link")],
        *[{"offset": "-8"}, {"length": "many"}, {"offset": "1000000"}, {"length": str(1 << 60)}],
    ],
)
def test_places_outside_the_folder_or_that_are_none_are_not_read(tmp_path, entries):
    (tmp_path / "secret").write_bytes(bytes(1000))
    (home := tmp_path / "home").mkdir()
    path = model(home / "x.onnx")
    os.symlink(tmp_path / "secret", home / "link")
    changed(path, **entries)
    with pytest.raises(StoreError, match="x\\.onnx"):
        bundled(path, tmp_path)


def test_files_that_are_missing_too_short_are_refused(tmp_path):
    path = model(tmp_path / "x.onnx")
    data = tmp_path / "x.onnx.data"
    data.write_bytes(data.read_bytes()[:-4])
    with pytest.raises(StoreError, match="cannot be read"):
        bundled(path, tmp_path)
    data.unlink()
    with pytest.raises(StoreError, match="there is no file"):
        bundled(path, tmp_path)
    os.mkfifo(data)
    with pytest.raises(StoreError, match="there is no file"):
        bundled(path, tmp_path)
