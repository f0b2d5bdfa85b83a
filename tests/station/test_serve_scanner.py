"""A barcode scanner at the pages, in a real browser, while a button has the focus: each beginning and end of a scan."""

import asyncio
import re
import time

import pytest
from serve_rows import decided, ng
from test_serve_cfx import answer
from test_serve_keyboard import CALLS, holding, signed_in, verifying, wait_drawn, with_pictures, words_of
from test_serve_keys import BEGINS, ENDS

from coe.serve.database import repairs
from coe.serve.enums import Outcome, Role

pytestmark = pytest.mark.slow
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


def scans():
    """Yield every beginning with every end."""
    for begin in BEGINS.values():
        for end, lag_ms in ENDS.values():
            yield begin, end, lag_ms


def watched(page):
    """Return a list to which each request is added that changes something."""
    sent = []
    page.on("request", lambda request: sent.append(request.url.split("?")[0]) if request.method != "GET" else None)
    return sent


def no_scan_presses(page, button, allowed):
    """Scan what nobody knows, each way, while a button has the focus."""
    sent, scanner = watched(page), Scanner(page)
    for begin, end, lag_ms in scans():
        page.wait_for_timeout(1000)
        page.focus(button)
        with page.expect_response("**/api/v1/session") as badge:
            scanner.scans(UNKNOWN, begin, end, lag_ms)
        assert not badge.value.ok
        page.wait_for_selector(f"#say:has-text('{UNKNOWN}')", state="attached")
        page.wait_for_timeout(300)
        page.evaluate("say('')")
    assert [url for url in sent if not url.endswith(allowed)] == []


def test_no_scan_answers_the_call_whose_button_has_the_focus(served, browser):
    page = verifying(served, browser, 1, answers_hold_s=0)
    no_scan_presses(page, "[data-outcome='false call']", ("/session", "/next", "/claim"))
    assert words_of(served, 1) == []


def test_no_scan_repairs_a_defect_or_signs_out(served, browser):
    served.database.write(decided, "k1", ng("R1"))
    answer(served.database, 1, R1=Outcome.CONFIRMED)
    page = signed_in(served, browser, Role.OPERATOR, "/repair/1")
    page.wait_for_selector("[data-outcome=repaired]")
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
    holding(served, answers_hold_s=0)
    with_pictures(served, CALLS)
    page = signed_in(served, browser, Role.OPERATOR, "/verify")
    ways = list(scans())
    for number in range(CALLS):
        wait_drawn(page, f"R{number}")
        page.click("[data-outcome=confirmed]")
        page.wait_for_selector(
            f"#refdes:text-is('R{number + 1}')" if number + 1 < CALLS else "#queue-empty:not([hidden])"
        )
        Scanner(page).scans(f"SN{number}", *ways[number % len(ways)])
        # A late Tab and Enter that come before the script of the new page follow its link to the content.
        page.wait_for_url(re.compile(rf"/boards/{number + 1}(#main)?$"))
        page.goto(f"{served.address}/verify")
    assert [words_of(served, id + 1) for id in range(CALLS)] == [[Outcome.CONFIRMED]] * CALLS
