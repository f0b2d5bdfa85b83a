// Looking closer at a call: its pictures are zoomed and moved together; more contrast; one of them alone, and large.
"use strict";

const root = document.getElementById("verify"), pictures = document.getElementById("pictures");
const MOST = 16, STEP = 1.5, CONTRASTS = [1, 1.6, 2.5, 4];
let zoom = 1, x = 0, y = 0, contrast = 0;  // x and y: where the picture begins, as a share of its size
const fingers = new Map();

function draw() {
  [x, y] = [x, y].map((at) => Math.min(0, Math.max(1 - zoom, at)));
  for (const [name, value] of Object.entries({ zoom, x, y, contrast: CONTRASTS[contrast] })) root.style.setProperty(`--${name}`, value);
  root.classList.toggle("zoomed", zoom > 1);
  document.getElementById("contrast").setAttribute("aria-pressed", String(contrast > 0));
}

// Zoom so that what lies at a place, a share of the frame, stays there.
function zoomAt(factor, across = 0.5, down = 0.5) {
  const to = Math.min(MOST, Math.max(1, zoom * factor));
  x = across - (across - x) * to / zoom;
  y = down - (down - y) * to / zoom;
  zoom = to;
  draw();
}

// Show what lies at a place, a share of the whole frame, in its middle.
function zoomTo(across, down, factor) {
  zoom = Math.min(MOST, Math.max(1, factor));
  [x, y] = [0.5 - across * zoom, 0.5 - down * zoom];
  draw();
}

function whole() { zoom = 1; x = y = 0; draw(); }

function placeIn(frame, { clientX, clientY }) {
  const box = frame.getBoundingClientRect();
  return [(clientX - box.left) / box.width, (clientY - box.top) / box.height];
}

for (const frame of root.querySelectorAll(".clip")) {
  frame.addEventListener("wheel", (event) => { event.preventDefault(); zoomAt(event.deltaY < 0 ? STEP : 1 / STEP, ...placeIn(frame, event)); }, { passive: false });
  frame.addEventListener("dblclick", (event) => { if (zoom > 1) whole(); else zoomAt(4, ...placeIn(frame, event)); });
  frame.addEventListener("pointerdown", (event) => { event.preventDefault(); frame.setPointerCapture(event.pointerId); fingers.set(event.pointerId, placeIn(frame, event)); });
  frame.addEventListener("pointermove", (event) => {
    const before = fingers.get(event.pointerId), now = placeIn(frame, event);
    if (!before) return;
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    fingers.set(event.pointerId, now);
    if (!other) { x += now[0] - before[0]; y += now[1] - before[1]; draw(); return; }
    const apart = ([across, down]) => Math.hypot(across - other[0], down - other[1]) || 1e-6;
    zoomAt(apart(now) / apart(before), (now[0] + other[0]) / 2, (now[1] + other[1]) / 2);
  });
  for (const kind of ["pointerup", "pointercancel"]) frame.addEventListener(kind, (event) => fingers.delete(event.pointerId));
}

// Side by side, then each picture of the call alone, and at the end the whole board if the part was cut out of one.
function nextView() {
  const wholeButton = document.getElementById("whole-button"), isWhole = pictures.hidden;
  if (isWhole) { wholeButton.click(); alone(null); return; }
  const shown = [...pictures.children].filter((figure) => !figure.hidden);
  const at = shown.findIndex((figure) => pictures.classList.contains("alone") && !figure.classList.contains("aside"));
  if (at + 1 < shown.length) alone(shown[at + 1]);
  else { alone(null); if (!wholeButton.hidden) wholeButton.click(); }
}

function alone(one) {
  pictures.classList.toggle("alone", Boolean(one));
  for (const figure of pictures.children) figure.classList.toggle("aside", Boolean(one) && figure !== one);
}

const ACTS = { closer: () => zoomAt(STEP), farther: () => zoomAt(1 / STEP), contrast: () => { contrast = (contrast + 1) % CONTRASTS.length; draw(); }, "next-view": nextView };
for (const [id, act] of Object.entries(ACTS)) document.getElementById(id).addEventListener("click", act);
// The next call begins with all of its pictures; the contrast stays.
document.getElementById("picture").addEventListener("load", () => { alone(null); whole(); });
draw();
