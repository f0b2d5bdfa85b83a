// One call after the other: claim, show, answer by one key. A claim that ends is given up, and the next call comes.
"use strict";

const claimS = Number(document.getElementById("verify").dataset.claimS);
const at = (id) => document.getElementById(id);
let call = null, tag = "", endsAt = 0, last = null, busy = false, away = false;

function show(next) {
  call = next;
  at("call").hidden = !next;
  at("queue-empty").hidden = Boolean(next);
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
  const boxes = next.findings.length ? next.findings[next.findings.length - 1].boxes : [];
  showWhole(false);
  at("whole-button").hidden = !next.picture?.in_view;
  at("reference-title").textContent = next.golden ? "Golden reference" : "A good one";
  at("difference-shown").hidden = !next.golden;
  at("pictures").classList.toggle("three", next.golden);
  picture("picture", boxes, next.picture);
  picture("reference", [], next.picture);
  if (next.golden) picture("difference", boxes, next.picture);
  endsAt = performance.now() + claimS * 1000;
}

function picture(name, boxes, size) {
  const image = at(name);
  image.hidden = false;
  at(`no-${name}`).hidden = true;
  image.parentElement.querySelector("svg")?.remove();
  image.onload = () => drawBoxes(image, boxes, size);
  image.onerror = () => { image.hidden = true; at(`no-${name}`).hidden = false; };
  image.src = `/api/v1/calls/${call.call}/${name}`;
}

// The whole view is large, so it is fetched when somebody asks for it.
function showWhole(is) {
  at("whole").hidden = !is;
  at("pictures").hidden = is;
  at("whole-button").setAttribute("aria-pressed", String(is));
  if (is) picture("view", [], null);
}

async function take(path) {
  const answer = await send("POST", path);
  if (!answer) return;
  tag = answer.headers.get("ETag") ?? "";
  show(answer.status === 204 ? null : await answer.json());
  at("left").textContent = answer.headers.get("X-Open-Calls");
}

const next = (after = 0) => take(`/api/v1/calls/next?after=${after}`);

async function answer(outcome) {
  if (!call || busy) return;
  busy = true;
  const done = call;
  const word = { outcome, label: at("new-label").value, note: at("note").value };
  const sent = await send("POST", `/api/v1/calls/${done.call}/verification`, word, { "If-Match": tag });
  if (sent) {
    last = { ...done, tag: sent.headers.get("ETag") };
    at("last").hidden = false;
    at("last-refdes").textContent = done.refdes;
    at("last-outcome").textContent = outcome;
  }
  await next();
  busy = false;
}

// Show the answered call again; its next answer supersedes the first one.
async function again() {
  if (!last || busy) return;
  busy = true;
  if (call) await send("DELETE", `/api/v1/calls/${call.call}/claim`);
  show(last);
  tag = last.tag;
  last = null;
  at("last").hidden = true;
  busy = false;
}

async function later() {
  if (!call || busy) return;
  busy = true;
  if (call.open) await send("DELETE", `/api/v1/calls/${call.call}/claim`);
  await next(call.call);
  busy = false;
}

document.querySelectorAll("[data-outcome]").forEach((button) => button.addEventListener("click", () => answer(button.dataset.outcome)));
at("later").addEventListener("click", later);
at("whole-button").addEventListener("click", () => showWhole(at("whole").hidden));
at("undo").addEventListener("click", again);
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.matches("input")) { if (event.key === "Escape" || event.key === "Enter") event.target.blur(); return; }
  const button = document.querySelector(`[data-press="${CSS.escape(event.key.toLowerCase())}"]`);
  if (button && !button.hidden && !event.repeat) { event.preventDefault(); button.click(); }
  else if (event.key === "Escape") showWhole(false);
  else if (event.key === "Backspace") { event.preventDefault(); again(); }
  else if (event.key.toLowerCase() === "n") { event.preventDefault(); at("new-label").closest("details").open = true; at("new-label").focus(); }
});
// Nobody is here once a claim has ended, so nothing is claimed until somebody does something.
for (const kind of ["keydown", "pointerdown"]) document.addEventListener(kind, () => { if (away && !busy) { away = false; next(); } });
setInterval(async () => {
  if (!call) {
    if (busy || away || document.hidden) return;
    const open = await send("GET", "/api/v1/calls?limit=1");
    if (open && (await open.json()).calls.length && !call && !busy) next();
    return;
  }
  const leftS = (endsAt - performance.now()) / 1000;
  at("time").value = Math.max(0, leftS);
  if (leftS < 0 && !busy) { away = true; say("The time for this call is over. Press any key for the next one."); show(null); }
}, 2000);
next();
