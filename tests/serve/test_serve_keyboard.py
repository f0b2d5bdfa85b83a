"""People at the pages, in a real browser, with the keyboard alone: calls are verified, placements are confirmed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from serve_rows import NOON, accepted, decision, ng, read, write
from serving import Served
from tiny_line import TINY
from whole_boards import BOARD, WHOLE, found, png, with_call

from coe.serve.clock import now_us
from coe.serve.database import call_rows, decisions, keys, recipe_versions, verifications
from coe.serve.enums import Outcome, Role

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


def signed_in(served: Served, browser: Any, role: Role, path: str) -> Any:
    """Return a page of somebody who signed in with the keyboard."""
    key = keys.generate()
    write(served.database, keys.add, f"a new {role.value}", role, key, now_us=now_us())
    page = browser.new_page()
    page.goto(f"{served.address}{path}")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    return page


def test_one_key_shows_the_whole_board_and_the_part_again(served: Served, browser: Any, tmp_path: Path) -> None:
    with_call(served, found(tmp_path / "board.png"), "P2", "B")
    page = signed_in(served, browser, Role.OPERATOR, "/verify")
    page.wait_for_selector("#call:not([hidden])")
    page.wait_for_selector(".pic .frame", state="attached")  # drawn once the picture is there
    with page.expect_response("**/api/v1/calls/1/view") as answer:
        page.keyboard.press("w")
    assert answer.value.ok
    assert (page.is_visible("#whole"), page.is_visible("#pictures")) == (True, False)
    assert page.get_attribute("#whole-button", "aria-pressed") == "true"
    page.keyboard.press("W")
    assert (page.is_visible("#whole"), page.is_visible("#pictures")) == (False, True)
    page.keyboard.press("w")
    page.keyboard.press("2")
    page.wait_for_selector("#queue-empty:not([hidden])")
    assert read(served.database, verifications.of_call, 1)[0].outcome is Outcome.CONFIRMED


def test_placements_are_looked_at_and_confirmed(served: Served, browser: Any, tmp_path: Path) -> None:
    board, blank = tmp_path / "board.png", tmp_path / "blank.png"
    board.write_bytes(png(BOARD))
    blank.write_bytes(png(np.full_like(BOARD, 200)))
    with served.database.writing() as connection:
        content = {"rules": TINY, "whole": WHOLE, "within_s": None, "terminations": {}, "parts": {}}
        staged = recipe_versions.add(connection, "new", content, by="ann", now_us=now_us())
    page = signed_in(served, browser, Role.ENGINEER, "/recipes/new/1")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.wait_for_selector("#board-picture")
    page.set_input_files("#board-picture", blank)
    page.wait_for_selector("#overlay-says:has-text('not registered')")
    assert not page.is_visible("#overlay-confirm")
    page.set_input_files("#board-picture", board)
    page.wait_for_selector("#overlay-confirm")
    drawn = "[...document.getElementById('overlay-picture').getContext('2d').getImageData(0, 0, 400, 400).data]"
    assert len(set(page.evaluate(drawn))) > 20, "the overlay is on the page"
    page.keyboard.press("c")
    page.wait_for_selector(".banner.ok:has-text('Confirmed')")
    word = read(served.database, recipe_versions.confirmation_of, staged)
    assert word is not None
    assert word.confirmed_by == "a new engineer"
    assert not errors


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
        assert call_rows.count_open(connection) == 0
        words = [verifications.of_call(connection, id + 1) for id in range(CALLS)]
    assert [word[0].outcome for word in words] == [presses["123"[number % 3]] for number in range(CALLS)]
    assert [len(word) for word in words] == [1] * (CALLS - 1) + [2]
    assert words[-1][-1].outcome is Outcome.FALSE_CALL
    assert {word[-1].verified_by for word in words} == {"ann"}
    assert all(url.startswith(served.address) for url in asked)
    assert not errors
