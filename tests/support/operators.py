"""People at the pages in a real browser: they sign in, wait for a call, and answer it; those who have a badge."""

from dataclasses import replace

from serve_rows import NOON, answer, decided, decision, ng, the
from serving import hand_in
from sqlalchemy import update

from coe.serve.clock import now_us
from coe.serve.database import board_rows, keys, row_types, verifications
from coe.serve.database.tables import Board, api_key
from coe.serve.enums import Outcome, Role
from coe.serve.service_config import VerifySection

BADGE = "04A2F1C9"
CALLS = 50
SCAN = """([keys, field]) => {
    const at = field ? document.querySelector(field) : document.body;
    at.focus();
    for (const [key, code, shiftKey, ctrlKey = false] of keys) {
        const pressed = { key, code, shiftKey, ctrlKey, bubbles: true, cancelable: true };
        if (at.dispatchEvent(new KeyboardEvent("keydown", pressed)))
            if (key.length === 1 && "value" in at) at.value += key;
    }
    return at.value;
}"""
"""Types as a scanner does for an American keyboard, whose keys another one has elsewhere."""


def signed_in(served, browser, role, path):
    key = keys.generate()
    served.database.write(keys.add, f"a new {role.value}", role, key, now_us=now_us())
    page = browser.new_page()
    page.goto(f"{served.address}{path}")
    page.fill("#key", key)
    page.keyboard.press("Enter")
    return page


def holding(served, **settings):
    verify = VerifySection.model_validate(settings)
    served.gate.config = served.gate.config.model_copy(update={"verify": verify})


def with_pictures(served, calls):
    """Decide boards SN0, SN1, ... with a call each, R0, R1, ..., and its picture."""
    for number in range(calls):
        taken = hand_in(served.feeder, f"k{number}", {f"R{number}": "A"}, serial=f"SN{number}")
        call = replace(ng(f"R{number}", view_id=number + 1), component="A")
        with served.database.writing() as connection:
            board = the(row_types.get(connection, Board, taken.json()["board"]))
            board_rows.decide(connection, decision(board, call, at_us=NOON, fine=[]))


def wait_drawn(page, refdes):
    page.wait_for_selector(f"#refdes:text-is('{refdes}')")
    page.wait_for_selector("[data-outcome='false call'][aria-disabled='false']")


def verifying(served, browser, calls, **settings):
    """Return the page of an operator who has so many calls to answer, once the first is drawn."""
    holding(served, **settings)
    with_pictures(served, calls)
    page = signed_in(served, browser, Role.OPERATOR, "/verify")
    wait_drawn(page, "R0")
    return page


def repairing(served, browser):
    """Return the page of an operator who repairs the confirmed defect of a board."""
    served.database.write(decided, "k1", ng("R1"))
    answer(served.database, 1, R1=Outcome.CONFIRMED)
    page = signed_in(served, browser, Role.OPERATOR, "/repair/1")
    page.wait_for_selector("[data-outcome=repaired]")
    return page


def rekey(page, served, name):
    """Sign in again, after the session was over, with a new key of this name."""
    key = keys.generate()
    with served.database.writing() as connection:
        connection.execute(update(api_key).where(api_key.c.name == name).values(hash=keys.hash_of(key)))
    page.fill("#key", key)
    page.keyboard.press("Enter")


def words_of(served, id):
    return [word.outcome for word in served.database.read(verifications.of_calls, [id])]


def known(database, name, badge="", pin=""):
    with database.writing() as connection:
        keys.add(connection, name, Role.OPERATOR, keys.generate(), now_us=1)
        return keys.set_secrets(connection, name, badge, pin, 2)
