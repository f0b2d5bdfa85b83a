"""What keys mean around a scan: the script that decides it, run by Node.js without a browser."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from coe.serve.gate import pages

SCRIPT = Path(pages.__file__).parent / "keys.js"
RUN = """
const vm = require("vm"), fs = require("fs");
const page = vm.createContext({ document: { addEventListener() {}, querySelector() {} }, performance });
vm.runInContext(fs.readFileSync(process.argv[1], "utf8") + ";globalThis.KeyReader = KeyReader;", page);
const run = ({ field, keys }) => {
  const reader = new page.KeyReader(0), meant = [];
  let text = "";
  const told = (what) => {
    if (typeof what !== "string" && Object.keys(what).length)
      meant.push(what.scan ? `scan ${what.scan[0]}` : what.key?.key ?? Object.keys(what)[0]);
  };
  for (const [key, atMs] of keys) {
    if (reader.burst.length && atMs - reader.latestMs > 150) told(reader.end());
    const code = /[0-9]/.test(key) ? `Digit${key}` : `Key${key.toUpperCase()}`;
    const pressed = { key, code, shiftKey: false, atMs, target: 7 };
    if (key === "click") reader.drop();
    else if (!field) told(reader.press(pressed));
    else {
      const says = reader.type(pressed, text);
      if (says === "page" && key.length === 1) text += key;
      if (says === "page" && key === "Enter") meant.push("sent"); else told(says);
    }
  }
  if (reader.burst.length) told(reader.end());
  return meant;
};
console.log(JSON.stringify(JSON.parse(process.argv[2]).map(run)));
"""
LATER = 5000
ENDS = {
    "one Enter": (["Enter"], 8),
    "CR LF": (["Enter", "Enter"], 8),
    "Tab": (["Tab"], 8),
    "Tab Enter": (["Tab", "Enter"], 8),
    "Enter Tab": (["Enter", "Tab"], 8),
    "late Enter": (["Enter"], 250),
    "later Enter": (["Enter"], 900),
    "late CR LF": (["Enter", "Enter"], 400),
    "late Tab Enter": (["Tab", "Enter"], 300),
    "space": ([" "], 8),
    "late space": ([" "], 500),
    "late sign": (["1"], 400),
    "nothing": ([], 0),
}
BEGINS = {"nothing": [], "a space": [" "], "an Enter": ["Enter"], "two Enters": ["Enter", "Enter"]}


def ran(script, *arguments):
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js here")
    run = subprocess.run([node, "-e", script, SCRIPT, *arguments], capture_output=True, text=True, check=True)
    return json.loads(run.stdout)


def meanings(*cases):
    return ran(RUN, json.dumps([{"keys": keys, "field": field} for keys, field in cases]))


def scan(begin, ends, lag_ms, gap_ms=8):
    keys = [(key, LATER + gap_ms * number) for number, key in enumerate([*begin, "S", "N", "0"])]
    return keys + [(key, keys[-1][1] + lag_ms + 8 * number) for number, key in enumerate(ends)]


def test_no_end_and_no_beginning_of_a_scan_answers_or_presses_the_button_that_has_the_focus():
    cases = [(scan(begin, *end), False) for begin in BEGINS.values() for end in ENDS.values()]
    cases.append((scan([], ["Enter"], 60, gap_ms=60), False))  # a slow scan is one, as its end says
    assert meanings(*cases) == [["scan SN0"]] * len(cases)


def test_a_scan_into_a_field_does_not_send_its_form():
    ended = [end for name, end in ENDS.items() if {"Enter", "Tab"} & set(end[0])]
    cases = [(scan([], *end), True) for end in ended]
    assert meanings(*cases) == [["scan SN0"]] * len(cases)


def test_keys_of_people_are_what_they_were_pressed_for():
    alone, button, typed, fast, dropped = meanings(
        ([("1", LATER), ("2", LATER + 400)], False),
        ([("Enter", LATER), (" ", LATER + 2000)], False),
        ([("a", LATER), ("b", LATER + 120), ("Enter", LATER + 300)], True),
        ([("1", LATER), ("2", LATER + 100)], False),
        ([("4", LATER), ("click", LATER + 4), ("1", LATER + 8)], False),
    )
    assert (alone, button, typed) == (["1", "2"], ["button", "button"], ["sent"])
    assert fast == ["fault"]
    assert dropped == ["scan 1"]


def test_a_key_that_nobody_held_waits_for_those_that_may_come_late():
    held = """
    const left = (heldMs) => {
      const reader = new page.KeyReader(0);
      reader.press({ key: "1", code: "Digit1", shiftKey: false, atMs: 5000, target: 7 });
      return [reader.waitsMs, reader.release(5000 + heldMs)];
    };
    console.log(JSON.stringify([2, 29, 80, 400].map(left)));
    """
    found = ran(RUN.partition("const run =")[0] + held)
    assert found == [[1000, None], [1000, None], [1000, 70], [1000, 0]]
