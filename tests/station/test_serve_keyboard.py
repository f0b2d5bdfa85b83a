"""People at the pages, in a real browser, with the keyboard alone: calls are verified, placements are confirmed."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from operators import CALLS, SCAN, holding, rekey, repairing, signed_in, verifying, wait_drawn, with_pictures, words_of
from sqlalchemy import update
from tiny_line import TINY
from waiting import eventually
from whole_boards import BOARD, WHOLE, found, png, with_call

from coe.serve.clock import now_us
from coe.serve.database import board_rows, call_rows, recipe_versions, repairs, verifications
from coe.serve.database.tables import call
from coe.serve.enums import Outcome, RepairOutcome, Role

pytestmark = pytest.mark.slow


def test_one_key_shows_the_whole_board_and_the_part_again(served, browser, tmp_path):
    with_call(served, found(tmp_path / "board.png"), "P2", "B")
    page = signed_in(served, browser, Role.OPERATOR, "/verify")
    page.wait_for_selector("#call:not([hidden])")
    page.wait_for_selector(".pic .frame", state="attached")  # drawn once the picture is there
    with page.expect_response("**/api/v1/calls/1/view") as answer:
        page.keyboard.press("w")
    assert answer.value.ok
    assert (page.is_visible("#whole"), page.is_visible("#pictures")) == (True, False)
    assert page.get_attribute("#whole-button", "aria-pressed") == "true"
    zoom = "Number(getComputedStyle(document.getElementById('verify')).getPropertyValue('--zoom'))"
    eventually(lambda: page.evaluate(zoom) > 1)
    middle = page.evaluate(
        """() => {
        const image = document.getElementById("view"), box = image.getBoundingClientRect();
        const frame = image.closest(".clip").getBoundingClientRect(), [x, y] = call.picture.middle;
        const scale = box.width / Math.sqrt(call.picture.view_pixels * box.width / box.height);
        const off = (from, at, begin, size) => (from + at * scale - begin) / size - 0.5;
        return [off(box.left, x, frame.left, frame.width), off(box.top, y, frame.top, frame.height)];
        }"""
    )
    assert np.abs(middle).max() < 0.3, "the part lies near the middle, as far as there is something around it"
    page.keyboard.press("W")
    page.wait_for_selector("#pictures")
    assert not page.is_visible("#whole")
    page.keyboard.press("w")
    page.wait_for_selector("#whole")
    page.keyboard.press("2")
    page.wait_for_selector("#queue-empty:not([hidden])")
    page.goto(f"{served.address}/")
    eventually(lambda: words_of(served, 1) == [Outcome.CONFIRMED])


def test_pictures_are_looked_at_closer_one_by_one_and_with_more_contrast(served, browser, tmp_path):
    with_call(served, found(tmp_path / "board.png"), "P2", "B")
    page = signed_in(served, browser, Role.OPERATOR, "/verify")
    page.wait_for_selector(".pic .frame", state="attached")

    def style(name):
        return float(page.evaluate(f"getComputedStyle(document.getElementById('verify')).getPropertyValue('--{name}')"))

    eventually(lambda: style("zoom") == 1)
    page.keyboard.press("+")
    eventually(lambda: style("zoom") == 1.5)
    assert style("x") == -0.25
    part = page.locator(".clip").first.bounding_box()
    page.mouse.move(part["x"] + part["width"] / 2, part["y"] + part["height"] / 2)
    page.mouse.wheel(0, -100)
    eventually(lambda: style("zoom") == 2.25)
    page.mouse.down()
    page.mouse.move(part["x"] + part["width"], part["y"] + part["height"] / 2)
    page.mouse.up()
    assert -0.2 < style("x") < -0.1
    page.keyboard.press("*")
    eventually(lambda: style("contrast") == 1.6)
    for seen in (["picture"], ["reference"], ["view"], ["picture", "reference"]):
        page.keyboard.press(".")
        eventually(lambda seen=seen: [one for one in ("picture", "reference", "view") if looks_at(page, one)] == seen)
    page.keyboard.press("-")
    eventually(lambda: style("zoom") == 1.5)
    page.keyboard.press("2")
    page.wait_for_selector("#queue-empty:not([hidden])")


def looks_at(page, name):
    """Whether the place of a picture is on the page, with the picture or without."""
    return bool(page.is_visible(f".clip:has(#{name})"))


def test_placements_are_looked_at_and_confirmed(served, browser, tmp_path):
    board, blank = tmp_path / "board.png", tmp_path / "blank.png"
    board.write_bytes(png(BOARD))
    blank.write_bytes(png(np.full_like(BOARD, 200)))
    with served.database.writing() as connection:
        content = {"rules": TINY, "whole": WHOLE, "within_s": None, "terminations": {}, "parts": {}}
        staged = recipe_versions.add(connection, "new", content, by="ann", now_us=now_us())
    page = signed_in(served, browser, Role.ENGINEER, "/recipes/new/1")
    errors = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.wait_for_selector("#board-picture")
    page.set_input_files("#board-picture", blank)
    page.wait_for_selector("#overlay-stage:not([hidden])")
    assert not page.is_visible("#overlay-confirm")
    page.set_input_files("#board-picture", board)
    page.wait_for_selector("#overlay-confirm")
    drawn = "[...document.getElementById('overlay-picture').getContext('2d').getImageData(0, 0, 400, 400).data]"
    assert len(set(page.evaluate(drawn))) > 20, "the overlay is on the page"
    page.keyboard.press("c")
    page.wait_for_selector(".banner.ok:has-text('Confirmed')")
    word = served.database.read(recipe_versions.confirmation_of, staged)
    assert word.confirmed_by == "a new engineer"
    assert not errors


def test_fifty_calls_are_verified_by_keyboard_and_nothing_is_loaded_from_elsewhere(served, browser):
    page = verifying(served, browser, CALLS, answers_hold_s=30)
    asked = []
    errors = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    presses = {"1": Outcome.FALSE_CALL, "2": Outcome.CONFIRMED, "3": Outcome.ACCEPTED}
    for number in range(CALLS):
        wait_drawn(page, f"R{number}")
        page.keyboard.press("123"[number % 3], delay=40)
    page.wait_for_selector("#queue-empty:not([hidden])")
    # The last answer is taken back before anybody was told, and given anew.
    page.keyboard.press("Backspace")
    wait_drawn(page, f"R{CALLS - 1}")
    page.keyboard.press("1")
    page.wait_for_selector("#queue-empty:not([hidden])")
    page.goto(f"{served.address}/")
    eventually(lambda: served.database.read(call_rows.count_open) == 0)
    words = [words_of(served, id + 1) for id in range(CALLS)]
    assert words == [[presses["123"[number % 3]]] for number in range(CALLS - 1)] + [[Outcome.FALSE_CALL]]
    assert all(url.startswith(served.address) for url in asked)
    assert not errors


def test_an_answer_is_sent_when_its_time_is_over_and_can_still_be_corrected(served, browser):
    page = verifying(served, browser, 1, answers_hold_s=1)
    page.keyboard.press("2")
    page.wait_for_selector("#held li:has-text('Defect')")
    page.wait_for_selector("#last:not([hidden])")
    assert words_of(served, 1) == [Outcome.CONFIRMED]
    page.keyboard.press("Backspace")
    wait_drawn(page, "R0")
    page.keyboard.press("1")
    eventually(lambda: words_of(served, 1) == [Outcome.CONFIRMED, Outcome.FALSE_CALL])


def test_each_of_the_last_answers_can_be_taken_back(served, browser):
    page = verifying(served, browser, 3, answers_hold_s=30)
    for number in range(3):
        wait_drawn(page, f"R{number}")
        page.click("button[data-outcome='false call']")
    page.wait_for_selector("#queue-empty:not([hidden])")
    assert served.database.read(call_rows.count_open) == 3
    page.click("#held li:has-text('R1') button")
    wait_drawn(page, "R1")
    page.click("[data-act=sign-out]")
    page.wait_for_url("**/login")
    assert [words_of(served, id) for id in (1, 2, 3)] == [[Outcome.FALSE_CALL], [], [Outcome.FALSE_CALL]]


def test_what_was_typed_outlives_the_session_an_undo_and_a_scan(served, browser):
    page = verifying(served, browser, 1, answers_hold_s=30)
    page.keyboard.press("n")
    page.wait_for_selector("#new-label:focus")
    page.fill("#new-label", "lifted")
    page.fill("#note", "pin 3")
    for key in ["S", "N", "0", "Tab"]:
        page.keyboard.press(key)
    page.wait_for_url("**/boards/1")
    page.goto(f"{served.address}/verify")
    wait_drawn(page, "R0")
    page.keyboard.press("2")
    page.wait_for_selector("#held li")
    assert page.inner_text("nav [aria-current]").split() == ["Verify", "V"]
    page.keyboard.press("Backspace")
    wait_drawn(page, "R0")
    assert (page.input_value("#new-label"), page.input_value("#note")) == ("lifted", "pin 3")
    page.context.clear_cookies()
    page.keyboard.press("2")
    page.wait_for_url("**/login?next=%2Fverify")
    with served.database.writing() as connection:
        connection.execute(update(call).values(claimed_until_us=0))
    rekey(page, served, "a new operator")
    wait_drawn(page, "R0")
    page.wait_for_selector("#note:visible")
    assert (page.input_value("#new-label"), page.input_value("#note")) == ("lifted", "pin 3")
    page.keyboard.press("2")
    page.wait_for_selector("#held li")
    page.click("[data-act=sign-out]")
    page.wait_for_url("**/login")
    [word] = served.database.read(verifications.of_calls, [1])
    assert (word.label, word.note) == ("lifted", "pin 3")


def test_what_was_typed_goes_when_its_person_signs_out_or_another_signs_in(served, browser):
    page = verifying(served, browser, 1)
    page.keyboard.press("n")
    page.fill("#note", "pin 3")
    assert "pin 3" in page.evaluate("sessionStorage.typed")
    page.evaluate("sessionStorage.typed = sessionStorage.typed.replaceAll('a new operator', 'somebody else')")
    page.goto(f"{served.address}/verify")
    wait_drawn(page, "R0")
    assert page.evaluate("sessionStorage.typed") == "{}"
    page.keyboard.press("n")
    page.fill("#note", "pin 4")
    page.click("[data-act=sign-out]")
    page.wait_for_url("**/login")
    assert page.evaluate("sessionStorage.typed ?? null") is None


def test_a_choice_of_figures_is_shown_with_these_figures_alone(served, browser):
    page = verifying(served, browser, 1)
    page.goto(f"{served.address}/statistics")
    by = page.locator("[name=by]")
    first = by.input_value()
    by.select_option(index=1)
    page.wait_for_url("**by=*")
    page.goto(f"{served.address}/statistics")
    assert by.input_value() == first


@pytest.mark.parametrize(
    ("code", "gap_ms", "end"), [("470110230", 10, ""), ("SN0", 60, "Enter"), ("k0-0231", 20, "Tab")]
)
def test_a_scan_answers_no_call(served, browser, code, gap_ms, end):
    holding(served, answers_hold_s=0)
    with_pictures(served, 2)
    page = signed_in(served, browser, Role.OPERATOR, "/")
    page.wait_for_selector("#live")
    page.clock.install()
    page.goto(f"{served.address}/verify")
    wait_drawn(page, "R0")
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 60)
    for key in [*code, *([end] if end else [])]:
        page.keyboard.press(key)
        page.clock.run_for(gap_ms)
    page.clock.run_for(500)
    if code == "SN0":
        page.wait_for_url("**/boards/1")
    else:
        page.wait_for_selector(f"#say:has-text('{code}')")
        assert page.is_visible("#refdes:text-is('R0')")
    assert [words_of(served, id) for id in (1, 2)] == [[], []]


AS_TYPED = {
    "Caps Lock": "sn0",
    "a small letter": "Sn0",
    "a French keyboard": "SN\u00e0",
    "a code that names its kind": "]C1SN0",
    "a Swedish keyboard": "\u00a8C1SN0",
    "what separates fields": "]C1SN\x1d0\n",
}
CODES = {"s": "KeyS", "n": "KeyN", "c": "KeyC", "1": "Digit1", "0": "Digit0", "\u00e0": "Digit0", "]": "BracketRight"}
CODES |= {"\u00a8": "BracketRight", "\x1d": "BracketRight", "\n": "KeyJ"}
WITH_CTRL, DEAD = {"\x1d": "]", "\n": "j"}, {"\u00a8": "Dead"}


@pytest.mark.parametrize("field", ["", "#note", "#scan"])
@pytest.mark.parametrize("keys", AS_TYPED.values(), ids=AS_TYPED)
def test_a_scan_finds_its_board_whatever_keyboard_is_set_and_wherever_the_cursor_stands(served, browser, keys, field):
    with_pictures(served, 1)
    page = signed_in(served, browser, Role.OPERATOR, "/boards" if field == "#scan" else "/verify")
    page.wait_for_selector(field or "#call:not([hidden])", state="attached")
    page.wait_for_timeout(100)  # what comes with the page is half a scan
    typed = [[key, CODES[key.lower()], key.lower() != key or (keys == "sn0" and key != "0")] for key in keys]
    for one in typed:
        one[:1], one[3:] = [(WITH_CTRL | DEAD).get(one[0], one[0])], [one[0] in WITH_CTRL]
    if keys[-1] != "\n":
        typed.append(["Enter", "Enter", False])
    page.evaluate(SCAN, [typed, field])
    page.wait_for_url("**/boards/1")
    assert words_of(served, 1) == []


def test_a_scan_of_no_board_stays_in_the_field_where_it_was_made(served, browser):
    page = verifying(served, browser, 1)
    with page.expect_response("**/api/v1/boards?key=ss11"):
        page.evaluate(SCAN, [[*([key, CODES[key], False] for key in "ss11"), ["Enter", "Enter", False]], "#note"])
    assert page.input_value("#note") == "ss11"


def test_escape_leaves_the_search_field_so_that_menu_keys_work(served, browser):
    page = signed_in(served, browser, Role.OPERATOR, "/boards")
    page.wait_for_function("() => document.activeElement.id === 'scan'")
    page.wait_for_load_state()  # its script is there, too
    page.keyboard.press("Escape")
    page.keyboard.press("f")
    page.wait_for_url("**/faults")


def test_a_digit_of_a_french_keyboard_answers(served, browser):
    page = verifying(served, browser, 1, answers_hold_s=0)
    page.evaluate(SCAN, [[["\u00e9", "Digit2", False]], ""])
    eventually(lambda: words_of(served, 1) == [Outcome.CONFIRMED])


def test_keys_of_answers_are_remapped_or_switched_off(served, browser):
    page = verifying(served, browser, 2, answers_hold_s=0, keys={"good": "g", "later": 9})
    assert page.inner_text("button[data-outcome='false call'] kbd") == "g"
    page.keyboard.press("9")
    wait_drawn(page, "R1")
    page.keyboard.press("G")
    wait_drawn(page, "R0")
    assert words_of(served, 2) == [Outcome.FALSE_CALL]
    holding(served, answers_hold_s=0, single_keys=False)
    page.reload()
    wait_drawn(page, "R0")
    page.keyboard.press("2")
    page.wait_for_timeout(300)
    page.keyboard.press("w")
    assert page.locator(".answers kbd").count() == 0
    page.click("button[data-outcome='accepted']")
    page.wait_for_selector("#queue-empty:not([hidden])")
    assert words_of(served, 1) == [Outcome.ACCEPTED]


@pytest.mark.parametrize("lost", ["picture", "reference"])
def test_a_part_whose_pictures_were_not_drawn_is_not_good(served, browser, lost, monkeypatch):
    holding(served, answers_hold_s=0)
    if lost == "reference":
        monkeypatch.setattr(board_rows, "good_picture", lambda *_: ("of another board", None))
    with_pictures(served, 1)
    page = signed_in(served, browser, Role.OPERATOR, "/")
    page.wait_for_selector("#live")
    page.route(f"**/api/v1/calls/*/{lost}", lambda route: route.abort())
    page.goto(f"{served.address}/verify")
    page.wait_for_selector("#unseen:has-text('could not be shown')")
    for key in "13":
        page.keyboard.press(key)
        page.wait_for_selector("#say:has-text('could not be shown')")
        page.evaluate("say('')")
    page.click("button[data-outcome='false call']", force=True)
    assert words_of(served, 1) == []
    page.keyboard.press("2")
    page.wait_for_selector("#queue-empty:not([hidden])")
    assert words_of(served, 1) == [Outcome.CONFIRMED]


def test_a_key_that_was_pressed_before_the_pictures_came_is_no_answer(served, browser):
    holding(served, answers_hold_s=0)
    with_pictures(served, 1)
    page = signed_in(served, browser, Role.OPERATOR, "/")
    page.wait_for_selector("#live")
    page.clock.install()
    waiting = []
    page.route("**/api/v1/calls/*/picture", lambda route: waiting.extend([route]))
    page.goto(f"{served.address}/verify")
    page.wait_for_selector("#unseen:has-text('not drawn yet')")
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 2)
    page.keyboard.press("1")
    waiting[0].continue_()
    page.wait_for_function("() => document.querySelector('#picture').naturalWidth > 0", polling=50)
    page.clock.run_for(100)
    wait_drawn(page, "R0")
    page.clock.run_for(1300)
    page.wait_for_selector("#say:has-text('not drawn yet')")
    assert words_of(served, 1) == []
    page.keyboard.press("1")
    page.clock.run_for(1300)
    page.wait_for_selector("#queue-empty:not([hidden])")
    assert words_of(served, 1) == [Outcome.FALSE_CALL]


def test_of_all_tabs_that_are_seen_one_has_a_stream_of_events_and_a_refresh_keeps_the_focus(served, browser):
    with_pictures(served, 2)
    context = browser.new_context()
    page = signed_in(served, context, Role.OPERATOR, "/")
    page.wait_for_selector("#live")
    context.add_init_script(
        "window.streams = []; window.EventSource = class extends EventSource"
        " { constructor(path) { super(path); streams.push(this); } };"
    )
    page.reload()
    page.wait_for_function("() => streams.length === 1 && streams[0].readyState === EventSource.OPEN")
    show = "is => { Object.defineProperty(document, 'hidden', { value: !is, configurable: true });"
    show += " document.dispatchEvent(new Event('visibilitychange')); }"
    other = context.new_page()
    other.goto(f"{served.address}/")
    assert served.engineer.post("/api/v1/drain").is_success
    other.wait_for_selector("#live:has-text('draining')")
    assert other.evaluate("streams.length") == 0
    page.evaluate(show, False)
    assert page.evaluate("streams.map((one) => one.readyState)") == [2]
    other.wait_for_function("() => streams.length === 1 && streams[0].readyState === EventSource.OPEN")
    other.close()
    page.focus("#live a[href='/boards/1']")
    old = page.query_selector("#live a[href='/boards/1']")
    page.evaluate(show, True)
    page.wait_for_function("(old) => !old.isConnected", arg=old)
    assert page.evaluate("document.activeElement.getAttribute('href')") == "/boards/1"
    page.wait_for_function("() => streams.length === 2 && streams[1].readyState === EventSource.OPEN")


def test_a_page_without_news_says_since_when_by_the_clock_of_the_place(served, browser):
    context = browser.new_context(timezone_id="Asia/Kathmandu")
    context.clock.set_system_time(datetime.now(UTC) + timedelta(hours=3))  # a browser whose clock is wrong
    page = signed_in(served, context, Role.VIEWER, "/")
    page.wait_for_selector("#live .lead")
    ask_again = "document.dispatchEvent(new Event('visibilitychange'))"
    page.route("**/line/part", lambda route: route.abort())
    page.evaluate(ask_again)
    hour = datetime.now(UTC).hour
    page.wait_for_selector(f"#outdated b:text-matches('No update since 0?({hour}|{(hour + 23) % 24}):')")
    page.unroute("**/line/part")
    page.wait_for_timeout(1100)  # it asks once a second at most
    page.evaluate(ask_again)
    page.wait_for_selector("#outdated", state="detached")


def test_enter_in_a_note_of_the_repair_station_keeps_the_page_and_the_note(served, browser):
    page = repairing(served, browser)
    page.fill("[name=note]", "new part")
    page.keyboard.press("Enter")
    page.click("[data-outcome=repaired]")
    page.wait_for_selector("[data-outcome=repaired][aria-pressed=true]")
    [word] = served.database.read(repairs.of_calls, [1])
    assert (word.outcome, word.note) == (RepairOutcome.REPAIRED, "new part")
