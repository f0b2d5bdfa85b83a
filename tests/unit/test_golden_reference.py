"""What a store keeps beside experts: references, and the pictures that experts learned from."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from golden_parts import PatchPart, bad, moved, noisy, part
from PIL import Image
from tables import with_slow_rows
from trainings import plan, silent

from coe.board import rules
from coe.cli import experts_command
from coe.core import Expert
from coe.errors import ConfigError, StoreError
from coe.learn import golden_reference
from coe.learn.answers import BoardExperts
from coe.learn.golden_reference import learn
from coe.pictures.decoding import decode
from coe.pictures.photographs import Photograph, Purpose
from coe.store.kinds import Reference
from coe.store.learned import LearnedPictures, PictureDigests
from coe.store.reference_reader import EncodedReference
from coe.store.references import NewReference, References
from coe.store.store import Store
from experts.difference import difference
from experts.resnet import ResNet
from experts.taken import TakenPictures

PART = part(1)


def test_one_picture_is_its_own_reference_and_what_is_not_alike_is_left_out_or_makes_none():
    spot = PART.copy()
    spot[100:102, 100:102] = 255
    for pictures in ({"a": PART}, {"spot": spot} | {str(seed): PART for seed in range(5)}):
        learned = learn(pictures)
        assert np.array_equal(learned.image, PART)
        assert not learned.spread.any()
        assert (learned.images, dict(learned.left_out)) == (len(pictures), {})
    learned = learn({"other": part(7), "cut": PART[:90], **{str(seed): noisy(PART, seed) for seed in range(4)}})
    assert learned.images == 4
    assert learned.left_out["other"].count("fit")
    assert learned.left_out["cut"].count("shape")
    with pytest.raises(ConfigError, match="no two"):
        learn({str(seed): part(seed) for seed in (3, 4, 5)})
    with pytest.raises(ConfigError, match="at least one picture"):
        learn({})


def test_noise_becomes_the_spread_and_many_large_pictures_are_learnt_in_bands(monkeypatch):
    learned = learn({str(seed): noisy(PART, seed, levels=6) for seed in range(9)})
    assert np.abs(learned.image.astype(int) - PART).mean() < 3
    assert 8 < learned.spread.mean() < 30, "about three median deviations of the channel that differs most"
    pictures = {f"{right}": moved(PART, right, -right) for right in (0, 3, -4, 5, 1)}
    learned = learn(pictures)
    inside = (slice(10, -10), slice(10, -10))
    assert np.abs(learned.image[inside].astype(int) - pictures["0"][inside]).mean() < 2
    assert [golden_reference.most(pixels) for pixels in (0, 640 * 480, 12_000_000, 100_000_000)] == [50, 50, 16, 3]
    pictures = {str(seed): noisy(PART, seed, levels=6) for seed in range(4)}
    whole = learn(pictures)
    monkeypatch.setattr(golden_reference, "_BAND_BYTES", 4 * PART[0].nbytes * 7)
    bands = learn(pictures)
    assert np.array_equal(bands.image, whole.image)
    assert np.array_equal(bands.spread, whole.spread)


def test_good_parts_that_lie_a_little_askew_stay_and_a_bad_part_among_them_does_not():
    chance = np.random.default_rng(0)
    pictures = {
        str(seed): moved(noisy(PART, seed), *map(float, chance.uniform((-3, -3, -0.5), (3, 3, 0.5))))
        for seed in range(12)
    }
    assert dict(learn(pictures).left_out) == {}
    pictures["bad"] = moved(bad(noisy(PART, 20)), 1.3, -0.6, 0.4)
    assert list(learn(pictures).left_out) == ["bad"]


def test_a_bad_part_among_good_ones_is_left_out_wherever_it_stands_and_of_two_makes_no_reference():
    """Of two its defect would pass as the spread of good parts: it would be OK from then on."""
    good = {str(seed): noisy(PART, seed) for seed in range(5)}
    for place, one in good.items():
        learned = learn(good | {place: bad(one)})
        assert (list(learned.left_out), learned.images) == ([place], 4)
    for others in ({}, {"other": part(7)}):
        with pytest.raises(ConfigError, match="'0' and '1'"):
            learn({"0": good["0"], "1": bad(good["1"]), **others})
        assert learn({"0": good["0"], "1": good["1"], **others}).images == 2


@pytest.mark.parametrize(
    ("alike", "others", "made"), with_slow_rows([(3, 4, False), (4, 4, True), (3, 12, False)], fast=2)
)
def test_the_fewer_are_left_out_and_never_most(alike, others, made):
    pictures = {f"alike-{seed}": noisy(PART, seed) for seed in range(alike)}
    pictures |= {f"other-{seed}": part(seed) for seed in range(10, 10 + others)}
    if made:
        assert (learn(pictures).images, len(learn(pictures).left_out)) == (alike, others)
        return
    with pytest.raises(ConfigError, match=rf"{alike} of {alike + others} .*`patch`"):
        learn(pictures)


def test_a_stored_reference_comes_back_whole(tmp_path):
    references = References(Store(tmp_path))
    learned = learn({str(seed): noisy(PART, seed) for seed in range(3)})
    assert references.ids() == []
    assert references.put("b/U1", learned.encoded("a test")).version == 1
    manifest = references.put("b/U1", learned.encoded("a test"))
    assert (manifest.version, manifest.width, manifest.height, manifest.images) == (2, 160, 160, 3)
    pictures = references.read(references.manifest("b/U1"))
    assert np.array_equal(decode(pictures.image), learned.image)
    assert np.array_equal(decode(pictures.spread)[:, :, 0], learned.spread)
    names = sorted(path.name for path in (tmp_path / "references" / "b" / "U1").iterdir())
    assert names == [".history", "image-2.png", "reference.json", "spread-2.png"], "the former version is history"
    assert Store(tmp_path).ids() == [], "a reference is no expert"


def put(root, image):
    references = References(Store(root))
    references.put("b/U1", NewReference(EncodedReference(image, image), 1, 1, 1))
    return references


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda folder: (folder / "spread-1.png").write_bytes(b""), "checksum"),
        (lambda folder: (folder / "image-1.png").unlink(), "cannot be read"),
        (lambda folder: (folder / "reference.json").write_text("{"), "manifest"),
        (lambda folder: (folder / "reference.json").write_text("{}"), "manifest"),
        (lambda folder: folder.rename(folder.with_name("U2")), "'b/U1'"),
    ],
)
def test_a_damaged_reference_is_refused(tmp_path, damage, word):
    references = put(tmp_path, b"x")
    damage(tmp_path / "references" / "b" / "U1")
    with pytest.raises(StoreError, match=word):
        references.read(references.manifest("b/U1"))


def test_a_reference_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    class Slow(References):
        """Another process is quicker: it replaces the first version before that is read."""

        def read(self, manifest):
            if manifest.version == 1:
                put(tmp_path, b"new")
            return super().read(manifest)

    put(tmp_path, b"old")
    assert Slow(Store(tmp_path)).load("b/U1").image == b"new"
    (tmp_path / "references" / "b" / "U1" / "image-2.png").write_bytes(b"damaged")
    with pytest.raises(StoreError, match="checksum"):
        Slow(Store(tmp_path)).load("b/U1")


def test_a_copied_or_pointing_manifest_is_refused(tmp_path):
    references, folder = put(tmp_path, b"x"), tmp_path / "references" / "b"
    text = (folder / "U1" / "reference.json").read_text()
    (folder / "U2").mkdir()
    (folder / "U2" / "reference.json").write_text(text)
    (folder / "U1" / "reference.json").write_text(text.replace("image-1.png", "../../x.png"))
    for id, word in (("b/U2", "'b/U1'"), ("b/U1", "outside"), ("../U1", "id")):
        with pytest.raises(StoreError, match=word):
            references.manifest(id)


GOOD = Expert("alien", "patch", ("strange",), 96, "shop/alien", frozenset({"strange"}))
DIFFERENT = Expert("day", "difference", ("different",), 96, "shop/day", frozenset({"different"}))
CHIP = Expert("chip", "resnet18", ("ok", "cracked"), 32, "shop/chip", frozenset({"cracked"}))
SMALL = ResNet(18)


def save(path, pixels):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, compress_level=1)
    return path


def noise(seed):
    return np.random.default_rng(seed).integers(0, 255, (32, 32, 3), dtype=np.uint8)


def digests(path):
    return PictureDigests.of_file(path, decode(path))


def test_a_copy_saved_again_without_loss_is_found_and_pictures_that_are_one_shot_are_told(tmp_path):
    first = save(tmp_path / "a.png", noise(0))
    learned = LearnedPictures.of([digests(first), digests(first), digests(save(tmp_path / "b.png", noise(1)))])
    assert len(learned) == 2
    assert learned.holds(digests(save(tmp_path / "renamed.bmp", noise(0))))
    assert not learned.holds(digests(save(tmp_path / "c.png", noise(2))))
    turned = np.ascontiguousarray(noise(0).reshape(16, 64, 3))
    assert not learned.holds(digests(save(tmp_path / "shape.png", turned))), "the same bytes in another shape"
    assert len(learned | LearnedPictures.of([digests(save(tmp_path / "c.png", noise(2)))])) == 3
    assert not LearnedPictures.of([]).holds(digests(first))
    taken, still = TakenPictures(tmp_path), noise(4).repeat(16, axis=0).repeat(16, axis=1) // 2
    spot = still.copy()
    spot[100:103, 100:103] += 100
    for number in range(4):
        frame = still + np.random.default_rng(number).integers(0, 5, still.shape).astype(np.uint8)
        other = spot if number == 3 else frame + np.uint8(3)  # one that shows another part
        for label, pixels in (("ok", frame), ("bad", other)):
            taken.add(save(tmp_path / label / f"{number}.png", pixels), pixels, Purpose.LEARN, label)
    said = [one for one in taken.identical() if "one shot" in one]
    assert (len(said), "4 pictures of 'ok'" in said[0]) == (1, True)


def test_the_store_keeps_the_digests_through_every_change(tmp_path):
    store, first = Store(tmp_path / "store"), digests(save(tmp_path / "a.png", noise(0)))
    state = {"x": torch.zeros(2)}
    about = {"kind": "resnet18", "labels": ("a", "b"), "input_size": 32}

    def put(id, learned):
        store.put(id, state=state, learned=learned, **about)

    put("shop/none", None)
    assert store.learned("shop/none") is None, "nobody knows"
    for number in range(3):  # each replaces the files of the one before
        put("shop/chip", LearnedPictures.of([first, PictureDigests(number, number)]))
        kept = store.learned("shop/chip")
        assert kept.holds(first)
        assert kept.holds(PictureDigests(number, 99))
        assert not kept.holds(PictureDigests(number + 1, number + 1))
        store.check("shop/chip")
    with store.changing("shop/chip") as manifest:
        store.rewrite(manifest)
    store.link("shop/same", "shop/chip", labels=("a", "b"))
    assert store.learned("shop/same").holds(first)
    manifest = store.manifest("shop/chip")
    path = store.folder("shop/chip") / manifest.learned.file
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(StoreError, match="damaged"):
        store.check("shop/chip")
    path.unlink()
    with pytest.raises(StoreError):
        store.learned("shop/chip")


@pytest.mark.parametrize("kind", [pytest.param(PatchPart(), marks=pytest.mark.slow), difference])
def test_kinds_of_good_parts_refuse_folders_that_do_not_mean_good(tmp_path, kind, backbone):
    expert, start = (GOOD, backbone) if isinstance(kind, PatchPart) else (DIFFERENT, None)
    whole = Reference(part(), np.zeros(part().shape[:2], np.uint8))

    def train(data, expert=expert):
        return kind.train(expert, plan(data, references={"U1": whole}, held_out=0.0, init=start), silent)

    for number in range(3):
        save(tmp_path / f"{number}.png", noisy(part(), number))
    for number, folder in enumerate(("pass", "Good", "ok/pass")):
        save(tmp_path / folder / "x.png", noisy(part(), 10 + number))
    hidden = save(tmp_path / ".thumbs" / "x.png", noisy(part(), 13))
    with pytest.raises(ConfigError, match="hidden"):
        train(tmp_path)
    hidden.unlink()
    trained = train(tmp_path)
    assert (trained.metrics["good_parts"], "3 from" in trained.took, "1 from pass" in trained.took) == (6, True, True)
    assert trained.learned.holds(digests(tmp_path / "ok/pass/x.png"))
    for number, folder in enumerate(("gut/2026-11-25", "20261125", "Good parts")):
        save(tmp_path / folder / "y.png", noisy(part(), 20 + number))
    assert train(tmp_path).metrics["good_parts"] == 9
    dated = replace(expert, labels=("20261125",), reject=frozenset({"20261125"}))  # a label, whatever it looks like
    assert train(tmp_path, dated).metrics["good_parts"] == 8
    for folder in ("gut", "20261125", "Good parts"):
        shutil.rmtree(tmp_path / folder)
    (label,) = expert.labels
    bad_one = save(tmp_path / label / "y.png", bad(part()))
    save(tmp_path / "defects" / "y.png", bad(part()))
    assert train(tmp_path).metrics["good_parts"] == 6, "what is known to be bad is left out"
    save(tmp_path / "pass" / "rejects" / "y.png", bad(part()))
    save(tmp_path / "what" / "y.png", bad(part()))
    with pytest.raises(ConfigError, match=r"pass/rejects.*what"):
        train(tmp_path)
    with pytest.raises(ConfigError, match="label of bad parts"):
        train(bad_one.parent)
    shutil.rmtree(tmp_path / "pass" / "rejects")
    shutil.rmtree(tmp_path / "what")
    against = replace(expert, reject=frozenset({*expert.reject, "OK"}))  # then it is no word for good
    with pytest.raises(ConfigError, match="ok/pass"):
        train(tmp_path, against)


def test_identical_pictures_are_said(tmp_path):
    taken = TakenPictures(tmp_path)
    for number, purpose in enumerate((Purpose.LEARN, Purpose.TEST, Purpose.VERIFY, Purpose.LEARN)):
        taken.add(save(tmp_path / f"ok/{number}.png", noise(number)), noise(number), purpose, "ok")
    assert list(taken.identical()) == []
    assert taken.leaked == frozenset()
    copy = save(tmp_path / "ok" / "copy.bmp", noise(0))
    taken.add(copy, noise(0), Purpose.TEST, "ok")
    (across,) = taken.identical()
    assert ("two parts" in across, "0.png = ok/copy.bmp" in across, taken.leaked) == (True, True, {copy})
    other = noise(3).repeat(2, axis=0).repeat(2, axis=1) // 4 * 4
    defect = noise(2)
    defect[8:14, 8:14] //= 2
    for name, pixels in (("copy.jpg", other), ("defect.png", defect)):
        taken.add(save(tmp_path / "bad" / name, pixels), pixels, Purpose.LEARN, "bad")
    still = noise(4).repeat(16, axis=0).repeat(16, axis=1) // 2  # as of a camera that does not move
    spot, line = still.copy(), still.copy()
    spot[100:103, 100:103] += 100
    line[50:110, 80] += 60
    for name, pixels, label in (("still", still, "ok"), ("spot", spot, "bad"), ("line", line, "bad")):
        taken.add(save(tmp_path / label / f"{name}.png", pixels), pixels, Purpose.LEARN, label)
    _, torn = taken.identical()
    assert "ok/3.png = bad/copy.jpg" in torn
    assert not any(name in torn for name in ("defect", "still", "spot", "line"))
    taken.add(save(tmp_path / "bad" / "same.bmp", still), still, Purpose.LEARN, "bad")
    assert any("ok/still.png = bad/same.bmp" in said for said in taken.identical())
    assert len(taken.learned) == 9, "what is held out alone was not learned"
    assert not taken.learned.holds(digests(tmp_path / "ok" / "1.png"))


def test_a_classifier_tells_what_it_took_and_which_pictures_are_the_same(tmp_path):
    for label in CHIP.labels:
        for number in range(4):
            save(tmp_path / label / f"{number}.png", noise(number + (10 if label == "ok" else 0)))
    copy = tmp_path / "ok" / "copy.png"
    copy.write_bytes((tmp_path / "cracked" / "0.png").read_bytes())
    with pytest.raises(ConfigError, match=r"cracked/0\.png = ok/copy\.png"):
        SMALL.train(CHIP, plan(tmp_path), silent)
    copy.unlink()
    save(tmp_path / "ok" / "wrong.bmp", noise(0))
    trained = SMALL.train(CHIP, plan(tmp_path), silent)
    assert "4 from cracked, 5 from ok" in trained.took
    assert any("two labels" in remark and "cracked/0.png" in remark for remark in trained.remarks)
    assert trained.learned.holds(digests(tmp_path / "ok" / "1.png"))


def test_pictures_from_which_their_own_reference_is_made_are_named(tmp_path, call):
    expert = "{kind: patch, labels: [strange], input: 64, reject: [strange], then: {none: OK}}"
    (tmp_path / "b.yaml").write_text(
        f"board: b\nexperts:\n  any: {expert}\ncomponents:\n  U1: {{inspect: any, reference: U1}}\n"
    )
    for number in range(3):
        save(tmp_path / "good/U1" / f"{number}.png", noisy(part(), number))
    options = ("--images", tmp_path / "good", "--store", tmp_path / "store")
    assert call("reference", tmp_path / "b.yaml", *options, command=experts_command).status == 0
    own = shutil.copy(tmp_path / "good/U1/1.png", tmp_path / "copy.png")
    other = save(tmp_path / "other.png", noisy(part(), 7))
    board = rules.load(tmp_path / "b.yaml")
    asked = BoardExperts(board, Store(tmp_path / "store"))
    given = [
        Photograph(own, name="own", expert="any", label="none"),
        Photograph(other, name="other", expert="any", label="none"),
        Photograph(other, name="beside itself", expert="any", label="none", reference=other),
        Photograph(own, name="beside another", expert="any", label="none", reference=other),
    ]
    assert asked.in_references(board.experts["any"], given) == ["own", "beside itself"]
