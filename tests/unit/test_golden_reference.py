"""A reference from pictures of good parts: the median, the spread, and what is left out."""

import numpy as np
import pytest
from golden_parts import bad, moved, noisy, part

from coe.errors import ConfigError, StoreError
from coe.learn import golden_reference
from coe.learn.golden_reference import learn
from coe.pictures.decoding import decode
from coe.store.reference_reader import EncodedReference
from coe.store.references import NewReference, References
from coe.store.store import Store

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
    assert learned.left_out["other"].startswith("does not fit '")
    assert learned.left_out["cut"].startswith("is of another shape than '")
    with pytest.raises(ConfigError, match="no two of these pictures"):
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


@pytest.mark.parametrize("place", range(5))
def test_a_bad_part_among_good_ones_is_left_out_wherever_it_stands(place):
    pictures = {str(seed): noisy(PART, seed) for seed in range(5)}
    pictures[str(place)] = bad(pictures[str(place)])
    learned = learn(pictures)
    assert list(learned.left_out) == [str(place)]
    assert "is the part good?" in learned.left_out[str(place)]
    assert learned.images == 4


@pytest.mark.parametrize("others", [{}, {"other": part(7)}])
def test_two_pictures_that_differ_make_no_reference(others):
    """One of them is bad, and its defect would pass as the spread of good parts: it would be OK from then on."""
    pictures = {"a": noisy(PART, 0), "b": bad(noisy(PART, 1)), **others}
    with pytest.raises(ConfigError, match=r"'a' and 'b' differ at \d+ pixels"):
        learn(pictures)
    assert learn({"a": noisy(PART, 0), "b": noisy(PART, 1), **others}).images == 2


@pytest.mark.parametrize(("alike", "others", "made"), [(3, 12, False), (3, 4, False), (4, 4, True)])
def test_the_fewer_are_left_out_and_never_most(alike, others, made):
    pictures = {f"alike-{seed}": noisy(PART, seed) for seed in range(alike)}
    pictures |= {f"other-{seed}": part(seed) for seed in range(10, 10 + others)}
    if made:
        assert (learn(pictures).images, len(learn(pictures).left_out)) == (alike, others)
        return
    with pytest.raises(ConfigError, match=rf"{alike} of {alike + others} pictures.*`patch`"):
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


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda folder: (folder / "spread-1.png").write_bytes(b""), "its checksum differs"),
        (lambda folder: (folder / "image-1.png").unlink(), "cannot be read"),
        (lambda folder: (folder / "reference.json").write_text("{"), "the manifest cannot be read"),
        (lambda folder: (folder / "reference.json").write_text("{}"), "the manifest cannot be read"),
        (lambda folder: folder.rename(folder.with_name("U2")), "no reference 'b/U1'"),
    ],
)
def test_a_damaged_reference_is_refused(tmp_path, damage, sentence):
    references = References(Store(tmp_path))
    references.put("b/U1", NewReference(EncodedReference(b"x", b"y"), 1, 1, 1))
    damage(tmp_path / "references" / "b" / "U1")
    with pytest.raises(StoreError, match=sentence):
        references.read(references.manifest("b/U1"))


def test_a_reference_that_is_replaced_while_it_is_read_is_read_again(tmp_path):
    class Slow(References):
        """Another process is quicker: it replaces the first version before that is read."""

        def read(self, manifest):
            if manifest.version == 1:
                References(Store(tmp_path)).put("b/U1", NewReference(EncodedReference(b"new", b"new"), 1, 1, 1))
            return super().read(manifest)

    References(Store(tmp_path)).put("b/U1", NewReference(EncodedReference(b"old", b"old"), 1, 1, 1))
    assert Slow(Store(tmp_path)).load("b/U1").image == b"new"
    (tmp_path / "references" / "b" / "U1" / "image-2.png").write_bytes(b"damaged")
    with pytest.raises(StoreError, match="its checksum differs"):
        Slow(Store(tmp_path)).load("b/U1")


def test_a_copied_or_pointing_manifest_is_refused(tmp_path):
    references = References(Store(tmp_path))
    references.put("b/U1", NewReference(EncodedReference(b"x", b"y"), 1, 1, 1))
    folder = tmp_path / "references" / "b"
    text = (folder / "U1" / "reference.json").read_text()
    (folder / "U2").mkdir()
    (folder / "U2" / "reference.json").write_text(text)
    with pytest.raises(StoreError, match="is that of reference 'b/U1'"):
        references.manifest("b/U2")
    (folder / "U1" / "reference.json").write_text(text.replace("image-1.png", "../../x.png"))
    with pytest.raises(StoreError, match="lies outside"):
        references.manifest("b/U1")
    with pytest.raises(StoreError, match="is not an expert id"):
        references.manifest("../U1")
