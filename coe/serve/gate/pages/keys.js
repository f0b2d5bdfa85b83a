// Keys of people, and of barcode scanners, which type: a burst of keys is the serial of a board and never an answer.
"use strict";

const SCAN_MS = 50;  // keys that come as close as this come from a scanner
const QUIET_MS = 150;  // a key of a person takes effect once no other has followed for so long: a slow scanner ends with Enter
const REST_MS = 1000;  // for so long after a typed sign, Enter, Tab and space belong to what was typed
const HELD_MS = 30;  // a person holds a key longer, a scanner does not
const LEAST_SCAN = 3;
const SIGNS = { Minus: "-_", Equal: "=+", BracketLeft: "[{", BracketRight: "]}", Backslash: "\\|", Semicolon: ";:", Quote: "'\"", Backquote: "`~", Comma: ",<", Period: ".>", Slash: "/?" };

// Decides what keys mean. A key is { key, code, shiftKey, atMs, target }; time is an argument, and nothing here touches the page.
// A scanner may type more than the serial: a space or an Enter before it, Tab and Enter or two Enters behind it, or a late
// one. So a button is pressed only by an Enter or a space that stands alone, a second or more after the last typed sign.
class KeyReader {
  burst = [];
  inField = [];
  before = "";  // what the field held before the keys of `inField`
  scannedMs = -Infinity;  // when a scan ended, outside of fields
  filledMs = -Infinity;  // when what may be a scan ended in a field
  latestMs = -Infinity;  // the last key, and the last one outside of fields
  pressedMs = -Infinity;

  // Of a scan that began before `heardMs` the page did not hear the beginning, and its end may still come.
  constructor(heardMs) { this.heardMs = this.signMs = heardMs; }

  // Take a key that no field takes: "page" if the browser may act on it, "wait" if its meaning waits for the next keys,
  // "kept" if it means nothing, or what it ends.
  press(pressed) {
    const { key, atMs } = pressed, isEnd = key === "Enter" || key === "Tab", isSign = !isEnd && key !== " ";
    if (isEnd && this.burst.some(isTyped)) return this.end(true);
    if (!isSign && !this.burst.length && atMs - this.signMs < REST_MS) return "kept";
    if (key === "Tab") return "page";
    this.burst.push({ ...pressed, sinceMs: atMs - this.pressedMs });
    this.latestMs = this.pressedMs = atMs;
    if (isSign) this.signMs = atMs;
    return "wait";
  }

  // Nothing followed: { scan }, { key }, { button }, { fault } or, if the keys mean nothing, {}.
  end(isEnd = false) {
    const keys = this.burst, signs = keys.filter(isTyped), [first] = keys;
    this.burst = [];
    if (!signs.length) return keys.length === 1 ? { button: first?.target } : {};
    if (isEnd || keys.some(({ sinceMs }) => sinceMs <= SCAN_MS)) {
      this.scannedMs = keys.at(-1).atMs;
      return first.atMs - this.heardMs < SCAN_MS ? { fault: "The beginning of the scan was lost while the page loaded. Scan again." } : { scan: readings(keys) };
    }
    // A scanner that stutters sends its last signs late.
    if (first.atMs - this.scannedMs < REST_MS) return {};
    return keys.length > 1 || first.sinceMs <= QUIET_MS ? { fault: "Those keys came too fast for an answer. Press one key and check the result." } : { key: first };
  }

  // Take a key that goes into a field that holds `text`: "page", "kept", or { scan, before } at the end of a scan.
  type({ key, code, shiftKey, atMs, target }, text) {
    const last = this.inField.at(-1), isEnd = key === "Enter" || key === "Tab";
    if (last?.target !== target || atMs - last.atMs > (isEnd ? REST_MS : SCAN_MS)) { this.inField = []; this.before = text; }
    if (key.length <= 1) { this.inField.push({ key, code, shiftKey, atMs, target }); this.latestMs = this.signMs = atMs; }
    if (!isEnd) return "page";
    const keys = this.inField;
    this.inField = [];
    if (keys.length < LEAST_SCAN) return atMs - this.filledMs < REST_MS ? "kept" : "page";
    this.filledMs = atMs;
    return { scan: readings(keys), before: this.before };
  }

  // How long the meaning of the keys waits: a key alone until it is known that a person held it, because on a busy
  // machine the next key of a scanner may come late.
  get waitsMs() { return this.burst.length > 1 ? QUIET_MS : REST_MS; }

  // The only key came up again: how long its meaning still waits, or null if nothing tells that a person held it.
  release(atMs) {
    const heldMs = atMs - this.burst[0]?.atMs;
    return this.burst.length === 1 && heldMs >= HELD_MS ? Math.max(0, QUIET_MS - heldMs) : null;
  }

  // Somebody pressed a button with a finger or a mouse, and means that.
  drop() { this.burst = []; }
}

const isTyped = ({ key }) => key !== "Enter" && key !== " ";

// What a scanner may have read: it types as for an American keyboard without Caps Lock, whatever is set here.
function readings(keys) {
  const signs = keys.filter(({ key }) => key !== "Enter");
  return [signs.map(({ key }) => key).join("").trim(), signs.map(american).join("").trim()];
}

function american({ key, code, shiftKey }) {
  const [, letter, digit] = /^(?:Key|Digit(?=\d))([A-Z])?(\d)?$/.exec(code) ?? [];
  if (letter) return shiftKey ? letter : letter.toLowerCase();
  return (digit ? digit + ")!@#$%^&*("[digit] : SIGNS[code])?.[Number(shiftKey)] ?? key;
}

const TEXT = "input:not([type=radio], [type=checkbox], [type=file], [type=range]), select, textarea";
const reader = new KeyReader(performance.now()), keyHandlers = [];
let quiet = 0;

// Let a page act on single keys; `handle(key, atMs)` says whether the key was meant for it.
function onKey(handle) { keyHandlers.unshift(handle); }
const handled = (key, atMs) => keyHandlers.some((handle) => handle(key, atMs));

function wait(afterMs) {
  const dueMs = performance.now() + afterMs;
  clearTimeout(quiet);
  quiet = setTimeout(() => {
    // Where the page was busy, keys that were pressed meanwhile are told after this timer.
    if (performance.now() - dueMs > SCAN_MS) wait(SCAN_MS); else if (reader.burst.length) meant(reader.end());
  }, afterMs);
}

function meant({ scan, key, button, fault }) {
  clearTimeout(quiet);
  if (fault) say(fault);
  else if (scan) scanned(scan);
  else if (button && button === document.activeElement) button.click?.();
  // A French keyboard has its digits on Shift.
  else if (key && !handled(key.key.toLowerCase(), key.atMs) && !key.shiftKey && key.code.startsWith("Digit")) handled(key.code.at(-1), key.atMs);
}

document.addEventListener("keydown", (event) => {
  const { code, shiftKey, target, timeStamp: atMs } = event;
  let { key } = event;
  if ((event.ctrlKey || event.altKey || event.metaKey) && !event.getModifierState("AltGraph")) {
    // A scanner presses Ctrl for signs without a key: a line end (J, M) is Enter, and what separates fields is nothing.
    if (!event.ctrlKey || !(atMs - reader.latestMs <= SCAN_MS)) return;
    event.preventDefault();
    if (!/^[jm]$/i.test(key)) return;
    key = "Enter";
  } else if (key === "Dead") key = "";  // it types for another keyboard than this one, on which the key waits for a letter
  if (key.length > 1 && key !== "Enter" && key !== "Tab") {
    if (key === "Escape" && target.matches(TEXT)) target.blur();  // the letters of the menu take effect again
    if (!event.repeat && !target.matches(TEXT) && !reader.burst.length && handled(key, atMs)) event.preventDefault();
    return;
  }
  const pressed = { key, code, shiftKey, atMs, target };
  if (target.matches(TEXT)) { if (target.type !== "password") intoField(event, pressed); return; }
  const says = event.repeat && key !== "Tab" ? "kept" : reader.press(pressed);
  // A space scrolls a page on which nothing has the focus.
  if (says !== "page" && !(key === " " && target === document.body)) event.preventDefault();
  // Where keys come late, those behind them do, too.
  if (says === "wait") wait(reader.waitsMs + Math.max(0, performance.now() - atMs)); else if (typeof says === "object") meant(says);
});
// Some browsers press a button when its space comes up, whatever became of the space that went down.
document.addEventListener("keyup", (event) => {
  if (event.target.matches?.(TEXT)) return;
  if (event.key === " ") event.preventDefault();
  const leftMs = reader.release(event.timeStamp);
  if (leftMs !== null) wait(leftMs);
});
document.addEventListener("pointerdown", () => reader.drop(), true);
// A button that was used gives the focus away: the next Tab goes on from it, and no other key presses it.
document.addEventListener("click", (event) => event.target.closest?.("button")?.blur());

// A scan into a field of a page is that of a board all the same, and leaves the field as it was; what is no board stays.
function intoField(event, pressed) {
  const field = pressed.target, form = pressed.key === "Enter" && field.form, says = reader.type(pressed, field.value);
  if (says === "page") return;
  if (form || says === "kept") event.preventDefault();
  if (says === "kept") return;
  const empty = () => { field.value = says.before; field.dispatchEvent(new Event("input")); };
  once(field, async () => {
    if (field.id === "scan") { empty(); await scanned(says.scan); return; }
    const path = await boardOf(says.scan);
    if (path) { empty(); location.href = path; } else if (form) form.requestSubmit();  // somebody types fast
  });
}

// A scan opens its board, or changes the person if it is somebody's badge: answers that wait are those of the person before.
async function scanned(texts) {
  const path = await boardOf(texts);
  if (path) location.href = path;
  if (path !== "") return;
  await beforeLeaving();
  const { answer, problem } = await ask("POST", "/api/v1/session", { key: texts[0] });
  if (answer) location.reload();
  else say(`There is no board with the serial or key ${texts[0]}, and ${problem.status === 401 ? "nobody has this badge" : problem.detail}. The scan answered no call.`);
}

// Return the page of the board that was scanned, empty if there is none, and null if nobody knows. A scanner that is set
// so says before a code of which kind it is (AIM). Who types a serial may write it small.
async function boardOf(texts) {
  const bare = [...texts, ...texts.map((text) => text.replace(/^\][A-Za-z][0-9A-Za-z](?=.)/, ""))];
  const serials = new Set([...bare, ...bare.map((text) => text.toUpperCase())]);
  for (const asked of [...serials].flatMap((serial) => [{ serial, limit: 2 }, { key: serial }])) {
    const answer = await send("GET", `/api/v1/boards?${new URLSearchParams(asked)}`);
    if (!answer) return null;
    const { boards } = await answer.json(), to = document.getElementById("main").dataset.scansTo;
    if (to && boards.length) return `${to}/${boards[0].board}`;  // the newest is the one in hand
    if (boards.length > 1) return `/boards?${new URLSearchParams({ scan: asked.serial })}`;
    if (boards.length) return `/boards/${boards[0].board}`;
  }
  return "";
}

// A scanner types into the field that finds boards, too.
document.querySelector(".find")?.addEventListener("submit", (event) => {
  const text = document.getElementById("scan").value.trim();
  if (!text) return;
  event.preventDefault();
  once(event.target, () => scanned([text]));
});

onKey((key) => {
  const field = key === "/" && document.getElementById("scan");
  if (field) { field.select(); return true; }
  const link = document.querySelector(`nav a[data-key="${CSS.escape(key)}"]`);
  link?.click();
  return Boolean(link);
});
