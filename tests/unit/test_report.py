"""The report as a browser would parse it: whole, self-contained, escaped."""

import base64
import hashlib
import io
import itertools
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from texts import texts

from coe.core import Box, Failure, FailureKind, Finding, Heat, Request, Result, Verdict
from coe.errors import ImageError
from coe.helpers.files import DiskFull
from coe.helpers.visible import is_visible, visible
from coe.pictures.photographs import Photograph
from coe.results.report import write_report
from coe.results.report_cards import PixelSource, ReferencePicture
from coe.results.result_lines import from_line, to_line
from coe.results.summary import RunFigures, summarise

OK, NG, REVIEW = Verdict.OK, Verdict.NG, Verdict.REVIEW
RUN = RunFigures("demo", "coserve", 938, 20_000, 7, 3 << 29, 2 << 30, 3 << 30, 75.0, started="21 November 2026")
VOID = {"meta", "img", "input", "br", "link", "use", "path", "rect", "circle"}


class Page(HTMLParser):
    """The tags, texts and attributes of a page; fails if tags do not close in order."""

    def __init__(self, text):
        super().__init__()
        self.source = text
        self.open = []
        self.tags = []
        self.words = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag, **attributes):
        wanted = {name.rstrip("_"): value for name, value in attributes.items()}
        return [a for t, a in self.tags if t == tag and all(a.get(name) == value for name, value in wanted.items())]


def result(name, verdict=OK, *, boxes=(), serial="SN1", refdes="R1", component="R0402", error="is empty"):
    findings = (Finding("body", "fp32", "ok", 0.9), Finding("joint", "fp32", "bridge", 0.7999, tuple(boxes)))
    request = Request(0, component, name, serial, refdes)
    failure = None if verdict else Failure(FailureKind.IMAGE, error)
    return Result(request, verdict, findings if verdict else (), 0.1, failure)


def grey(_):
    return np.full((50, 100, 3), 90, np.uint8)


def written(folder, results, source, board="demo", **options):
    path, run, missing = folder / "report.html", options.pop("run", RUN), options.pop("missing", ())
    write_report(path, board, results, summarise(results, run, missing), source, **options)
    return Page(path.read_text(encoding="utf-8"))


def render(folder, results, load=grey, **options):
    page = written(folder, results, PixelSource(load), **options)
    return page.source, page


def test_of_a_finding_made_again_only_the_boxes_that_decide_are_drawn(tmp_path):
    box = Box("bridge", 0.5, (1.0, 2.0, 30.0, 40.0))
    first, second = Finding("joint", "q8", "bridge", 0.5, (box,)), Finding("joint@fp32", "fp32", "joint", 0.75)
    one = Result(Request(0, "R0402", "a", "SN1", "R1"), NG, (first, second), 0.1)
    _, page = render(tmp_path, [one])
    assert not page.all("rect", class_="line")
    assert not page.all("rect", class_="line first")
    assert "joint bridge 0.50 q8 joint@fp32 joint 0.75" in page.text
    assert "1 of 1 findings were run again in fp32, 1 changed" in page.text
    _, page = render(tmp_path, [result("a", NG, boxes=[box])])
    assert page.all("rect", class_="line first")
    assert "run again" not in page.text


def test_it_needs_nothing_from_elsewhere(tmp_path):
    text, page = render(tmp_path, [result("a", NG), result("b")])
    assert ("http:" in text, "https:" in text, "@import" in text) == (False, False, False)
    assert not page.all("link")
    for tag, attributes in page.tags:
        for name in ("src", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/jpeg;base64,")), (tag, value)
        assert not [name for name in attributes if name.startswith("on")]
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
        in text.replace("&#39;", "'")
    )


def test_the_numbers(tmp_path):
    seen = [result("a", NG), result("b", REVIEW, refdes="R7"), result("c", None, serial="SN2")]
    text = render(tmp_path, [*seen, *(result(f"{n}", serial="SN3") for n in range(5))])[1].text
    for words in (
        *("1 of 3 boards", "8 images", "1 NG", "1 to review", "1 that could not be inspected"),
        *("12.5 images/s", "1 min 15 s", "1.50 GiB of 2.00 GiB", "strategy coserve", "c is empty"),
        "99.9 %",  # never rounded up to all
        "SN1 R1 R7",  # what keeps a board from being OK
    ):
        assert words in text


def test_a_card_shows_the_chain_and_the_boxes(tmp_path):
    boxes = [
        Box("joint", 0.9, (0, 0, 10, 10)),
        Box("bridge", 0.7999, (20, 10, 60, 40)),
        Box("far", 0.5, (90, 40, 300, 99)),
    ]
    page = render(tmp_path, [result("SN1/a.png", NG, boxes=boxes)])[1]
    assert "body ok 0.90 joint bridge 0.79" in page.text  # rounded down: 0.7999 did not reach 0.80
    assert len(page.all("rect", class_="line")) == 2
    (first,) = page.all("rect", class_="line first")
    assert [first[name] for name in ("x", "y", "width", "height")] == ["20", "10", "40.00", "30.00"]
    far = page.all("rect", class_="line")[0]  # cut to the picture
    assert [far[name] for name in ("x", "y", "width", "height")] == ["90", "40", "10.00", "10.00"]
    assert [a["style"] for a in page.all("span", class_="tag")] == ["right:0.00%;top:80.0%", "left:20.00%;top:20.0%"]
    assert page.all("span", class_="tag below")[0]["style"] == "left:0.00%;top:20.0%"  # no room above
    assert page.all("svg", viewbox="0 0 100 50")
    assert page.all("img")[0]["alt"] == "NG: R0402 R1 SN1"


def test_a_card_numbers_many_boxes_leaves_out_what_cannot_be_drawn_and_has_a_small_picture(tmp_path):
    boxes = [Box("bridge", 0.5 + n / 100, (n * 9, 5, n * 9 + 8, 20)) for n in range(8)]
    page = render(tmp_path, [result("a", NG, boxes=boxes)])[1]
    assert "1 bridge 0.57 2 bridge 0.56" in page.text
    boxes = [Box("x", math.nan, (0, 0, math.nan, 1)), Box("y", 0.5, (10, 10, 5, 5)), Box("z", 0.5, (0, 0, math.inf, 9))]
    page = render(tmp_path, [result("a", NG, boxes=boxes)])[1]
    assert page.all("rect", class_="line") == []
    page = render(tmp_path, [result("a", NG)], lambda _: np.zeros((3000, 1500, 3), np.uint8))[1]
    address = str(page.all("img")[0]["src"])
    picture = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    assert (picture.format, picture.size) == ("JPEG", (240, 480))
    assert page.all("svg", viewbox="0 0 1500 3000") == []  # no boxes, no drawing
    page = render(tmp_path, [result("a", NG)], lambda _: np.zeros((8, 9000, 3), np.uint8))[1]
    assert len(page.all("img")) == 1


@pytest.mark.parametrize("error", [ImageError("gone"), OSError("gone"), KeyError("gone")])
def test_a_lost_picture_costs_that_picture_alone(tmp_path, error):
    def load(name):
        if name == "a":
            raise error
        return grey(name)

    page = render(tmp_path, [result("a", NG), result("b", NG)], load)[1]
    assert page.text.count("can no longer be read.") == 1
    assert len(page.all("img")) == 1


EVIL = "<script>alert(1)</script>\"'&amp;{{ 7*7 }}</style>\u202e\x00é"


def test_every_text_is_escaped(tmp_path):
    box = Box(EVIL, 0.9, (0, 0, 9, 9))
    results = [
        Result(Request(0, EVIL, EVIL, EVIL, EVIL), NG, (Finding(EVIL, EVIL, EVIL, 0.9, (box,) * count),), 0.1)
        for count in (1, 5)
    ]
    results.append(result(EVIL, None, error=EVIL, serial=EVIL, component=EVIL))
    run = RunFigures(EVIL, EVIL, started=EVIL)
    text, page = render(tmp_path, results, board=EVIL, run=run)
    assert ("<script>alert" in text, text.count("<script>"), text.count("</style>")) == (False, 1, 1)
    assert "{{ 7*7 }}" in text
    assert page.all("figure")[0]["data-component"] == visible(EVIL)
    assert is_visible(text)
    assert "\\xff" in render(tmp_path, [result("\udcff", NG)])[0], "a lone surrogate"


@pytest.mark.parametrize("name", ["SN\u202egnp", "SN\u200bpng", "SN\x1bpng", "SN\npng", "SN\xadpng"])
def test_no_board_passes_for_another(tmp_path, name):
    page = render(tmp_path, [result("a", NG, serial=name), result("b", serial="SNpng")])[1]
    assert page.text.count(visible(name)) == 2  # among the boards, and in the gallery
    assert page.all("figure")[0]["data-text"] == f"{visible(name)} R1 a"


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(texts(8), st.sampled_from([OK, NG, REVIEW, None]), texts(3)), max_size=12))
def test_any_results_give_a_sound_page(tmp_path, rows):
    results = [result(name, verdict, serial=serial, component=serial) for name, verdict, serial in rows]
    page = render(tmp_path, results)[1]
    assert len(page.all("figure")) == sum(verdict in (NG, REVIEW) for _, verdict, _ in rows)


def test_the_gallery_and_the_lists_have_stated_limits(tmp_path):
    results = [result(f"r{n}", REVIEW) for n in range(5)] + [result(f"n{n}", NG) for n in range(5)]
    asked = []

    def load(name):
        asked.append(name)
        return grey(name)

    page = render(tmp_path, results, load, pictures=6)[1]
    assert asked == ["n0", "n1", "n2", "n3", "n4", "r0"]
    assert "6 images shown, NG first; 4 more are listed only in results.csv" in page.text
    results = [
        result(f"{s}/{c}", NG if s % 4 == 0 else OK, serial=f"SN{s}", component=f"C{c}", refdes=f"C{c}")
        for s in range(200)
        for c in range(10)
    ]
    text, page = render(tmp_path, results)
    assert ("26 more boards NG or to review" in page.text, "150 boards OK" in page.text) == (True, True)
    assert len(page.all("figure")) == 200
    assert len(text) < 2_000_000


def test_a_run_of_nothing_with_nothing_wrong_or_that_is_not_complete_says_so(tmp_path):
    page = render(tmp_path, [result("a"), result("b")])[1]
    assert "All 2 images are OK." in page.text
    assert "Nothing to look at: no image is NG or needs a review." in page.text
    assert not page.all("script")
    assert "No image has been inspected." in render(tmp_path, [])[1].text
    page = render(tmp_path, [result("a", NG, serial="")])[1]
    assert "no boards to judge" in page.text
    missing = [Photograph(Path("x"), "R0402", "SN1", "R9", "x")] * 2
    page = render(tmp_path, [result("a")], missing=missing)[1]
    assert "This run is not complete. 2 images have not been inspected" in page.text
    assert "0 of 1 board passed" in page.text
    assert any("2 missing" in str(a.get("aria-label")) for a in page.all("svg"))


def test_it_is_accessible(tmp_path):
    page = render(tmp_path, [result("a", NG), result("b", REVIEW), result("c", None)])[1]
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert all(a.get("alt") for a in page.all("img"))
    assert all(a.get("scope") in ("col", "row") for a in page.all("th"))
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    for _, attributes in page.tags:
        assert (attributes.get("aria-labelledby") or ids[0]) in ids


def test_a_full_disk_leaves_the_old_report(tmp_path, monkeypatch):
    render(tmp_path, [result("a")])
    before = (tmp_path / "report.html").read_bytes()
    full = OSError(28, "No space left on device")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(full))
    with pytest.raises(DiskFull):
        render(tmp_path, [result("a", NG)])
    assert (tmp_path / "report.html").read_bytes() == before


def test_an_image_stands_beside_its_reference_and_their_difference(tmp_path):
    good = np.full((40, 60, 3), 200, np.uint8)
    good[10:30, 10:50] = 60
    faulty = good.copy()
    faulty[15:20, 20:30] = 255
    results = [
        Result(Request(0, "U1", name), NG, (Finding("d", "fp32", "different", 0.9),), 0.1)
        for name in ("pair", "other part", "alone", "unreadable")
    ]

    def reference(result):
        name = result.request.image
        if name == "unreadable":
            raise ImageError("is damaged")
        other = np.random.default_rng(0).integers(0, 255, good.shape, np.uint8)
        stored = ReferencePicture(good, np.full((40, 60), 9, np.uint8), "b/<U1>, version 3", "a1b2")
        return {"pair": stored, "other part": ReferencePicture(other)}.get(name)

    page = written(tmp_path, results, PixelSource(lambda name: faulty, reference))
    alts = [str(attributes["alt"]).strip() for tag, attributes in page.tags if tag == "img"]
    assert alts == ["NG: U1", "Reference of U1", "Difference of U1", "NG: U1", "Reference of U1", "NG: U1", "NG: U1"]
    shown = ("Image", "Reference", "Difference", "b/<U1>, version 3", "given with the image")
    stored_pair, given_pair = ["Image", "Reference", shown[3], "Difference"], ["Image", "Reference", shown[4]]
    assert [word for word in page.words if word in shown][-7:] == stored_pair + given_pair
    assert ("small", {"title": "checksum a1b2"}) in page.tags
    assert page.words.count("The reference is not shown: is damaged.") == 1


def test_a_doubt_stands_with_its_finding_and_boards_of_two_products_are_told_apart(tmp_path):
    doubtful = Finding("d", "fp32", "none", 1.0, doubt="it does not fit its <reference>")
    results = [Result(Request(0, "U1", "a"), REVIEW, (doubtful,), 0.1)]
    assert "it does not fit its &lt;reference&gt;" in render(tmp_path, results)[0]
    both = [result("x", NG), result("y", OK), result("z", NG)]
    names = ["a", "b", "b"]
    _, page = render(
        tmp_path,
        [replace(one, request=replace(one.request, board=name)) for one, name in zip(both, names, strict=True)],
    )
    assert ("0 of 2 boards passed" in page.text, "Board a/SN1 · x" in page.text) == (True, True)
    assert {card["data-component"] for card in page.all("figure")} == {"a/R0402", "b/R0402"}


def test_a_heat_map_lies_over_its_image_and_is_kept_in_the_line_that_is_damaged_with_it(tmp_path):
    values = bytearray(16)
    values[6] = 255  # the second row, the third column
    heat = Heat(4, 4, bytes(values))
    results = [Result(Request(0, "U1", "a"), NG, (Finding("d", "fp32", "strange", 0.9, heat=heat),), 0.1)]
    assert from_line(to_line(results[0]).encode(), 0).findings[0].heat == heat
    page = render(tmp_path, results, lambda name: np.full((80, 80, 3), 100, np.uint8))[1]
    addresses = {str(attributes["alt"]).strip(): attributes["src"] for tag, attributes in page.tags if tag == "img"}
    assert list(addresses) == ["NG: U1", "Heat map of U1"]
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(str(addresses["Heat map of U1"]).partition(",")[2]))))
    red, green = shown[:, :, 0].astype(int), shown[:, :, 1].astype(int)
    assert (red - green)[30, 50] > 100
    assert abs(red - green)[70, 10] < 10
    line = json.loads(to_line(results[0]))
    line["findings"][0]["heat"] = {"rows": 2, "columns": 2, "values": "AAAA"}
    with pytest.raises(ValueError, match="3 values"):
        from_line(json.dumps(line).encode(), 0)
