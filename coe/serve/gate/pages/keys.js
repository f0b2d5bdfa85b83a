// Keys of people, and of barcode scanners, which type: a burst of keys is the serial of a board and never an answer.
"use strict";

const SCAN_MS = 50;  // keys that come as close as this come from a scanner
const QUIET_MS = 150;  // a key counts once no other has followed for so long: a slow scanner ends with Enter
const FIELD = "input:not([type=radio]), select, textarea", LEAST_SCAN = 3;
const SIGNS = { Minus: "-_", Equal: "=+", BracketLeft: "[{", BracketRight: "]}", Backslash: "\\|", Semicolon: ";:", Quote: "'\"", Backquote: "`~", Comma: ",<", Period: ".>", Slash: "/?" };
const heardMs = performance.now();  // of a scan that began before, the page did not hear the beginning
const keyHandlers = [];
let burst = [], quiet = 0, dueMs = 0;

// Let a page act on single keys; `handle(key, atMs)` says whether the key was meant for it.
function onKey(handle) { keyHandlers.unshift(handle); }

function wait(afterMs) {
  clearTimeout(quiet);
  dueMs = performance.now() + afterMs;
  quiet = setTimeout(() => {
    // Where the page was busy, keys that were pressed meanwhile are told after this timer.
    if (performance.now() - dueMs > SCAN_MS) wait(SCAN_MS); else ended(false);
  }, afterMs);
}

function ended(isEnter) {
  const keys = burst, [{ key, code, shiftKey, atMs }] = keys;
  drop();
  const isFast = keys.some((one, index) => index > 0 && one.atMs - keys[index - 1].atMs <= SCAN_MS);
  const handled = (meant) => keyHandlers.some((handle) => handle(meant, atMs));
  if ((isEnter || isFast) && atMs - heardMs < SCAN_MS) say("The beginning of that scan was lost while the page came. Scan again.");
  else if (isEnter || isFast) scanned(readings(keys));
  else if (keys.length > 1) say("Those keys came too fast for an answer. Press one key, and look.");
  // A French keyboard has its digits on Shift.
  else if (!handled(key.toLowerCase()) && !shiftKey && code.startsWith("Digit")) handled(code.at(-1));
}

// What a scanner may have read: it types as for an American keyboard without Caps Lock, whatever is set here.
function readings(keys) {
  return [keys.map(({ key }) => key).join(""), keys.map(american).join("")];
}

function american({ key, code, shiftKey }) {
  const [, letter, digit] = /^(?:Key|Digit(?=\d))([A-Z])?(\d)?$/.exec(code) ?? [];
  if (letter) return shiftKey ? letter : letter.toLowerCase();
  return (digit ? digit + ")!@#$%^&*("[digit] : SIGNS[code])?.[Number(shiftKey)] ?? key;
}

function drop() { clearTimeout(quiet); burst = []; }

// A scan opens its board, or changes the person if it is somebody's badge: answers that wait are those of the person before.
async function scanned(texts) {
  const path = await boardOf(texts);
  if (path) location.href = path;
  if (path !== "") return;
  await beforeLeaving();
  const { answer, problem } = await ask("POST", "/api/v1/session", { key: texts[0] });
  if (answer) location.reload();
  else say(`There is no board with the serial or key ${texts[0]}, and ${problem.status === 401 ? "nobody has this badge" : problem.detail}. Nothing was answered.`);
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

document.addEventListener("keydown", (event) => {
  const { code, shiftKey, timeStamp: atMs } = event, sinceMs = atMs - (burst.at(-1) ?? inField.at(-1))?.atMs;
  let { key } = event;
  if ((event.ctrlKey || event.altKey || event.metaKey) && !event.getModifierState("AltGraph")) {
    // A scanner presses Ctrl for signs without a key: a line end (J, M) is Enter, and what separates fields is nothing.
    if (!event.ctrlKey || !(sinceMs <= SCAN_MS)) return;
    event.preventDefault();
    if (!/^[jm]$/i.test(key)) return;
    key = "Enter";
  } else if (key === "Dead") key = "";  // it types for another keyboard than this one, on which the key waits for a letter
  if (event.target.matches(FIELD)) typed(event, { key, code, shiftKey, atMs });
  else if (key.length <= 1) {
    if (key === " " && !burst.length) return;  // it presses the button that has the focus
    event.preventDefault();
    if (event.repeat) return;
    burst.push({ key, code, shiftKey, atMs });
    wait(QUIET_MS);
  } else if ((key === "Enter" || key === "Tab") && burst.length) {
    event.preventDefault();
    ended(true);
  }
});
// A scan into a field of a page is that of a board all the same, and leaves the field as it was; what is no board stays.
let inField = [], valueBefore = "";
function typed(event, pressed) {
  const field = event.target, last = inField.at(-1);
  if (last?.field !== field || pressed.atMs - last.atMs > SCAN_MS) { inField = []; valueBefore = field.value; }
  if (pressed.key?.length <= 1) inField.push({ ...pressed, field });
  const keys = inField, before = valueBefore, isEnd = pressed.key === "Enter" || pressed.key === "Tab";
  if (!isEnd || keys.length < LEAST_SCAN || field.type === "password") return;
  const form = pressed.key === "Enter" && field.form;
  if (form) event.preventDefault();
  inField = [];
  const empty = () => { field.value = before; field.dispatchEvent(new Event("input")); };
  once(field, async () => {
    if (field.id === "scan") { empty(); await scanned(readings(keys)); return; }
    const path = await boardOf(readings(keys));
    if (path) { empty(); location.href = path; } else if (form) form.requestSubmit();  // somebody types fast
  });
}
// Who presses a button after a key means the button.
document.addEventListener("pointerdown", drop, true);

onKey((key) => {
  const field = key === "/" && document.getElementById("scan");
  if (field) { field.select(); return true; }
  const link = document.querySelector(`nav a[data-key="${CSS.escape(key)}"]`);
  link?.click();
  return Boolean(link);
});
