// What all pages share: sending, boxes over pictures, and the part of the line's page that changes.
"use strict";

const csrf = document.querySelector("meta[name=csrf]")?.content ?? "sign in";

function say(text) {
  const place = document.getElementById("say");
  place.textContent = text;
  place.hidden = !text;
  clearTimeout(say.timer);
  say.timer = setTimeout(() => { place.hidden = true; }, 6000);
}

const LONGEST_MS = { answer: 15_000, file: 600_000 };

// Send a request; return its answer if it is one, and else the problem.
async function ask(method, path, body, headers = {}, keepalive = false) {
  const kind = body instanceof Blob ? "file" : "answer", type = { file: "application/octet-stream", answer: "application/json" }[kind];
  let answer;
  try {
    answer = await fetch(path, {
      method, keepalive, signal: AbortSignal.timeout(LONGEST_MS[kind]), body: body === undefined || kind === "file" ? body : JSON.stringify(body),
      headers: { "X-CSRF-Token": csrf, ...(body === undefined ? {} : { "Content-Type": type }), ...headers },
    });
  } catch {
    return { problem: { status: 503, detail: "The service does not answer", way_out: "" } };
  }
  if (answer.ok) return { answer };
  if (answer.status === 401 && path !== "/api/v1/session") location.href = "/login?next=" + encodeURIComponent(location.pathname + location.search);
  return { problem: await answer.json().catch(() => ({ status: answer.status, detail: answer.statusText, way_out: "" })) };
}

// Send a request; after having said why there is no answer: null if it was refused, undefined if it may be sent again.
async function send(...request) {
  const { answer, problem } = await ask(...request);
  if (answer) return answer;
  say([problem.detail, problem.way_out].filter(Boolean).join("; "));
  return problem.status >= 500 ? undefined : null;
}

// What a person types stays in this tab until it is sent, because the session may end before that; it comes back where
// the field still holds what it was typed over. It goes when its person signs out, or another signs in.
const drafts = JSON.parse(sessionStorage.getItem("typed") ?? "{}"), person = document.querySelector(".person")?.textContent;
const saveTyped = () => sessionStorage.setItem("typed", JSON.stringify(drafts)), draftOf = (form) => location.pathname + form.id;
if (person) for (const about of Object.keys(drafts)) if (!about.startsWith(person)) { delete drafts[about]; saveTyped(); }
const valueOf = (field) => (field.type === "checkbox" ? field.checked : field.value);
function keepTyped(about, ...fields) {
  const texts = drafts[person + about] ?? {}, befores = fields.map(valueOf);
  for (const [index, field] of fields.entries()) {
    const { package: one = "", value = "" } = field.closest("tr")?.dataset ?? {}, name = [one, value, field.name || field.id].join("|");
    const [over, typed] = texts[name] ?? [];
    if (over === befores[index]) {
      if (field.options) for (const option of field.options) option.selected ||= option.value === typed && !option.parentElement.disabled;
      else if (field.type === "checkbox") field.checked = typed;
      else field.value = typed;
      field.dispatchEvent(new Event("change"));  // other fields may offer something else now
    }
    field.oninput = () => { texts[name] = [befores[index], valueOf(field)]; drafts[person + about] = texts; saveTyped(); };
  }
}
function forgetTyped(about) { delete drafts[person + about]; saveTyped(); }

// What a page still has to send before its person signs out.
let beforeLeaving = async () => {};

// Do what a button or a form asks for once, however often it is tapped meanwhile.
async function once(element, act) {
  if (element.ariaBusy) return;
  element.ariaBusy = "true";
  try { await act(); } finally { element.ariaBusy = null; }
}

// It ends with the page, so that what was pressed stays pressed until then.
const reload = () => new Promise(() => location.reload());

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-post], [data-act]");
  if (button) once(button.form ?? button, () => press(button));
});

// Ask before what cannot be undone. The browser's own question would take the Enter of a scan for a yes.
const sure = (question) => new Promise((then) => {
  const [box, text, no, yes] = ["dialog", "p", "button", "button"].map((name) => document.createElement(name));
  [text.textContent, no.textContent, yes.textContent] = [question, "Cancel", "Yes"];
  for (const button of [no, yes]) [button.type, button.className] = ["button", "big"];
  no.addEventListener("click", () => box.close());
  yes.addEventListener("click", () => box.close("yes"));
  box.addEventListener("close", () => { box.remove(); then(box.returnValue === "yes"); });
  box.append(text, no, yes);
  document.body.append(box);
  box.showModal();
});

async function press(button) {
  if (button.dataset.act === "sign-out") {
    await beforeLeaving();
    if (await send("DELETE", "/api/v1/session")) { sessionStorage.removeItem("typed"); location.href = "/login"; }
  } else if (button.dataset.act === "print") {
    print();
  } else if (!button.dataset.ask || await sure(button.dataset.ask)) {
    const { outcome, match } = button.dataset, word = outcome && { outcome, note: button.form.elements.note.value };
    if (await send("POST", button.dataset.post, word, match ? { "If-Match": `"${match}"` } : {})) { if (button.form) forgetTyped(draftOf(button.form)); sessionStorage.setItem("focus", button.dataset.post); await reload(); }
  }
}

// A scanner that ends with two Enters signs in once.
document.getElementById("sign-in")?.addEventListener("submit", (event) => {
  event.preventDefault();
  once(event.target, async () => {
    const answer = await send("POST", "/api/v1/session", { key: document.getElementById("key").value, name: document.getElementById("name").value });
    if (answer) await new Promise(() => { location.href = event.target.dataset.next; });
  });
});

// A form as the body of a request; `data-key` is the key of a field.
document.querySelectorAll("form[data-json]").forEach((form) => form.addEventListener("submit", (event) => {
  event.preventDefault();
  once(form, () => submit(form));
}));

async function submit(form) {
  const body = {};
  for (const field of form.querySelectorAll("[data-key]")) {
    if (field.value !== "") body[field.dataset.key] = field.type === "number" ? Number(field.value) : field.value;
  }
  if (await send("POST", form.dataset.json, body)) { forgetTyped(draftOf(form)); await reload(); }
}

// The next Tab goes on where the page was loaded again; the button itself does not keep the focus (`keys.js`).
const pressed = sessionStorage.getItem("focus"), used = pressed && document.querySelector(`[data-post="${CSS.escape(pressed)}"]`);
sessionStorage.removeItem("focus");
used?.focus({ preventScroll: true });
used?.blur();

document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
// On a small screen the results come first, and what narrows them is folded.
if (matchMedia("(min-width: 701px)").matches) document.querySelectorAll(".fold").forEach((fold) => { fold.open = true; fold.firstElementChild.hidden = true; });

// How a file reads is sent at once, and what is seen is what counts.
document.querySelectorAll("main form:not([action], #sign-in, #reading)").forEach((form) => keepTyped(draftOf(form), ...form.querySelectorAll("input, select")));

document.querySelectorAll(".filters input, .filters select").forEach((field) =>
  field.addEventListener("change", () => { if (field.dataset.go === undefined) field.form.submit(); else location.href = field.value; }));

// Lay a drawing over a picture, in its pixels; return what adds a shape to it.
function overlay(image) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", `0 0 ${image.naturalWidth} ${image.naturalHeight}`);
  svg.setAttribute("aria-hidden", "true");
  image.after(svg);
  return (name, attributes, text = "") => {
    const part = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
    part.textContent = text;
    svg.append(part);
  };
}

// Draw boxes, in pixels of what the experts saw, over a picture; `size` says how that lies in the picture.
function drawBoxes(image, boxes, size) {
  image.parentElement.querySelector("svg")?.remove();
  const { naturalWidth: width, naturalHeight: height } = image;
  const around = size?.around ?? 0, scale = size ? Math.sqrt(width * height / size.pixels) : 1;
  if (!width || !(boxes.length || around)) return;
  const add = overlay(image), inset = around * scale;
  const draw = (left, top, right, bottom, name) => add("rect", { x: left, y: top, width: right - left, height: bottom - top, class: name });
  if (inset) draw(inset, inset, width - inset, height - inset, "frame");
  for (const name of ["halo", "line"])
    for (const { xyxy } of boxes) draw(...xyxy.map((at) => (at + around) * scale), name);
}

document.querySelectorAll("img[data-boxes]").forEach((image) => {
  const draw = () => drawBoxes(image, JSON.parse(image.dataset.boxes), JSON.parse(image.dataset.size));
  if (image.complete) draw(); else image.addEventListener("load", draw);
});

// Outlines of parts, in pixels of the view, over the picture of a whole board; each has its name beside it.
function drawOutlines(image) {
  const { naturalWidth: width, naturalHeight: height } = image;
  const scale = Math.sqrt(width * height / Number(image.dataset.pixels)), size = Math.max(width, height) / 55;
  const add = overlay(image);
  for (const { refdes, look, polygon } of JSON.parse(image.dataset.outlines)) {
    const points = polygon.map(([x, y]) => [x * scale, y * scale]);
    for (const name of ["halo", look]) add("polygon", { points: points.join(" "), class: name });
    const top = points.reduce((one, other) => (other[1] < one[1] ? other : one));
    for (const name of ["halo", look]) add("text", { x: top[0], y: Math.max(size, top[1] - size / 3), "font-size": size, class: name }, refdes);
  }
}

document.querySelectorAll("img[data-outlines]").forEach((image) => {
  if (image.complete) drawOutlines(image); else image.addEventListener("load", () => drawOutlines(image));
});

// The server draws the part that changes; an event, or two seconds while a board is under way, ask for it again.
const live = document.getElementById("live");
if (live) {
  const kinds = ["board.accepted", "board.started", "board.endangered", "board.decided", "board.amended", "board.verified", "board.aborted", "board.repaired", "call.verified", "recipe.activated", "recipe.failed", "state.changed", "fault.raised", "fault.cleared"];
  let waiting = false, again = false, stop = new AbortController();
  const refresh = async () => {
    if (waiting || document.hidden) { again = true; return; }
    waiting = true;
    const answer = await send("GET", live.dataset.part);
    if (answer) { const html = await answer.text(); await lifted; redraw(html); } else outdated();
    setTimeout(() => { waiting = false; if (again) { again = false; refresh(); } }, 1000);
  };
  // What lies under a finger stays until the finger is gone, or its tap would lead nowhere.
  let lifted = Promise.resolve();
  live.addEventListener("pointerdown", () => { lifted = new Promise((then) => ["pointerup", "pointercancel"].forEach((kind) => addEventListener(kind, () => setTimeout(then, 50), { once: true }))); });
  // A screen on the wall must not show an old state as if it were new.
  const outdated = () => {
    if (live.querySelector("#outdated")) return;
    live.insertAdjacentHTML("afterbegin", `<p class="banner ng" id="outdated" role="alert"><b>No update since ${live.querySelector("#drawn").textContent}</b> <span>This page shows the state at that time.</span></p>`);
  };
  // What has the focus keeps it: its link or its button is found again in what is new.
  const redraw = (html) => {
    const focused = live.contains(document.activeElement) ? document.activeElement : null;
    const names = ["id", "href", "data-post"].filter((name) => focused?.hasAttribute(name));
    live.innerHTML = html;
    if (!focused || focused === live) return;
    const same = names.length && live.querySelector(names.map((name) => `[${name}="${CSS.escape(focused.getAttribute(name))}"]`).join(""));
    live.tabIndex = -1;
    (same || live).focus({ preventScroll: true });
  };
  // A browser opens six connections to a service: of all tabs that are seen, one has a stream, and tells the others.
  const others = new BroadcastChannel("events");
  others.addEventListener("message", refresh);
  const lead = (signal) => new Promise((end) => {
    const events = new EventSource("/api/v1/events");
    for (const kind of kinds) events.addEventListener(kind, () => { refresh(); others.postMessage(kind); });
    events.addEventListener("error", () => { if (events.readyState === EventSource.CLOSED) setTimeout(() => signal.aborted || listen(), 5000); });
    signal.addEventListener("abort", () => { events.close(); end(); });
  });
  const listen = () => {
    stop.abort();
    if (document.hidden) return;
    const { signal } = stop = new AbortController();
    // Browsers have locks where a page comes by TLS, or from this machine.
    if (navigator.locks) navigator.locks.request("events", { signal }, () => lead(signal)).catch(() => {}); else lead(signal);
  };
  listen();
  setInterval(() => { if (live.querySelector(".under-way")) refresh(); }, 2000);
  setInterval(refresh, 15000);
  document.addEventListener("visibilitychange", () => { listen(); refresh(); });
}
