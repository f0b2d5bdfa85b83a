"""People at the pages with a mouse, with gloves on a small touch screen, with a scanner, and one after another."""

import asyncio
import re
import time
from itertools import product

import pytest
from operators import CALLS, SCAN, known, rekey, repairing, signed_in, verifying, wait_drawn, with_pictures, words_of
from serve_rows import answer, decided, ng
from test_serve_keys import BEGINS, ENDS
from waiting import eventually

from coe.serve.database import audit, call_rows, event_log, repairs, trial_rows, verifications
from coe.serve.enums import EventKind, Outcome, Role

pytestmark = pytest.mark.slow
ANSWERS = list(Outcome)
LEAST_PX = 44
BADGE = "04A2F1C9"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}


class Screen:
    """A browser whose pages are of one kind of screen."""

    def __init__(self, browser, **kind):
        self._browser, self._kind = browser, kind

    def new_page(self):
        return self._browser.new_page(**self._kind)


def place_of(page, selector):
    """Return the middle of a button that a gloved finger can hit: large, on the screen, and with nothing over it."""
    box = page.locator(selector).bounding_box()
    assert min(box["width"], box["height"]) >= LEAST_PX, (selector, box)
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    height = page.evaluate("innerHeight")
    assert 0 <= box["y"] <= height - box["height"], (selector, box)
    assert page.evaluate("([x, y, of]) => document.elementFromPoint(x, y).closest(of) !== null", [x, y, selector])
    return x, y


def of_outcome(outcome):
    return f"[data-outcome='{outcome}']"


@pytest.mark.parametrize("way", ["mouse", "touch"])
def test_fifty_calls_are_verified_without_scrolling_by_mouse_and_by_touch(served, browser, way):
    page = verifying(served, Screen(browser, **PHONE if way == "touch" else {}), CALLS, answers_hold_s=30)
    press = page.touchscreen.tap if way == "touch" else page.mouse.click
    for number in range(CALLS):
        wait_drawn(page, f"R{number}")
        press(*place_of(page, of_outcome(ANSWERS[number % 3])))
    page.wait_for_selector("#queue-empty:not([hidden])")
    press(*place_of(page, "#held li:first-child button"))
    wait_drawn(page, f"R{CALLS - 1}")
    press(*place_of(page, of_outcome(ANSWERS[0])))
    page.wait_for_selector("#queue-empty:not([hidden])")
    page.goto(f"{served.address}/")
    eventually(lambda: served.database.read(call_rows.count_open) == 0)
    meant = [ANSWERS[number % 3] for number in range(CALLS - 1)] + [ANSWERS[0]]
    assert [words_of(served, id + 1) for id in range(CALLS)] == [[one] for one in meant]


@pytest.mark.parametrize("height", [650, 768])
def test_what_can_be_taken_back_stands_on_the_screen_of_a_laptop(served, browser, height):
    laptop = Screen(browser, viewport={"width": 1366, "height": height})
    page = verifying(served, laptop, 2, answers_hold_s=1)
    page.evaluate("document.querySelector('.person').prepend('Maximiliane Mustermann-Wallenstein of the first ')")
    page.keyboard.press("2")
    wait_drawn(page, "R1")
    place_of(page, "#held li:first-child button")
    page.wait_for_selector("#last:not([hidden])")
    place_of(page, "#undo")


@pytest.mark.parametrize("selector", [of_outcome(Outcome.CONFIRMED), "#later"])
def test_the_second_of_two_taps_is_no_answer_to_the_next_call(served, browser, selector):
    page = verifying(served, Screen(browser, **PHONE), 3, answers_hold_s=30)
    x, y = place_of(page, selector)
    # The next call is there at once, and so is the second tap: before anybody can have looked.
    page.touchscreen.tap(x, y)
    page.wait_for_function("() => call?.refdes === 'R1'", polling=5)
    page.touchscreen.tap(x, y)
    page.wait_for_timeout(500)
    assert page.evaluate("call.refdes") == "R1"
    assert page.evaluate("held.length") == (selector != "#later")


def test_a_service_that_does_not_answer_is_asked_again_and_no_call_is_answered_twice(served, browser):
    page = verifying(served, browser, 2, answers_hold_s=30)
    page.evaluate("LONGEST_MS.answer = 200")
    page.route("**/api/v1/calls**", lambda route: None)  # it hangs
    page.keyboard.press("2")
    page.wait_for_selector("#paused:not([hidden])")
    page.keyboard.press("1")
    page.wait_for_timeout(300)
    assert page.evaluate("held.map((item) => item.word.outcome)") == ["confirmed"]
    page.unroute("**/api/v1/calls**")
    wait_drawn(page, "R1")
    page.goto(f"{served.address}/")
    eventually(lambda: words_of(served, 1) == [Outcome.CONFIRMED])


def test_an_answer_of_which_the_receipt_was_lost_counts_once_and_is_no_fault(served, browser):
    page = verifying(served, browser, 1, answers_hold_s=0)

    def lose(route):
        route.fetch()
        route.abort()

    page.route("**/api/v1/calls/1/verification", lose, times=1)
    page.keyboard.press("1")
    page.wait_for_selector("#last:not([hidden])")
    assert not page.is_visible("#say")
    assert words_of(served, 1) == [Outcome.FALSE_CALL]


def test_an_old_answer_is_corrected_on_the_page_of_its_board_with_a_reason(served, browser):
    with_pictures(served, 2)
    answer(served.database, 1, R0=Outcome.FALSE_CALL)
    page = signed_in(served, browser, Role.OPERATOR, "/boards/1")
    page.click("a:has-text('Correct')")
    page.wait_for_selector("#before:has-text('Good')")
    wait_drawn(page, "R0")
    page.keyboard.press("2")
    page.wait_for_selector("#say:has-text('why')")
    assert words_of(served, 1) == [Outcome.FALSE_CALL]
    page.keyboard.type("seen at the microscope")
    page.keyboard.press("Enter")
    page.keyboard.press("2")
    page.wait_for_url("**/boards/1")
    assert "seen at the microscope" in page.inner_text(".history")
    word = served.database.read(verifications.of_calls, [1])[-1]
    assert (word.outcome, word.note, word.supersedes) == (Outcome.CONFIRMED, "seen at the microscope", 1)
    told = [one for one in served.database.read(event_log.after, 0) if one.kind is EventKind.BOARD_VERIFIED]
    assert [one.body["confirmed"] for one in told] == [[], ["R0"]]
    [entry] = [one for one in served.database.read(audit.newest) if one.action == "verify"]
    assert (entry.about, entry.detail["note"], entry.detail["supersedes"]) == ("call 1", "seen at the microscope", 1)


def scan(page, text, field=""):
    """Type as a scanner does, however slow the machine is."""
    page.wait_for_timeout(100)  # what comes with the page is half a scan
    keys = [[key, f"Digit{key}" if key.isdigit() else f"Key{key.upper()}", key.isupper()] for key in text]
    page.evaluate(SCAN, [[*keys, ["Enter", "Enter", False]], field])


def test_a_badge_that_is_scanned_changes_the_person_and_answers_stay_those_of_the_person_before(served, browser):
    assert known(served.database, "eva", BADGE)
    page = verifying(served, browser, 2, answers_hold_s=30)
    page.keyboard.press("2")
    wait_drawn(page, "R1")
    scan(page, BADGE)
    page.wait_for_selector(".person:has-text('eva')")
    wait_drawn(page, "R1")
    page.keyboard.press("1")
    page.wait_for_selector("#queue-empty:not([hidden])")
    page.goto(f"{served.address}/")
    eventually(lambda: served.database.read(call_rows.count_open) == 0)
    [[first], [second]] = [served.database.read(verifications.of_calls, [id]) for id in (1, 2)]
    assert (first.verified_by, second.verified_by) == ("a new operator", "eva")
    assert known(served.database, "bob", BADGE[::-1])
    page.goto(f"{served.address}/boards")
    scan(page, BADGE[::-1], "#scan:focus")
    page.wait_for_selector(".person:has-text('bob')")
    done = [(one.actor, one.action) for one in reversed(served.database.read(audit.newest))]
    assert ("a new operator", "sign out") in done


def test_what_lies_under_a_finger_is_not_drawn_anew(served, browser):
    with_pictures(served, 1)
    page = signed_in(served, browser, Role.OPERATOR, "/")
    box = page.locator("#live a[href='/boards/1']").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    with page.expect_response("**/line/part"):
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.wait_for_timeout(100)
    page.mouse.up()
    page.wait_for_url("**/boards/1")


def test_two_taps_on_a_button_do_once_what_it_says(served, browser):
    page, refused = repairing(served, browser), []
    page.on("response", lambda response: refused.extend([response.status] if response.status >= 400 else []))
    page.dblclick("[data-outcome=repaired]")
    page.wait_for_selector("[data-outcome=repaired][aria-pressed=true]")
    assert len(served.database.read(repairs.of_calls, [1])) == 1
    assert refused == []


def test_of_two_tabs_one_verifies_and_the_other_goes_on_once_it_is_closed(served, browser):
    with_pictures(served, 1)
    context = browser.new_context()
    page = signed_in(served, context, Role.OPERATOR, "/verify")
    wait_drawn(page, "R0")
    other = context.new_page()
    other.goto(f"{served.address}/verify")
    other.wait_for_selector("#paused:not([hidden])")
    assert not other.is_visible("#call")
    page.close()
    wait_drawn(other, "R0")


def test_a_part_that_was_scrolled_out_of_sight_comes_back_before_it_can_be_good(served, browser):
    screen = Screen(browser, viewport={"width": 740, "height": 360})
    page = verifying(served, screen, 1, answers_hold_s=0)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    page.keyboard.press("1")
    page.wait_for_selector("#say:has-text('Look')")
    assert words_of(served, 1) == []
    page.keyboard.press("1")
    page.wait_for_selector("#queue-empty:not([hidden])")
    assert words_of(served, 1) == [Outcome.FALSE_CALL]


@pytest.mark.parametrize(("width", "height"), [(640, 400), (800, 600), (320, 640), (320, 256)])
def test_of_a_page_that_is_enlarged_nothing_is_cut_off_and_the_part_stays_large(served, browser, width, height):
    """Screens of 1280 by 800 and 1600 by 1200 at 200 %, a small phone, and 1280 by 1024 at 400 %."""
    served.gate.config = served.gate.config.model_copy(update={"zone": "America/Argentina/Buenos_Aires"})
    page = verifying(served, Screen(browser, viewport={"width": width, "height": height}), 1)
    assert page.locator("#verify .clip img").first.bounding_box()["width"] >= 120
    for button in page.locator(".answers button").all():
        box = button.bounding_box()
        assert box["x"] + box["width"] <= width
        assert box["y"] + box["height"] <= height
        assert button.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    page.goto(f"{served.address}/boards/1")
    assert page.eval_on_selector(".figures", "(one) => one.scrollWidth <= one.clientWidth")


def test_on_a_phone_the_boards_come_before_what_narrows_them(served, browser):
    served.database.write(decided, "k1", ng("R1"))
    page = signed_in(served, Screen(browser, **PHONE), Role.OPERATOR, "/boards")
    place_of(page, "tbody tr")
    assert not page.is_visible(".filters")
    page.click("summary")
    place_of(page, ".filters [name=state]")
    page.set_viewport_size({"width": 1280, "height": 740})
    page.reload()
    place_of(page, ".filters [name=state]")
    place_of(page, "tbody tr")


def test_a_wide_screen_is_used_and_no_bar_of_a_chart_leaves_its_row(served, browser):
    with_pictures(served, 1)
    page = signed_in(served, browser, Role.OPERATOR, "/statistics?since=2023-11-14T00:00&until=2023-11-15T00:00")
    for width in (360, 1280, 3840):
        page.set_viewport_size({"width": width, "height": 740})
        bar, row = (page.locator(f".pareto tbody {of}").bounding_box() for of in ("svg", "tr"))
        assert row["y"] <= bar["y"] <= row["y"] + row["height"] - bar["height"]
        assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.locator("main").bounding_box()["width"] > 0.9 * width


def test_what_was_typed_into_the_form_of_a_trial_is_there_again_after_the_session(served, browser):
    page = signed_in(served, browser, Role.ENGINEER, "/trials")
    page.fill("[name=boards]", "7")
    page.context.clear_cookies()
    page.click("text=Try >> nth=-1")
    rekey(page, served, "a new engineer")
    page.wait_for_selector("[name=boards]")
    with page.expect_response("**/api/v1/trials") as answer:
        page.click("text=Try >> nth=-1")
    assert answer.value.status == 201
    (trial,) = served.database.read(trial_rows.newest)
    assert trial.asked["boards"] == 7
    page.wait_for_selector("tbody tr")
    assert page.input_value("[name=boards]") == "1000"


NAMED = {"Enter": 13, "Tab": 9, " ": 32}
GAP_S = 0.008
UNKNOWN = "ZZ98765"


class Scanner:
    """Keys that are sent with times of their own, so that a busy machine does not matter."""

    def __init__(self, page):
        self._page, self._session = page, page.context.new_cdp_session(page)

    def types(self, keys, began_s):
        events = []
        for number, key in enumerate(keys):
            text = {"Enter": "\r", "Tab": ""}.get(key, key)
            pressed = {
                "key": key,
                "code": {" ": "Space"}.get(key, key if key in NAMED else f"{'Digit' if key.isdigit() else 'Key'}{key}"),
                "windowsVirtualKeyCode": NAMED.get(key, ord(key[0])),
                "modifiers": 8 if key.isupper() else 0,
                "timestamp": began_s + number * GAP_S,
            }
            events += [
                {**pressed, "type": "keyDown" if text else "rawKeyDown", "text": text},
                {**pressed, "type": "keyUp"},
            ]
        # All at once: with an answer to wait for between two keys they would come late on a busy machine.
        sent = [self._session._impl_obj.send("Input.dispatchKeyEvent", event, None) for event in events]
        self._session._sync(asyncio.gather(*(self._session._loop.create_task(one) for one in sent)))

    def scans(self, code, begin, end, lag_ms):
        keys, began_s = [*begin, *code], time.time()
        if lag_ms <= GAP_S * 1000:
            self.types([*keys, *end], began_s)
        else:
            self.types(keys, began_s)
            self._page.wait_for_timeout(lag_ms)
            self.types(end, began_s + (len(keys) - 1) * GAP_S + lag_ms / 1000)


def watched(page):
    sent = []
    page.on("request", lambda request: sent.append(request.url.split("?")[0]) if request.method != "GET" else None)
    return sent


def no_scan_presses(page, button, allowed):
    """Scan what nobody knows, each way, while a button has the focus."""
    sent, scanner = watched(page), Scanner(page)
    for begin, (end, lag_ms) in product(BEGINS.values(), ENDS.values()):
        page.wait_for_timeout(1000)
        page.focus(button)
        with page.expect_response("**/api/v1/session") as badge:
            scanner.scans(UNKNOWN, begin, end, lag_ms)
        assert not badge.value.ok
        # On a busy machine keys come late, and a scan is two, of which neither answers.
        page.wait_for_selector("#say:not(:empty)", state="attached")
        page.wait_for_timeout(300)
        page.evaluate("say('')")
    assert [url for url in sent if not url.endswith(allowed)] == []


def test_no_scan_answers_the_call_whose_button_has_the_focus(served, browser):
    page = verifying(served, browser, 1, answers_hold_s=0)
    no_scan_presses(page, "[data-outcome='false call']", ("/session", "/next", "/claim"))
    assert words_of(served, 1) == []


def test_no_scan_repairs_a_defect_or_signs_out(served, browser):
    page = repairing(served, browser)
    no_scan_presses(page, "[data-outcome=repaired]", ("/session",))
    assert served.database.read(repairs.of_calls, [1]) == []
    page.goto(f"{served.address}/boards")
    no_scan_presses(page, "[data-act=sign-out]", ("/session",))
    assert page.is_visible("[data-act=sign-out]")


def test_a_button_gives_the_focus_away_and_the_keyboard_can_press_it_again(served, browser):
    page = verifying(served, browser, 2, answers_hold_s=0)
    page.wait_for_timeout(1000)
    page.click("[data-outcome=confirmed]")
    wait_drawn(page, "R1")
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    page.keyboard.press("Enter")
    page.wait_for_timeout(1300)
    assert words_of(served, 2) == []
    page.focus("[data-outcome=confirmed]")
    page.keyboard.press("Enter")
    page.wait_for_selector("#queue-empty:not([hidden])")
    assert words_of(served, 2) == [Outcome.CONFIRMED]


def test_fifty_scans_between_fifty_taps_open_boards_and_answer_nothing_else(served, browser):
    page = verifying(served, browser, CALLS, answers_hold_s=0)
    ways = list(product(BEGINS.values(), ENDS.values()))
    for number in range(CALLS):
        wait_drawn(page, f"R{number}")
        page.click("[data-outcome=confirmed]")
        page.wait_for_selector(f"#refdes:text-is('R{number + 1}'), #queue-empty:not([hidden])")
        begin, end = ways[number % len(ways)]
        Scanner(page).scans(f"SN{number}", begin, *end)
        # A late Tab and Enter that come before the script of the new page follow its link to the content.
        page.wait_for_url(re.compile(rf"/boards/{number + 1}(#main)?$"))
        page.goto(f"{served.address}/verify")
    assert [words_of(served, id + 1) for id in range(CALLS)] == [[Outcome.CONFIRMED]] * CALLS
