// Keys of people, and of barcode scanners, which type: a burst of keys is the serial of a board and never an answer.
"use strict";

const SCAN_MS = 50;  // keys that come as close as this come from a scanner
const QUIET_MS = 150;  // a key counts once no other has followed for so long: a slow scanner ends with Enter
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
  const keys = burst;
  drop();
  const isFast = keys.some(({ atMs }, index) => index > 0 && atMs - keys[index - 1].atMs <= SCAN_MS);
  if (isEnter || isFast) scanned(keys.map(({ key }) => key).join(""));
  else if (keys.length > 1) say("Those keys came too fast for an answer. Press one key, and look.");
  else keyHandlers.some((handle) => handle(keys[0].key.toLowerCase(), keys[0].atMs));
}

function drop() { clearTimeout(quiet); burst = []; }

// A scan opens its board, or changes the person if it is somebody's badge: answers that wait are those of the person before.
async function scanned(serial) {
  let boards = [];
  for (const asked of [{ serial, limit: 2 }, { key: serial }]) {
    const answer = await send("GET", `/api/v1/boards?${new URLSearchParams(asked)}`);
    if (!answer) return;
    boards = (await answer.json()).boards;
    if (boards.length) break;
  }
  const to = document.getElementById("main").dataset.scansTo;
  if (to && boards.length) location.href = `${to}/${boards[0].board}`;  // the newest is the one in hand
  else if (boards.length > 1) location.href = `/boards?${new URLSearchParams({ scan: serial })}`;
  else if (boards.length) location.href = `/boards/${boards[0].board}`;
  else {
    await beforeLeaving();
    if (await send("POST", "/api/v1/session", { key: serial })) location.reload();
    else say(`There is no board with the serial or key ${serial}, and nobody has this badge. Nothing was answered.`);
  }
}

// A scanner types into the field that finds boards, too.
document.querySelector(".find")?.addEventListener("submit", (event) => {
  const text = document.getElementById("scan").value.trim();
  if (!text) return;
  event.preventDefault();
  once(event.target, () => scanned(text));
});

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input:not([type=radio]), select, textarea")) return;
  if (event.key.length === 1) {
    if (event.key === " " && !burst.length) return;  // it presses the button that has the focus
    event.preventDefault();
    if (event.repeat) return;
    burst.push({ key: event.key, atMs: event.timeStamp });
    wait(QUIET_MS);
  } else if ((event.key === "Enter" || event.key === "Tab") && burst.length) {
    event.preventDefault();
    ended(true);
  }
});
// Who presses a button after a key means the button.
document.addEventListener("pointerdown", drop, true);

onKey((key) => {
  const field = key === "/" && document.getElementById("scan");
  if (field) { field.select(); return true; }
  const link = document.querySelector(`nav a[data-key="${CSS.escape(key)}"]`);
  link?.click();
  return Boolean(link);
});
