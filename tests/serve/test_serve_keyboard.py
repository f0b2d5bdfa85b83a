"""People at the pages, in a real browser: fifty calls are verified with the keyboard alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from serve_rows import NOON, accepted, decision, ng
from serving import Served

from coe.serve.database import calls, decisions, keys, verifications
from coe.serve.moments import now_us
from coe.serve.words import Outcome, Role

pytestmark = pytest.mark.slow
CALLS = 50


@pytest.fixture
def browser() -> Iterator[Any]:
    """Chromium, or a sentence that says what is missing."""
    library = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium here; install Debian's package `chromium`")
    with library.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


def test_fifty_calls_are_verified_by_keyboard_and_nothing_is_loaded_from_elsewhere(
    served: Served, browser: Any
) -> None:
    key = keys.generate()
    with served.database.writing() as connection:
        keys.add(connection, "ann", Role.OPERATOR, key, now_us=now_us())
        for number in range(CALLS):
            board = accepted(connection, f"k{number}", serial=f"SN{number}")
            decisions.write(connection, decision(board, ng(f"R{number}"), at_us=NOON))
    page = browser.new_page()
    asked: list[str] = []
    errors: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{served.address}/verify")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    page.wait_for_selector("#call:not([hidden])")
    presses = {"1": Outcome.FALSE_CALL, "2": Outcome.CONFIRMED, "3": Outcome.ACCEPTED}
    for number in range(CALLS):
        page.wait_for_selector(f"#refdes:text-is('R{number}')")
        page.keyboard.press("123"[number % 3])
    page.wait_for_selector("#queue-empty:not([hidden])")
    # The last answer is taken back, and given anew.
    page.keyboard.press("Backspace")
    page.wait_for_selector("#call:not([hidden])")
    page.keyboard.press("1")
    page.wait_for_selector("#queue-empty:not([hidden])")
    with served.database.reading() as connection:
        assert calls.count_open(connection) == 0
        words = [verifications.of_call(connection, id + 1) for id in range(CALLS)]
    assert [word[0].outcome for word in words] == [presses["123"[number % 3]] for number in range(CALLS)]
    assert [len(word) for word in words] == [1] * (CALLS - 1) + [2]
    assert words[-1][-1].outcome is Outcome.FALSE_CALL
    assert {word[-1].verified_by for word in words} == {"ann"}
    assert all(url.startswith(served.address) for url in asked)
    assert not errors
