"""The picture of a profile: it is drawn whatever the profile lacks, and labels tell kinds apart."""

import pytest
from PIL import Image
from tables import with_slow_rows

from coe.errors import ConfigError
from coe.inspector.profile import (
    BatchTime,
    BoardProfile,
    Chosen,
    ExecutorsPoint,
    Fingerprint,
    KindProfile,
    LatencyLine,
    Profile,
    UsageRow,
)
from coe.profiler.draw_profile import draw, labels, loaded
from coe.profiler.search import search_memory

MIB = 1 << 20
MACHINE = Fingerprint(
    cpu="Intel(R) Xeon(R) Processor @ 2.10GHz", cores=2, memory_bytes=8 << 30, gpu=None, driver=None,
    libraries={"torch": "2.11"},
)  # fmt: skip


def kind(name, per_image_s=0.05, size=224, **changes):
    sizes = (1, 2, 3, 4, 6, 8, 12, 16)
    values = {
        "kind": name, "input_size": size, "device": "cpu", "threads": 2, "backend": "torch", "precision": "fp32",
        "batches": tuple(
            BatchTime(images=n, median_s=0.03 + per_image_s * n * (1 + n % 3 / 40), spread=0.1, bytes=n * 9 * MIB)
            for n in sizes
        ),
        "line": LatencyLine(per_image_s=per_image_s, base_s=0.03, error=0.03),
        "max_batch": 4, "weights_bytes": 170 * MIB,
        "activation_bytes": 9 * MIB, "workspace_bytes": 12 * MIB, "load_s": 0.2,
    }  # fmt: skip
    return KindProfile.model_validate({**values, **changes})


def board(experts=60, peak=35, tries=6, images=True):
    total = sum(1 / n for n in range(1, experts + 1))
    usage = tuple(
        UsageRow(expert=f"e{n}", by_rules=1 / n / total, by_images=(1 / n / total) ** 0.8 if images else None)
        for n in range(1, experts + 1)
    )
    search = search_memory(lambda n: 10 + 0.5 * n if n <= peak else 10 + 0.5 * peak - 0.6 * (n - peak), experts)
    return BoardProfile(
        board="A", digest="0" * 64, memory_bytes=4 << 30, strategy="coserve", usage=usage,
        windows=tuple(search.points),
        executors=tuple(
            ExecutorsPoint(executors={"cpu": n}, threads={"cpu": max(1, 6 // n)}, images_per_s=20 + 4 * n - n * n)
            for n in range(1, tries + 1)
        ),
        chosen=Chosen(
            executors={"cpu": 2}, threads={"cpu": 3}, workspace_bytes={"cpu": 300 * MIB}, loaded_experts=search.chosen,
            images_per_s=24.1, casual_images_per_s=21.0,
            reasons=(search.reason, "executors: with 3 throughput is 4.2% lower"),
        ),
    )  # fmt: skip


def profile(*kinds, **boards):
    return Profile(made="2026-11-21T10:00:00+00:00", machine=MACHINE, kinds=kinds, boards=boards)


FOUR = (
    kind("resnet101"),
    kind("resnet101", 0.03, backend="onnxruntime"),
    kind("yolov5m", 0.11, size=640),
    kind("someone_elses_very_long_kind_name_of_an_expert", 0.02),
)
EVERYTHING = board().model_copy(update={"windows": (), "executors": ()})
CASES = {
    "four-kinds": profile(*FOUR, A=board()),
    "one-kind": profile(kind("resnet101"), A=board(tries=3)),
    "all-fit": profile(kind("resnet18"), A=EVERYTHING),
    "few-experts": profile(*FOUR[:2], A=board(experts=5, peak=9, tries=1, images=False)),
    "many-experts": profile(*FOUR[2:], A=board(experts=352, peak=400)),
    "no-kinds": profile(A=board(peak=70)),
}


@pytest.mark.parametrize("name", with_slow_rows(CASES, fast=1))
def test_a_picture_is_drawn_whatever_there_is(name, tmp_path):
    path = draw(CASES[name], "A", tmp_path / "new" / f"{name}.png")
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 1000


def test_labels_say_what_is_not_the_same_of_all():
    assert labels([kind("a"), kind("b")]) == ["a", "b"]
    assert labels(FOUR)[:3] == ["resnet101, torch, 224 px", "resnet101, onnxruntime, 224 px", "yolov5m, torch, 640 px"]
    assert len(labels(FOUR)[3]) < 45
    # Executors of a GPU have no threads to speak of.
    assert labels([kind("a"), kind("a", threads=1), kind("a", device="cuda", threads=1)]) == [
        "a, cpu, 2 threads",
        "a, cpu, 1 thread",
        "a, cuda",
    ]


def test_the_chosen_number_is_that_of_the_search():
    assert loaded(board(peak=35)) == 35
    assert loaded(board(experts=20, peak=99)) == 20
    assert loaded(EVERYTHING) is None


def test_a_board_without_profile_and_a_place_that_cannot_be_written_are_said(tmp_path):
    with pytest.raises(ConfigError, match="does not know board 'B'; known: A"):
        draw(CASES["one-kind"], "B", tmp_path / "a.png")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be written"):
        draw(CASES["one-kind"], "A", tmp_path / "file" / "a.png")
