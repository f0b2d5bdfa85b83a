"""A board is taught in a real browser with the mouse, from its files to a recipe of the line; no text editor is used.

`COE_PICTURES=docs/img` writes the pictures of the documentation anew.
"""

import os
from pathlib import Path

import cv2
import numpy as np
import pytest
from serve_rows import decide, the
from serving import config_of, embedded, put, serving

from apps.demo import own_board
from coe.board import rules
from coe.core import Verdict
from coe.placement import locate, outline, read_recipe
from coe.placement.fit import Fit
from coe.serve.clock import now_us
from coe.serve.database import keys, recipe_versions
from coe.serve.database.tables import NewCall
from coe.serve.enums import ActivationState, CallReason, Role
from coe.serve.recipe_content import RecipeContent
from coe.serve.teach.teach_draft import BoardDraft

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
KEPT = ("C_0402_1005Metric", "R_0402_1005Metric", "SW_SPST_B3U-1000P")
PICTURES = os.environ.get("COE_PICTURES", "")


@pytest.fixture
def station(tmp_path, sqlite_template):
    """A gate without a recipe."""
    config = config_of(tmp_path / "service", line={"store": tmp_path / "store"})
    config.data.mkdir()
    with embedded(config, sqlite_template) as database, serving(config, database) as running:
        yield running


def photographed(page, name, height):
    """Write a picture of the documentation, if they are wanted."""
    if PICTURES:
        before = page.viewport_size
        page.set_viewport_size({"width": 1280, "height": height})
        page.wait_for_timeout(500)
        page.screenshot(path=str(Path(PICTURES) / name))
        page.set_viewport_size(before)


def at(page, shown, size):
    """Return where a pixel of the board's picture lies in the window."""
    box = page.locator("#map-pic img").bounding_box()
    return box["x"] + shown[0] * box["width"] / size[0], box["y"] + shown[1] * box["height"] / size[1]


def test_a_board_is_taught_without_a_text_editor(station, browser, tmp_path):
    maps = own_board.build(tmp_path / "own")
    files = tmp_path / "own"
    key = keys.generate()
    station.database.write(keys.add, "ann", Role.ENGINEER, key, now_us=now_us())
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(900_000)
    asked = []
    errors = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))

    def after_sign_in(button):
        """Press a button once the session is over, and again after a new one has begun."""
        page.context.clear_cookies()
        page.click(button)
        page.fill("#key", key)
        page.keyboard.press("Enter")
        page.click(button)

    page.goto(f"{station.address}/teach")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    page.wait_for_selector("#teach-name")
    page.wait_for_load_state()
    page.fill("#teach-name", "line7")
    after_sign_in("#teach-new button")
    page.set_input_files("[data-upload=boards]", [files / "bom.csv"])
    page.wait_for_selector(".fault:has-text('JPEG')")
    page.set_input_files("[data-upload=boards]", [files / "boards" / f"SN{number}.png" for number in (1, 2)])
    page.wait_for_selector(".files :text('SN2.png')")
    for kind, name in (("placements", "pnp.csv"), ("bom", "bom.csv")):
        page.set_input_files(f"[data-upload={kind}]", files / name)
        page.wait_for_selector(f".files :text('{name}')")
    page.click("a.next")
    page.wait_for_selector("#reading")
    page.context.clear_cookies()
    page.select_option("[name=side]", "bottom")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    assert page.locator("[name=side]").input_value() == "top", "nobody has seen it from below"
    page.select_option("[name=units]", "mm")
    page.click("button[name=right]")
    page.wait_for_selector("#map-says:has-text('Found')")
    looks = (
        "button => { button.disabled = true; const { opacity } = getComputedStyle(button); return Number(opacity); }"
    )
    assert page.locator("#map-fits").evaluate(looks) < 1, "a button that does nothing looks so"
    page.reload()
    page.wait_for_selector("#map-says:has-text('Found')")
    draft = BoardDraft(station.gate.config.data / "teach", "line7")
    found = read_recipe(draft.recipe).camera
    photographed(page, "serve_teach.png", 1040)

    # The overlay is dragged, and two marks are clicked a few pixels beside where they are.
    size = (1214, 1836)
    marks = np.array([(109.0, -77.0), (157.0, -70.0)])
    (one, other) = Fit(maps[0]).pixels(marks) + np.array([(6, -5), (-4, 7)])
    page.mouse.move(*at(page, (600, 900), size))
    page.mouse.down()
    page.mouse.move(*at(page, (680, 940), size), steps=4)
    page.mouse.up()
    page.wait_for_selector("#map-take")
    page.click("#map-reset")
    page.click(".point:text-is('FID1')")
    page.mouse.click(*at(page, one, size))
    page.mouse.click(*at(page, other, size))
    page.click("#map-take")
    page.wait_for_selector("#work")
    page.wait_for_selector("#map-says:has-text('Found')")
    by_hand = read_recipe(draft.recipe).camera
    assert (by_hand.turn, by_hand.middle) == (found.turn, pytest.approx(found.middle, abs=1e-3))
    page.click("#map-fits")

    page.wait_for_selector("#packages")
    for row in page.locator("tr[data-package]").all():
        if row.get_attribute("data-package") not in KEPT:
            row.locator("[name=inspected]").uncheck()
    guess = page.locator("tr.review")
    for name, value in (("component", "switch"), ("width", "3.6"), ("height", "2.6")):
        guess.locator(f"[name={name}]").fill(value)
    after_sign_in("#packages button.next")
    page.wait_for_selector("#marks")
    assert page.evaluate("sessionStorage.typed") == "{}"
    assert {site.component for site in draft.layout.sites} == {"C0402-100n", "R0402-10k", "switch"}

    page.locator(".crop").first.click()
    page.wait_for_selector(".crop[data-mark=good]")
    page.locator(".crop").nth(1).focus()
    page.keyboard.press("2")
    page.wait_for_selector(".crop[data-mark=bad]")
    page.keyboard.press("u")
    page.wait_for_selector("#count-bad:text-is('0')")
    page.locator(".crop").nth(1).focus()
    page.keyboard.press("2")
    page.wait_for_selector(".crop[data-mark=bad]")
    page.click("#all-good")
    page.wait_for_selector("#count-open:text-is('0')")
    assert len(list(draft.photos.glob("*/good/*.png"))) == 37
    assert len(list(draft.photos.glob("C0402-100n/bad/*.png"))) == 1

    page.click("a.next")
    page.click("#learn-now")
    strip = page.wait_for_selector(".strip-of[data-expert='C0402-100n'] .strip svg")
    assert {one.root.expert for one in rules.load(str(draft.rules)).components.values()} == {
        "C0402-100n",
        "R0402-10k",
        "first-look",
    }
    box = strip.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.52, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + 50, steps=5)
    page.mouse.up()
    said = float(page.locator(".strip-of[data-expert='C0402-100n'] [data-shows=threshold]").inner_text())
    page.click("[data-take]:visible")
    page.wait_for_selector("#work")
    page.wait_for_selector("#thresholds")
    assert rules.load(str(draft.rules)).experts["C0402-100n"].ignore_under["strange"] == pytest.approx(said, abs=1e-3)

    page.click("#bounded")
    page.click("#stage")
    page.click("#overlay-confirm")
    page.click("button[data-post]")
    page.click("dialog button:has-text('Yes')")
    page.wait_for_selector(".mark:has-text('requested')")
    with station.database.writing() as connection:
        recipe = the(recipe_versions.version(connection, "line7", 1))
        for activation in recipe_versions.asked(connection):
            recipe_versions.answer(connection, activation.id, ActivationState.ACTIVE, now_us=now_us())
    assert len(RecipeContent.model_validate(recipe.content).components) == 19
    assert [url for url in asked if not url.startswith(station.address)] == []
    assert not errors
    verified(station, page, recipe, files)


def verified(station, page, recipe, files):
    """Hand in a board with a crack in a part, decide it as a line would, and look at its call."""
    layout = the(RecipeContent.model_validate(recipe.content).whole).layout
    pixels = np.ascontiguousarray(cv2.imread(str(files / "boards" / "SN2.png")))
    location = locate(np.ascontiguousarray(pixels[..., ::-1]), layout)
    site = next(site for site in layout.sites if site.refdes == "SW1")
    where = outline(site, the(location.fit), pixels.shape[1], pixels.shape[0])
    middle = where.corners.mean(axis=0)
    crack = np.array([(-16, -22), (-4, -10), (-8, 2), (8, 12), (6, 24)]) + middle
    cv2.polylines(pixels, [np.round(crack * 16).astype(np.int32)], False, (24, 26, 30), 3, cv2.LINE_AA, 4)
    put(station.feeder, "k1", "top", cv2.imencode(".png", pixels)[1].tobytes())
    body = {"recipe": "line7", "serial": "SN2", "whole": "top"}
    assert station.feeder.post("/api/v1/boards/k1", json=body).status_code == 202
    place = {"polygon": where.corners.tolist(), "size": [site.crop.width_px, site.crop.height_px]}
    box = {"xyxy": [22, 8, 66, 68], "label": "different", "score": 0.97}
    found = [{"expert": "first-look", "label": "different", "score": 0.97, "boxes": [box]}]
    call = NewCall(
        "SW1", "switch", Verdict.NG, CallReason.EXPERT, expert="first-look", label="different", view_id=1, place=place,
        findings=found,
    )  # fmt: skip
    decide(station.database, "k1", call, fine=[])
    page.goto(f"{station.address}/verify")
    page.wait_for_selector(".pic .frame", state="attached")
    page.wait_for_selector("#refdes:text-is('SW1')")
    photographed(page, "serve_verify.png", 790)
