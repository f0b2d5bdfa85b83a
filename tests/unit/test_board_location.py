"""Locating a board: fiducials to a fraction of a pixel, or a sentence that says why the board is not registered."""

import cv2
import numpy as np
import pytest
from drawn_boards import FIDUCIALS, HEIGHT_MM, PARTS, UM, WIDTH_MM, Pose, disc, draw, layout, millimetres, truth
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import THOROUGH

from coe.board.parts_list import BoardPart, Side
from coe.core import FailureKind, Verdict
from coe.errors import ImageError, RulesError
from coe.placement import blind_to, crop, locate, overlay, overlay_of, read_board, warnings_of
from coe.placement.fiducials import discs
from coe.placement.fit import Fit, affine, fitted, residual_um, similarity
from coe.placement.overlay_picture import heading_lines

LAYOUT = layout()
POINTS = np.array(list(FIDUCIALS.values()))


SHIFT, TURN, STRETCH = st.floats(-12, 12), st.floats(-4.5, 4.5), st.floats(0.985, 1.015)


@settings(max_examples=8 * THOROUGH, deadline=None)
@given(pose=st.builds(Pose, TURN, STRETCH, SHIFT, SHIFT), seed=st.integers(0, 10**6))
def test_any_board_within_the_limits_is_found_to_a_fraction_of_a_pixel(pose, seed):
    location = locate(draw(layout([PARTS[0]]), pose, seed=seed), LAYOUT)
    assert location.registered, location.why
    exact, _, _ = truth(LAYOUT, pose)
    corners = np.array([(x, y) for x in (0, WIDTH_MM) for y in (0, HEIGHT_MM)])
    assert np.hypot(*(location.fit.pixels(corners) - exact.pixels(corners)).T).max() < 0.12
    assert location.residual_um < 0.12 * UM
    assert location.fit.turn_deg == pytest.approx(pose.turn_deg, abs=0.05)
    assert location.fit.um_per_pixel == pytest.approx(UM / pose.stretch, rel=1e-3)


@pytest.mark.parametrize("held", [False, True])
def test_a_board_in_a_picture_of_another_size_than_the_recipe_has_is_not_where_it_should_be(held):
    picture = draw(LAYOUT)
    height, width = picture.shape[:2]
    changes = {"held": True, "fiducials": None} if held else {}
    for size, fits in (([width, height], True), ([height, width], False), ([width, height + 1], False)):
        location = locate(picture, layout(**changes, picture=size))
        assert (location.registered, "pixels" in location.why) == (fits, not fits)


numbers = st.floats(-1000, 1000)


@given(turn=st.floats(-180, 180), scale=st.floats(0.1, 100), x=numbers, y=numbers)
def test_a_map_there_and_back_changes_nothing(turn, scale, x, y):
    a, b = scale * np.cos(np.radians(turn)), scale * np.sin(np.radians(turn))
    fit = Fit(np.array([[a, -b, x], [-b, -a, y]]))
    assert np.allclose(millimetres(fit, fit.pixels(POINTS)), POINTS, atol=1e-6)
    for found in (similarity(POINTS[:2], fit.pixels(POINTS[:2])), affine(POINTS, fit.pixels(POINTS))):
        assert np.allclose(found.matrix, fit.matrix, atol=1e-6 * max(1, scale))
    assert fit.um_per_pixel == pytest.approx(1000 / scale)


def test_the_residual_is_of_what_the_fiducials_can_contradict_four_may_be_stretched_but_not_bent():
    scale = np.array([[20.0, 0, 0], [0, -20, 0]])
    two, pixels = POINTS[:2], Fit(scale).pixels(POINTS[:2])
    assert residual_um(two, pixels, 50) == pytest.approx(0, abs=1e-6)
    # A similarity goes through any two points, so two are held against the scale: 17 mm that are 2 % too long.
    assert residual_um(two, pixels * 1.02, 50) == pytest.approx(0.01 * 17_000 / 1.02 * 1.02, rel=0.03)
    assert fitted(two, pixels * 1.02).residual_um(two, pixels * 1.02) == pytest.approx(0, abs=1e-6)
    # An affine map goes through any three points, so three are held against a similarity.
    three = Fit(scale).pixels(POINTS)
    three[2] += (10, 0)
    assert fitted(POINTS, three).residual_um(POINTS, three) == pytest.approx(0, abs=1e-6)
    assert residual_um(POINTS, three, 50) > 100
    four = np.array([(2.0, 2), (18, 2), (2, 14), (18, 14)])
    stretched = Fit(np.array([[20.1, 0.05, 3], [0, -20, 300]])).pixels(four)
    assert residual_um(four, stretched, 50) == pytest.approx(0, abs=1e-6)
    assert np.allclose(fitted(four, stretched).pixels(four), stretched)
    stretched[3] += (4, 0)  # 200 um, of which a fit to all four takes up three quarters
    assert residual_um(four, stretched, 50) == pytest.approx(50, rel=0.02)


def reason(picture, **changes):
    location = locate(picture, layout(**changes))
    assert not location.registered
    assert location.why
    return location.why


def test_a_board_without_fiducials_or_out_of_the_limits_is_not_registered():
    blank = np.full((400, 480, 3), 90, np.uint8)
    for empty in (blank, np.zeros((8, 8, 3), np.uint8), draw(LAYOUT, Pose(x_px=90))):
        assert all(word in reason(empty) for word in ("found", "2.5 mm", "F1, F2 and F3"))
    assert "F1" not in reason(draw(LAYOUT, without=["F2"]))
    for pose in (Pose(turn_deg=7), Pose(stretch=1.04)):
        assert "arranged" in reason(draw(LAYOUT, pose))
    wide = {**FIDUCIALS, "F3": [1.5, 14.6]}  # 0.1 mm off
    changes = {"fiducials": {"diameter": 1, "search": 2.5, "at": wide}}
    why = reason(draw(LAYOUT), **changes)
    assert all(word in why for word in ("tolerance of 30 um", "at 50."))
    assert locate(draw(LAYOUT), layout(**changes, tolerance_um=90)).registered


@settings(max_examples=9 * THOROUGH, deadline=None)
@given(width=st.integers(8, 90), height=st.integers(8, 90), seed=st.integers(0, 99), grain=st.sampled_from([0, 3, 255]))
def test_whatever_a_picture_shows_each_component_has_its_answer(width, height, seed, grain):
    coarse = layout([PARTS[0], PARTS[1]], um_per_pixel=160)
    pixels = np.random.default_rng(seed).integers(0, grain + 1, (height, width, 3), dtype=np.uint8)
    board = read_board(pixels, coarse, "SN1")
    answers = [picture.refdes for picture in board.pictures()] + [r.request.refdes for r in board.results()]
    assert sorted(answers) == ["P1", "P2"]
    assert overlay_of(board).shape[1] == width


def test_a_picture_of_the_other_side_or_the_wrong_way_round_is_named():
    mirrored = locate(draw(LAYOUT, Pose(mirrored=True)), LAYOUT)
    assert ("mirrored" in mirrored.why, len(mirrored.reasons)) == (True, 2)
    assert heading_lines(mirrored) == [f"not registered: {reason}" for reason in mirrored.reasons]
    assert "180 degrees" in reason(draw(LAYOUT, Pose(turn_deg=180)))
    assert blind_to(LAYOUT) == ()
    square = {"F1": [2, 2], "F2": [18, 2], "F3": [2, 14], "F4": [18, 14]}
    assert blind_to(layout(fiducials={"diameter": 1, "at": square})) == ("mirrored", "turned by 180 degrees")
    two = {"F1": [2, 2], "F2": [18, 14]}
    assert blind_to(layout(fiducials={"diameter": 1, "at": two})) == ("turned by 180 degrees",)


def test_a_whole_picture_that_lies_otherwise_is_told_also_off_the_middle():
    at = {"F1": [2, 2], "F2": [18, 3], "F3": [2, 13]}
    changes = {"fiducials": {"diameter": 1, "search": 1.0, "at": at}, "tolerance_um": 60}
    picture = draw(layout(**changes), Pose(x_px=30))
    known = layout(**changes, camera={"middle": [0.5 + 30 / picture.shape[1], 0.5]})
    assert locate(picture, known).registered
    ways = [np.fliplr(picture), np.flipud(picture), *(np.rot90(picture, turns) for turns in (1, 2, 3))]
    told = ["mirrored", "mirrored", *(f"turned by {degrees} degrees" for degrees in (90, 180, 90))]
    for way, words in zip(ways, told, strict=True):
        assert f"fits if it is {words}" in locate(np.ascontiguousarray(way), known).why


SYMMETRIC = {"F1": [2, 2], "F2": [18, 14]}
SQUARE = {"F1": [4, 2], "F2": [16, 2], "F3": [4, 14], "F4": [16, 14]}


def test_a_board_could_lie_in_each_way_in_which_its_fiducials_fit_also_with_a_landmark_in_their_middle():
    def ways(at, **changes):
        return blind_to(layout(fiducials={"diameter": 0.8, "at": at}, **changes))

    assert ways(SQUARE) == ("mirrored", "turned by 180 degrees", "turned by 90 degrees")
    assert ways({"F1": [10, 2], "F2": [4, 8], "F3": [16, 8], "F4": [10, 15]}) == ("mirrored",)
    # They lie alike once the board is turned a little more, which the recipe lets it.
    assert ways({"F1": [2, 8], "F2": [18, 8.6]}) == ("mirrored", "turned by 180 degrees")
    assert ways({"F1": [2, 8], "F2": [18, 8.6]}, most_turn=0.5) == ("turned by 180 degrees",)
    assert all("landmark" in one for one in warnings_of(layout(fiducials={"diameter": 1, "at": SYMMETRIC})))
    changes = {"fiducials": {"diameter": 1, "at": SYMMETRIC}}
    middle = layout(**changes, landmark={"at": [10, 8.3], "diameter": 1, "look": "dark"})
    assert blind_to(middle) == ("turned by 180 degrees",)
    for wrong in ({"at": [30, 3], "diameter": 1}, {"at": [3, 3], "diameter": 0.1}, {"at": [3, 3]}):
        with pytest.raises(RulesError):
            layout(**changes, landmark={"look": "dark", **wrong})


def picture_of(grey):
    return np.repeat(grey.round().clip(0, 255).astype(np.uint8)[..., None], 3, axis=2)


def marked(places, pose, drawn, level=15):
    """Draw a board with a disc at each of these places, in millimetres."""
    picture = draw(drawn, pose, seed=None)[..., 0].astype(float)
    for at in places:
        disc(picture, *truth(drawn, pose)[0].pixels(np.array([at]))[0], 24, level)
    return picture_of(picture)


@settings(max_examples=5 * THOROUGH, deadline=None)
@given(turn=st.floats(-4, 4), x_px=st.floats(-12, 12))
def test_a_landmark_tells_how_a_board_lies_whose_fiducials_lie_alike(turn, x_px):
    landmark = {"at": [16.5, 3.5], "diameter": 1.2, "look": "dark"}
    changes = {"fiducials": {"diameter": 1, "search": 2.5, "at": SYMMETRIC}}
    known = layout([PARTS[1]], **changes, landmark=landmark)
    assert blind_to(layout([PARTS[1]], **changes)) == ("turned by 180 degrees",)
    assert (blind_to(known), warnings_of(known)) == ((), ())
    for turned in (0, 180):
        picture = marked([(16.5, 3.5)], Pose(turn_deg=turn + turned, x_px=x_px), known)
        assert locate(picture, layout([PARTS[1]], **changes)).registered, "the fiducials alone notice nothing"
        location = locate(picture, known)
        assert location.registered is (turned == 0), location.why
    assert "turned by 180 degrees" in location.why
    assert not locate(marked([], Pose(), known), known).registered
    both = marked([(16.5, 3.5), (20 - 16.5, 16 - 3.5)], Pose(), known)
    assert "unique landmark" in locate(both, known).why


@pytest.mark.parametrize("at", [(6.0, 8.0), (6.0, 8.3), (10.0, 14.0)])
def test_a_landmark_that_one_way_leaves_in_its_place_tells_the_others(at):
    """It lies on an axis of the fiducials: a mirrored picture is named, and good boards are found."""
    fiducials = {"diameter": 1, "at": {"F1": [2, 8], "F2": [18, 8]}}
    known = layout([PARTS[1]], fiducials=fiducials, landmark={"at": list(at), "diameter": 1.2, "look": "dark"})
    assert blind_to(known) == ("mirrored",)
    right = locate(marked([at], Pose(), known), known)
    assert right.registered, right.why
    assert not locate(marked([at], Pose(turn_deg=180), known), known).registered


def test_other_discs_do_not_lead_astray_but_a_second_set_is_ambiguous():
    fit, _, _ = truth(LAYOUT, Pose())
    picture = draw(LAYOUT, seed=None)[..., 0].astype(float)
    for name, off in (("F1", (1.5, 0.4)), ("F2", (-1.4, 1.0)), ("F3", (0.2, -1.6))):
        disc(picture, *fit.pixels(POINTS[[list(FIDUCIALS).index(name)]] + off)[0], 20, 200)
    shown = picture_of(picture)
    assert np.abs(locate(shown, LAYOUT).fit.pixels(POINTS) - fit.pixels(POINTS)).max() < 0.1
    for point in POINTS:
        disc(picture, *fit.pixels(point[None] + (0.1, 1.9))[0], 20, 210)
    shown = picture_of(picture)
    ambiguous = locate(shown, LAYOUT)
    assert "`search`" in ambiguous.why
    # The reason has a semicolon of its own, and is one line of the overlay nevertheless.
    assert heading_lines(ambiguous) == [f"not registered: {ambiguous.why}"]


@pytest.mark.parametrize("level", [67, 80, 200])
@pytest.mark.parametrize("blur_px", [0.0, 2.0, 4.0])
@pytest.mark.parametrize("off_mm", [(1.9, 0.0), (-1.2, 1.3), (0.3, -1.8)])
def test_a_second_set_is_ambiguous_however_faint_and_blurred_the_fiducials_are(level, blur_px, off_mm):
    """Pads of the same form, a little aside, look better than fiducials that are tarnished or out of focus."""
    fit, width, height = truth(LAYOUT, Pose())
    picture = np.full((height, width), 60.0)
    for point in POINTS:
        disc(picture, *fit.pixels(point[None])[0], 20, level)
    if blur_px:
        picture = cv2.GaussianBlur(picture, (0, 0), blur_px)
    for point in POINTS:
        disc(picture, *fit.pixels(point[None] + off_mm)[0], 20, 210)
    picture += np.random.default_rng(0).normal(0, 0.5, picture.shape)
    location = locate(picture_of(picture), LAYOUT)
    faintest = level == 67 and blur_px == 4  # 2 grey levels are left: no disc
    assert location.registered == faintest, location.why


def test_dark_and_large_fiducials_are_found_larger_than_the_picture_none():
    dark = {"diameter": 1, "search": 2.5, "look": "dark", "at": FIDUCIALS}
    assert locate(255 - draw(LAYOUT), layout(fiducials=dark)).registered
    assert not locate(draw(LAYOUT), layout(fiducials=dark)).registered
    fine = layout([PARTS[0]], um_per_pixel=12.5)  # 80 pixels a fiducial
    location = locate(draw(fine, Pose(turn_deg=2)), fine)
    assert np.abs(location.fit.pixels(POINTS) - truth(fine, Pose(turn_deg=2))[0].pixels(POINTS)).max() < 0.1
    huge = {"fiducials": {"diameter": 9000, "at": {"F1": [2, 2], "F2": [9000, 9000]}}, "um_per_pixel": 0.02}
    with pytest.raises(RulesError, match="have the same place"):
        layout([PARTS[0]], **huge, outline={"x": [0, 9000], "y": [0, 9000]})
    assert discs(np.zeros((50, 60), np.uint8), 20, 20, 1e7, 5e8, "bright") == []


def part_at(name, x, y, angle, side=Side.TOP, component="A"):
    return BoardPart(name, x, y, angle, side, component=component)


@pytest.mark.parametrize("angle", [0, 30, 90, 180, 217, 359])
def test_a_crop_is_upright_whatever_the_angle(angle):
    part = [part_at("P1", 10, 8, angle)]
    drawn = layout(part)
    picture = draw(drawn, Pose(turn_deg=3, x_px=4.3), seed=None)
    location = locate(picture, drawn)
    shown = crop(picture, drawn.sites[0], location.fit)
    assert shown.shape == (32, 56, 3)
    assert shown[6:9, 8:13].mean() > 140  # pin 1, at the top left
    assert max(shown[6:9, -13:-8].mean(), shown[-9:-6, 8:13].mean(), shown[-9:-6, -13:-8].mean()) < 40
    for more, shape, pin in (
        ({"turn": 180, "crop": 112}, (64, 112, 3), (slice(-18, -12), slice(-26, -16))),
        ({"crop": 28}, (16, 28, 3), (slice(3, 4), slice(4, 6))),
    ):
        other = layout(part, components={"A": {"size": [2.4, 1.2], "margin": 0.2, **more}})
        shown = crop(picture, other.sites[0], location.fit)
        assert (shown.shape, shown[pin].mean() > 130) == (shape, True)


def test_the_bottom_side_is_seen_as_it_lies():
    below = [part_at(part.refdes, part.x_mm, part.y_mm, 330, Side.BOTTOM) for part in PARTS]
    drawn = layout(below, side="bottom")
    picture = draw(drawn, Pose(turn_deg=-2), seed=None)
    location = locate(picture, drawn)
    for site in drawn.sites:
        assert crop(picture, site, location.fit)[6:9, 8:13].mean() > 140
    assert not locate(picture, layout()).registered


def test_each_component_has_a_crop_or_a_result_with_the_reason():
    drawn = layout([*PARTS, part_at("E1", 19.9, 8, 0)])
    board = read_board(draw(drawn)[:, :-40], drawn, "SN1", name="SN1.png")
    pictures, results = list(board.pictures()), list(board.results())
    assert [p.name for p in pictures] == [f"SN1.png/P{i}" for i in (1, 2, 3, 4)]
    assert {(p.serial, p.order) for p in pictures} == {("SN1", None)}
    (result,) = results
    assert (result.request.image, result.request.refdes, result.verdict) == ("SN1.png/E1", "E1", Verdict.REVIEW)
    assert "outside" in result.findings[0].doubt
    assert crop(board.rgb, drawn.sites[-1], board.location.fit) is None
    board = read_board(np.full((400, 480, 3), 90, np.uint8), LAYOUT, "SN1")
    assert list(board.pictures()) == []
    results = list(board.results())
    assert [(r.request.refdes, r.verdict) for r in results] == [(p.refdes, Verdict.REVIEW) for p in PARTS]
    assert all(board.location.why in r.findings[0].doubt for r in results)
    with pytest.raises(ImageError):
        board.crop(LAYOUT.sites[0])


@pytest.mark.parametrize("data", [b"", b"no picture", b"\x89PNG\r\n\x1a\n" + bytes(20)])
def test_a_picture_that_cannot_be_read_is_an_error_of_each_component(data):
    board = read_board(data, LAYOUT, "SN1")
    results = list(board.results())
    assert [r.request.refdes for r in results] == [p.refdes for p in PARTS]
    kind = FailureKind.UNSUPPORTED if data == b"no picture" else FailureKind.DAMAGED
    assert {r.failure.kind for r in results if r.failure} == {kind}
    assert list(board.pictures()) == []
    assert board.view("SN1") is None
    with pytest.raises(ImageError):
        overlay_of(board)


PANEL = {
    "panel": {"array": {"rows": 1, "columns": 2, "pitch": [9, 0]}},
    "bad_mark": {"at": [4, 13], "diameter": 1.2, "look": "bright", "level": 150},
}
ON_PANEL = (part_at("P1", 5, 5, 0), part_at("P2", 5, 9, 90, component="B"))


def test_units_with_a_bad_mark_are_skipped_and_named():
    panel = layout(ON_PANEL, **PANEL)
    picture = draw(panel)
    assert locate(picture, panel).skipped == {}
    mark = panel.marks["r1c2"]
    bad = marked([(mark.x_mm, mark.y_mm)], Pose(), panel, level=240)
    board = read_board(bad, panel, "SN1", name="p.png")
    seen = [(p.serial, p.refdes, p.name) for p in board.pictures()]
    assert seen == [("SN1-r1c1", name, f"p.png/r1c1/{name}") for name in ("P1", "P2")]
    skipped = list(board.results())
    assert [(r.request.serial, r.request.refdes) for r in skipped] == [("SN1-r1c2", "P1"), ("SN1-r1c2", "P2")]
    assert {r.failure.kind for r in skipped if r.failure} == {FailureKind.SKIPPED}
    assert all(r.verdict is None and "it has a bad mark" in str(r.error) for r in skipped)
    drawn = overlay_of(board)
    assert ((drawn == 150).all(axis=2)).sum() > 50  # crossed out in grey
    beside = layout(ON_PANEL, **{**PANEL, "bad_mark": {"at": [1, 15.9], "diameter": 8, "look": "dark", "level": 5}})
    unseen = locate(picture, beside)  # nobody knows whether the unit is bad
    assert (unseen.registered, unseen.skipped) == (False, {})
    assert "'r1c1'" in unseen.why
    told = read_board(picture, panel, "SN1", serials={"r1c1": "X7"}, skip=["r1c1"])
    assert {p.serial for p in told.pictures()} == {"SN1-r1c2"}
    assert {r.request.serial for r in told.results()} == {"X7"}
    with pytest.raises(ValueError, match="'r8'"):
        read_board(picture, panel, "SN1", serials={"r8": "X8"})
    with pytest.raises(ValueError, match="'r9'"):
        locate(picture, panel, ["r9"])


def test_a_view_shows_the_part_of_the_picture_in_which_a_board_lies_and_the_overlay_its_crops():
    panel = layout(ON_PANEL, **PANEL)
    view = read_board(draw(panel), panel, "SN1", name="p.png").view("SN1-r1c2")
    assert set(view.crops) == {"p.png/r1c2/P1", "p.png/r1c2/P2"}
    assert view.pixels.shape[1] < draw(panel).shape[1]
    height, width = view.pixels.shape[:2]
    assert all((c >= 0).all() and (c <= (width, height)).all() for c in view.crops.values())
    picture = draw(LAYOUT)
    drawn = overlay(picture, LAYOUT, locate(picture, LAYOUT), side_px=300)
    assert drawn.shape[1] == 300
    cyan = (drawn[..., 0] < 60) & (drawn[..., 1] > 150) & (drawn[..., 2] > 150)
    assert cyan.sum() > 100
    blank = np.full((400, 480, 3), 90, np.uint8)
    assert overlay(blank, LAYOUT, locate(blank, LAYOUT)).shape[1] == 480


def test_a_board_that_a_fixture_holds_lies_where_the_camera_says():
    for changes in ({"fiducials": None}, {"held": True}):
        with pytest.raises(RulesError, match="held"):
            layout(**changes)
    held = layout(fiducials=None, held=True)
    pixels = draw(layout(), Pose())
    location = locate(pixels, held)
    assert location.residual_um is None
    expected = locate(pixels, layout()).fit
    corners = np.array([(0.0, 0.0), (20.0, 16.0)])
    assert np.abs(location.fit.pixels(corners) - expected.pixels(corners)).max() < 0.2
    assert blind_to(held)
    sized = layout(fiducials=None, held=True, picture=[pixels.shape[1], pixels.shape[0]])
    assert set(warnings_of(sized)) < set(warnings_of(held)), "without it, pictures of any size are cut"
    mark = {"at": [9, 14.5], "diameter": 1.0, "look": "bright"}
    told = layout(fiducials=None, held=True, landmark=mark)
    assert not blind_to(told)
    assert not locate(pixels, told).registered, "the landmark is not there"
    middle = layout(fiducials=None, held=True, landmark={**mark, "at": list(told.middle)})
    assert blind_to(middle)
    assert warnings_of(middle)


def test_a_hole_that_lies_alike_turned_round_is_no_landmark_of_a_board_that_a_fixture_holds():
    held = layout(fiducials=None, held=True, landmark={"at": [2, 2], "diameter": 1.0, "look": "dark"})
    picture = np.full((600, 700, 3), 120, np.uint8)
    fit = locate(picture, held).expected
    corners = np.array([(2.0, 2.0), (18.0, 2.0), (2.0, 14.0), (18.0, 14.0)])

    def drilled(holes):
        board = picture.copy()
        for x, y in fit.pixels(holes):
            cv2.circle(board, (round(x), round(y)), round(500 / fit.um_per_pixel), (10, 10, 10), -1, cv2.LINE_AA)
        return board

    assert locate(drilled(corners[:1]), held).registered
    assert not locate(drilled(corners), held).registered, "turned by 180 degrees it would look the same"
    assert not locate(drilled(corners[3:]), held).registered, "it is turned by 180 degrees"
