// One call after the other: claim, show, answer. An answer is held for some seconds before it is sent, and can be taken
// back until then. A claim that ends is given up, and the next call comes. A call that somebody chose on the page of its
// board is answered at once, and then that page comes back.
"use strict";

const at = (id) => document.getElementById(id), more = document.querySelector("details.more");
const claimS = Number(at("verify").dataset.claimS), chosen = Number(at("verify").dataset.call);
const holdS = chosen ? 0 : Number(at("verify").dataset.holdS);
const LOOK_MS = 300;  // what comes sooner after a call is shown was meant for the one before it, as a second tap
const NEIGHBOURS = 4;  // so many times as wide as a part is what is seen around it
const RETRY_S = 2, SAID = { "false call": "Good", confirmed: "Defect", accepted: "Accept" };
let call = null, tag = "", endsAt = 0, last = null, busy = false, away = false;
const NOT_DRAWN = "The pictures are not drawn yet: only Defect and Later are possible.", SAY_AFTER_MS = 1000;
let looked = [1, 0, 0];  // how closely the part is looked at while the view is shown
let unseen = "";  // why this call can only be a defect, or be left for later
let shownMs = Infinity, drawnMs = Infinity;  // since when the call is shown, and since when with its pictures
let leads = Boolean(chosen) || !navigator.locks;  // two tabs of one person would show the same call
const held = [];  // answers that are not sent yet, the oldest first

// Show a call; without one, say that nothing is open, or why none is shown.
function show(next, why = "") {
  call = next;
  at("call").hidden = !next;
  at("queue-empty").hidden = Boolean(next || why);
  at("paused").hidden = Boolean(next) || !why;
  at("paused").textContent = why;
  shownMs = next ? performance.now() : Infinity;
  drawnMs = Infinity;
  if (!next) return;
  const word = next.verdict.toLowerCase();
  at("refdes").textContent = next.refdes;
  at("component").textContent = next.component;
  at("verdict").className = `mark ${word}`;
  at("verdict-glyph").setAttribute("href", `#g-${word}`);
  at("verdict-word").textContent = { ok: "OK", ng: "NG", review: "Review" }[word];
  at("label").textContent = next.label || (next.reason === "expert" ? "" : next.reason);
  at("score").textContent = next.score === null ? "" : next.score.toFixed(2);
  at("about").textContent = next.detail;
  at("serial").textContent = next.serial;
  at("picture").alt = `${next.refdes} on this board`;
  at("view").alt = `the whole board with the outline of ${next.refdes}`;
  at("new-label").value = at("note").value = "";
  keepTyped(next.call, at("new-label"), at("note"));
  if (at("new-label").value || at("note").value) more.open = true;
  const boxes = next.findings.length ? next.findings[next.findings.length - 1].boxes : [];
  showWhole(false);
  at("whole-button").hidden = !next.picture?.in_view;
  at("reference-title").textContent = next.golden ? "Golden reference" : "A good part";
  at("difference-shown").hidden = !next.golden;
  at("pictures").classList.toggle("three", next.golden);
  const both = [picture("picture", boxes, next.picture), reference(next)];
  if (next.golden) picture("difference", boxes, next.picture);
  allow(next, both);
  endsAt = next.open ? performance.now() + claimS * 1000 : Infinity;  // nobody waits for a call that is answered
  at("time").hidden = !next.open;
}

// Nobody can call a part good that was not seen: those answers wait until part and reference are drawn. That takes a
// moment with each call, so it is said where it lasts.
async function allow(shown, both) {
  lack(NOT_DRAWN);
  setTimeout(() => { if (call === shown && unseen) tellUnseen(); }, SAY_AFTER_MS);
  const [part, good] = await Promise.all([...both, new Promise((then) => setTimeout(then, LOOK_MS))]);
  if (call !== shown) return;
  if (part && good) drawnMs = performance.now();
  lack(!part ? "The part could not be shown: only Defect and Later are possible." : good ? "" : "The reference could not be shown: only Defect and Later are possible.");
  tellUnseen();
}

function lack(text) {
  unseen = text;
  document.querySelectorAll("[data-needs-eyes]").forEach((button) => button.setAttribute("aria-disabled", String(Boolean(text))));
  if (text === NOT_DRAWN) at("unseen").hidden = true;
}

function tellUnseen() { at("unseen").textContent = unseen; at("unseen").hidden = !unseen; }

// Show a picture; whether it was decoded and painted while its call is shown.
async function picture(name, boxes, size) {
  const image = at(name), shown = call;
  image.hidden = false;
  at(`no-${name}`).hidden = true;
  image.parentElement.querySelector("svg")?.remove();
  image.src = `/api/v1/calls/${call.call}/${name}`;
  try {
    await Promise.race([image.decode(), new Promise((_, late) => setTimeout(late, LONGEST_MS.answer))]);
  } catch {
    if (call === shown) { image.hidden = true; at(`no-${name}`).hidden = false; }
    return false;
  }
  if (call !== shown) return false;
  drawBoxes(image, boxes, size);
  // A frame is painted between two of these; none comes while nobody can see this tab.
  do { await frame(); await frame(); } while (call === shown && image.offsetParent === null);
  return call === shown;
}

const frame = () => new Promise((then) => requestAnimationFrame(then));

// A part of which no good one was ever seen has no reference, and needs none.
async function reference(shown) {
  at("no-reference").textContent = shown.reference ? "The reference could not be shown." : "The station has no good part of this type yet.";
  if (shown.reference) return picture("reference", [], shown.picture);
  [at("reference").hidden, at("no-reference").hidden] = [true, false];
  return true;
}

// The whole view is large, so it is fetched when somebody asks for it.
function showWhole(is) {
  if (is === at("whole").hidden) looked = is ? [zoom, x, y] : [zoom, x, y] = looked;
  if (is) whole(); else draw();
  at("whole").hidden = !is;
  at("pictures").hidden = is;
  at("whole-button").setAttribute("aria-pressed", String(is));
  if (is) picture("view", [], null).then((isThere) => isThere && among(call.picture));
}

// Zoom the view to the part in question with its neighbours. Pixels and shape of the view tell its size.
function among({ view_pixels: pixels, middle, pixels: own }) {
  const image = at("view"), frame = image.closest(".clip").getBoundingClientRect(), box = image.getBoundingClientRect();
  const width = Math.sqrt(pixels * image.naturalWidth / image.naturalHeight), scale = box.width / width;
  zoomTo((box.left - frame.left + middle[0] * scale) / frame.width, (box.top - frame.top + middle[1] * scale) / frame.height, width / (NEIGHBOURS * Math.sqrt(own)));
}

// Do one thing at a time: what is pressed meanwhile is dropped, and what lasts is seen.
async function inTurn(act) {
  if (busy) return;
  busy = true;
  at("call").setAttribute("aria-busy", "true");
  try { await act(); } finally { busy = false; at("call").removeAttribute("aria-busy"); }
}

async function free() { while (busy) await new Promise((then) => setTimeout(then, 20)); }

async function next(after = 0) {
  if (chosen) { await choose(); return; }
  if (!leads) { show(null, "Calls are verified in another tab of this browser."); return; }
  const answer = await send("POST", `/api/v1/calls/next?after=${after}&without=${held.map((item) => item.call.call)}`);
  if (!answer) { show(null, "The next call could not be loaded. The page tries again."); return; }
  tag = answer.headers.get("ETag") ?? "";
  show(answer.status === 204 ? null : await answer.json());
  const left = Number(answer.headers.get("X-Open-Calls")) - held.length;
  at("left").textContent = `${left} open ${left === 1 ? "call" : "calls"}`;
  at("elsewhere").textContent = left ? `${left === 1 ? "The open call is" : `All ${left} open calls are`} reserved by other people.` : "";
  document.querySelector("nav [aria-current] .count")?.replaceChildren(left || "");
}

async function choose() {
  const path = `/api/v1/calls/${chosen}`;
  const seen = await send("GET", path), found = await seen?.json();
  const answer = found?.open ? await send("POST", `${path}/claim`) : seen;
  if (!answer) { show(null, "This call cannot be answered now. The page tries again."); return; }
  tag = answer.headers.get("ETag");
  show(found);
  at("left").parentElement.hidden = true;
  const before = found.verifications.at(-1);
  at("before").hidden = !before;
  if (!before) return;
  at("before-said").textContent = `${SAID[before.outcome]}${before.label ? ` (${before.label})` : ""}`;
  at("before-by").textContent = before.by;
  more.open = true;
}

// `atMs` is when the person pressed the key or the button: what came later was not seen.
async function answer(outcome, atMs) {
  if (!call || isEarly(atMs) || held.some((item) => item.call === call)) return;
  const isDrawn = atMs >= drawnMs;
  if (outcome !== "confirmed" && !isDrawn) { say(unseen || NOT_DRAWN); return; }
  if (outcome !== "confirmed" && !isInSight()) { say("Look at the part, then answer."); return; }
  const word = { outcome, label: at("new-label").value, note: at("note").value, drawn: isDrawn };
  if (chosen && !call.open && !word.note.trim()) { say("Write in the note why you correct the answer."); at("note").focus(); return; }
  await inTurn(async () => {
    const item = { call, tag, word, untilMs: performance.now() + holdS * 1000, isSending: false };
    if (call.open && endsAt - performance.now() < (holdS + 15) * 1000) await send("POST", `/api/v1/calls/${call.call}/claim`);
    hold(item);
    if (holdS === 0) await commit(item);
    if (!chosen) await next();
  });
}

// Whether the picture in use is on the screen; else it comes there.
function isInSight() {
  const frame = [...document.querySelectorAll("#verify .clip")].find((one) => one.checkVisibility());
  const { left, top, width, height } = frame.getBoundingClientRect();
  if (frame.contains(document.elementFromPoint(left + width / 2, top + height / 2))) return true;
  frame.scrollIntoView({ block: "center" });
  return false;
}

const isEarly = (atMs) => atMs < shownMs + LOOK_MS;

function hold(item) {
  const row = document.createElement("li"), button = document.createElement("button"), refdes = document.createElement("span"), said = document.createElement("b");
  item.row = row;
  item.left = document.createElement("small");
  button.type = "button";
  button.className = "plain";
  refdes.className = "code";
  refdes.textContent = item.call.refdes;
  said.textContent = SAID[item.word.outcome];
  button.append("Undo ", refdes);
  button.addEventListener("click", () => takeBack(item));  // it lies elsewhere than the answers: no tap is meant for another call
  row.append(button, " ", said, " ", item.left);
  held.push(item);
  at("held").prepend(row);
  count();
}

function release(item) {
  held.splice(held.indexOf(item), 1);
  item.row.remove();
  count();
}

// Say how long each held answer can still be taken back, and that Backspace takes back the newest.
function count() {
  at("held-box").hidden = !held.length;
  for (const item of held) item.left.textContent = item.isSending ? "sending" : `${Math.max(0, Math.ceil((item.untilMs - performance.now()) / 1000))} s`;
}

// Send a held answer: the one word on its call. A service that does not answer gets it again.
async function commit(item) {
  const path = `/api/v1/calls/${item.call.call}`;
  item.isSending = true;
  let sent = await send("POST", `${path}/verification`, item.word, { "If-Match": item.tag }, true);
  // An answer of which nobody said that it came may be there.
  if (sent === null && item.isAgain) {
    const seen = await send("GET", path), word = (await seen?.clone().json())?.verifications.at(-1);
    if (word?.outcome === item.word.outcome && word.note === item.word.note) { sent = seen; say(""); }
  }
  item.isSending = false;
  item.isAgain = sent === undefined;
  if (item.isAgain) { item.untilMs = performance.now() + RETRY_S * 1000; return; }
  if (sent) forgetTyped(item.call.call);
  release(item);
  if (chosen) { if (sent) leave(item.call); else await next(); return; }
  if (!sent) return;
  last = { ...item.call, open: false, tag: sent.headers.get("ETag") };
  at("last").hidden = false;
  at("last-refdes").textContent = last.refdes;
  at("last-outcome").textContent = SAID[item.word.outcome];
}

function leave(from) { location.href = `/boards/${from.board}`; }

const sendHeld = () => Promise.all(held.filter((item) => !item.isSending).map(commit));

const giveBack = () => call?.open && send("DELETE", `/api/v1/calls/${call.call}/claim`);

// An answer can be taken back from the first moment, also while the next call comes.
async function takeBack(item) {
  await free();
  await inTurn(() => giveAgain(item));
}

async function giveAgain(item) {
  if (item.isSending || !held.includes(item)) return;
  release(item);
  await giveBack();
  if (!item.call.open || (await send("POST", `/api/v1/calls/${item.call.call}/claim`))) { show(item.call); tag = item.tag; }
  else await next();
}

// Take the newest answer back. If it was sent, its call is shown again, and its next answer supersedes the first one.
async function again() {
  await free();
  const newest = held.findLast((item) => !item.isSending);
  if (newest) { await takeBack(newest); return; }
  if (!last || held.length) return;
  await inTurn(async () => {
    await giveBack();
    show(last);
    tag = last.tag;
    last = null;
    at("last").hidden = true;
  });
}

const later = () => inTurn(async () => {
  if (!call) return;
  await giveBack();
  if (chosen) leave(call); else await next(call.call);
});

// A second tap lies where the first one was, and what is there now is of another call.
function onPress(button, act) { button.addEventListener("click", (event) => { if (!call || !isEarly(event.timeStamp)) act(event.timeStamp); }); }

document.querySelectorAll("[data-outcome]").forEach((button) => onPress(button, (atMs) => answer(button.dataset.outcome, atMs)));
onPress(at("later"), later);
at("undo").addEventListener("click", again);
at("whole-button").addEventListener("click", () => showWhole(at("whole").hidden));
onKey((key, atMs) => {
  const button = document.querySelector(`[data-press="${CSS.escape(key)}"]`);
  if (key === "n") { more.open = true; at("new-label").focus(); }
  else if (key === "Escape") showWhole(false);
  else if (key === "Backspace") again();
  else if (!button || button.hidden) return false;
  else if (button.dataset.outcome) answer(button.dataset.outcome, atMs);
  else button.click();
  return true;
});
document.addEventListener("keydown", (event) => {
  if (event.target.matches("input") && (event.key === "Escape" || event.key === "Enter")) event.target.blur();
});
// Nobody is here once a claim has ended, so nothing is claimed until somebody does something.
for (const kind of ["keydown", "pointerdown"]) document.addEventListener(kind, () => { if (away) { away = false; inTurn(next); } });
// Nobody sees the time run out in a tab that is left or hidden, so its answers are sent.
beforeLeaving = sendHeld;
addEventListener("pagehide", sendHeld);
document.addEventListener("visibilitychange", () => { if (document.hidden) sendHeld(); });
setInterval(() => {
  for (const item of held.filter((one) => !one.isSending && one.untilMs <= performance.now())) commit(item);
  count();
}, 250);
setInterval(async () => {
  if (!call) {
    if (busy || away || document.hidden) return;
    const open = !chosen && (await send("GET", "/api/v1/calls?limit=1"));
    if (chosen || (open && (await open.json()).calls.length && !call)) inTurn(next);
    return;
  }
  const leftS = (endsAt - performance.now()) / 1000;
  at("time").value = Math.min(claimS, Math.max(0, leftS));
  if (leftS < 0 && !busy) { away = true; show(null, "You did not answer this call in time. Press a key, or touch the page, for the next call."); }
}, 2000);
// The tab that was first keeps this lock until it is closed; then the next one goes on.
if (leads) inTurn(next);
else navigator.locks.request("verify", () => { leads = true; inTurn(next); return new Promise(() => {}); });
