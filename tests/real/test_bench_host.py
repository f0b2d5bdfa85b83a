"""The host's work alone: networks answer from memory, and everything else is as on any line."""

import json
from pathlib import Path

import pytest
from built_once import linked_copy
from tables import with_slow_rows

from coe.errors import ConfigError
from coe.profiler import remembered_device
from coe.store.store import Store

SMALL = ("--experts", "4", "--kind", "narrow", "--input", "32", "--requests", "24")


def test_kinds_that_open_their_own_files_are_refused():
    with pytest.raises(ConfigError, match="experts of kind 'onnx' open their own files"):
        remembered_device.HostOnlyDevice(
            Store(Path("nowhere")), {"onnx": object()}, 1, remembered=remembered_device.RememberedOutputs()
        )


@pytest.mark.parametrize("form", with_slow_rows(["jpeg", "array"], fast=1))
def test_the_command_measures_the_host_alone(prepared_work, tmp_path, call, form):
    work = linked_copy(prepared_work, tmp_path / "work")
    said = call(
        "run", *SMALL, "--host-only", "--form", form, "--work", work, "--strategy", "late-binding", "--json", "-"
    )
    assert said.status == 0
    (row,) = json.loads(said.out)
    assert (row["images"], row["errors"]) == (24, 0)
    assert row["cpu_ms_per_image"] > 0
    assert row["images_per_s"] > 0
