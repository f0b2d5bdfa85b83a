// The overlay over a picture of a board: it is dragged, or points are clicked; the service says which map goes through.
"use strict";

const map = document.getElementById("map"), NS = "http://www.w3.org/2000/svg";
if (map) {
  const pic = document.getElementById("map-pic"), says = document.getElementById("map-says"), chips = document.getElementById("map-points");
  const take = document.getElementById("map-take"), reset = document.getElementById("map-reset"), asks = document.getElementById("map-asks");
  let shown = null, matrix = null, points = {}, armed = "", drag = null, asking = false, again = false, said = "";

  const px = ([x, y], m = matrix) => {
    const [u, v, w] = m.map(([a, b, c]) => a * x + b * y + c);
    return [u / w, v / w];
  };
  const make = (name, attributes, text = "") => {
    const part = document.createElementNS(NS, name);
    for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
    part.textContent = text;
    return part;
  };

  function draw() {
    const svg = pic.querySelector("svg");
    svg.replaceChildren();
    const [width, height] = shown.size, unit = Math.max(width, height) / 100;
    for (const { refdes, corners, pin } of shown.parts) {
      const at = corners.map((corner) => px(corner)), outside = at.some(([x, y]) => x < 0 || y < 0 || x > width || y > height);
      svg.append(make("polygon", { points: at.join(" "), class: "halo" }), make("polygon", { points: at.join(" "), class: outside ? "outside" : "crop" }));
      svg.append(make("circle", { cx: at[pin][0], cy: at[pin][1], r: unit * .35, class: "pin" }));
      const [x, y] = [Math.min(...at.map((one) => one[0])), Math.min(...at.map((one) => one[1]))];
      for (const look of ["halo", "name"]) svg.append(make("text", { x, y: y - unit * .3, "font-size": unit * 1.25, class: look }, refdes));
    }
    if (!Object.keys(points).length) for (const { at, diameter } of shown.marks) svg.append(make("circle", { cx: at[0], cy: at[1], r: diameter * .7, class: "ring" }));
    for (const [name, at] of Object.entries(points)) {
      svg.append(make("circle", { cx: at[0], cy: at[1], r: unit * 1.4, class: "handle", "data-point": name }));
      svg.append(make("path", { d: `M${at[0] - unit} ${at[1]}h${2 * unit}M${at[0]} ${at[1] - unit}v${2 * unit}`, class: "cross" }));
      for (const look of ["halo", "name"]) svg.append(make("text", { x: at[0] + 1.6 * unit, y: at[1], "font-size": unit * 1.6, class: look }, name));
    }
    says.textContent = Object.keys(points).length > 1 ? "As you placed it" : said;
    take.hidden = Object.keys(points).length < 2;
    reset.hidden = !Object.keys(points).length;
    asks.hidden = !reset.hidden;
    for (const chip of chips.children) {
      chip.ariaPressed = String(chip.dataset.point === armed);
      chip.classList.toggle("set", chip.dataset.point in points);
    }
  }

  // The map through the points as they are now; while one answer is awaited, only the newest wish is kept.
  async function ask() {
    if (Object.keys(points).length < 2) { draw(); return; }
    if (asking) { again = true; return; }
    asking = true;
    const answer = await tell(map, "POST", `${at}/map`, { points });
    if (answer) matrix = (await answer.json()).matrix;
    asking = false;
    draw();
    if (again) { again = false; ask(); }
  }

  const where = (event) => {
    const box = pic.querySelector("img").getBoundingClientRect();
    return [(event.clientX - box.left) * shown.size[0] / box.width, (event.clientY - box.top) * shown.size[1] / box.height];
  };
  const next = () => shown.points.map(({ name }) => name).find((name) => !(name in points)) ?? "";

  pic.addEventListener("pointerdown", (event) => {
    if (!shown || event.button) return;
    event.preventDefault();
    const name = event.target.dataset.point;
    if (armed && !name) {
      points[armed] = where(event);
      armed = Object.keys(points).length < 2 ? next() : "";
      ask();
      return;
    }
    pic.setPointerCapture(event.pointerId);
    drag = { name, from: where(event) };
  });
  pic.addEventListener("pointermove", (event) => {
    if (!drag) return;
    const to = where(event), by = [to[0] - drag.from[0], to[1] - drag.from[1]];
    if (!drag.name && !drag.moves && Math.hypot(...by) < 4) return;
    drag.moves = true;
    // The whole overlay goes with the pointer; two points hold it then, as far from each other as there are.
    if (!drag.name && Object.keys(points).length < 2) {
      const far = shown.points.flatMap((one, index) => shown.points.slice(index + 1).map((other) => [one, other])).sort(([a, b], [c, d]) => Math.hypot(c.at[0] - d.at[0], c.at[1] - d.at[1]) - Math.hypot(a.at[0] - b.at[0], a.at[1] - b.at[1]))[0];
      points = Object.fromEntries(far.map(({ name, at: mm }) => [name, px(mm)]));
    }
    for (const name of drag.name ? [drag.name] : Object.keys(points)) points[name] = [points[name][0] + by[0], points[name][1] + by[1]];
    if (!drag.name) matrix = matrix.map((row, index) => (index < 2 ? row.map((value, place) => value + by[index] * matrix[2][place]) : row));
    drag.from = to;
    draw();
    if (drag.name) ask();
  });
  pic.addEventListener("pointerup", () => { if (drag?.moves) ask(); drag = null; });

  async function show(name) {
    says.textContent = "Looking for the board in the picture …";
    const answer = await tell(map, "GET", `${at}/map/${encodeURIComponent(name)}`);
    if (!answer) { says.textContent = "The overlay cannot be drawn."; return; }
    shown = await answer.json();
    matrix = shown.matrix;
    points = {};
    armed = "";
    const image = Object.assign(new Image(), { src: `${at}/picture/${encodeURIComponent(name)}`, alt: `the board ${name} with the outline of each part`, draggable: false });
    await image.decode().catch(() => {});
    pic.replaceChildren(image, make("svg", { viewBox: `0 0 ${shown.size[0]} ${shown.size[1]}`, "aria-hidden": "true" }));
    chips.replaceChildren(...shown.points.map(({ name: point }) => Object.assign(document.createElement("button"), { type: "button", className: "point", textContent: point })));
    for (const chip of chips.children) {
      chip.dataset.point = chip.textContent;
      chip.addEventListener("click", () => { armed = armed === chip.dataset.point ? "" : chip.dataset.point; draw(); });
    }
    const scale = `${shown.um_per_pixel.toFixed(2)} µm a pixel, rotated by ${(Math.round(shown.turn_deg * 10) / 10 || 0).toFixed(1)}°`;
    said = shown.by_hand ? `As you placed it: ${scale}${shown.why ? `. The marks are not seen in the picture (${shown.why}), so the line cannot find other boards by them: name other marks, or state that a fixture holds each board` : ""}` : !shown.registered ? `Not found in ${name}: ${shown.why}` : shown.held ? `The board lies as the fixture holds it: ${scale}` : `Found: ${scale}, marks fit within ${shown.residual_um.toFixed(0)} µm`;
    map.classList.toggle("lost-board", !shown.registered);
    document.getElementById("map-fits").disabled = !shown.registered;
    draw();
  }

  document.querySelectorAll("[name=map-picture]").forEach((field) => field.addEventListener("change", () => show(field.value)));
  reset.addEventListener("click", () => { points = {}; armed = ""; matrix = shown.matrix; draw(); });
  take.addEventListener("click", async () => { if (await tell(map, "POST", `${at}/place`, { points, picture: shown.picture })) leave("place"); });
  document.getElementById("map-search").addEventListener("click", async () => { if (await tell(map, "POST", `${at}/place`, {})) leave("place"); });
  document.getElementById("map-fits").addEventListener("click", async () => { if (await tell(map, "POST", `${at}/fits`)) leave("packages"); });
  show(document.querySelector("[name=map-picture]").value);
}
