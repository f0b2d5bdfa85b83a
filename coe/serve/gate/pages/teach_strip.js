// The scores of an expert's pictures as a strip, with a threshold to drag; the service has counted what each lets pass.
"use strict";

const thresholds = document.getElementById("thresholds"), SVG = "http://www.w3.org/2000/svg";
for (const one of thresholds ? JSON.parse(thresholds.dataset.scores).experts : []) {
  const place = [...thresholds.querySelectorAll(".strip-of")].find((section) => section.dataset.expert === one.expert);
  const svg = place.querySelector(".strip svg"), look = place.querySelector(".strip-look"), take = place.querySelector("[data-take]");
  if (!svg) continue;
  const add = (name, attributes, text = "") => {
    const part = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) part.setAttribute(key, value);
    part.textContent = text;
    svg.append(part);
    return part;
  };
  const across = (score) => 20 + 960 * score, near = (threshold) => one.points.reduce((a, b) => (Math.abs(b.threshold - threshold) < Math.abs(a.threshold - threshold) ? b : a));
  const beyond = one.called_above ? 1 : 0;
  let threshold = one.threshold;

  const called = add("rect", { y: 6, height: 116, class: "called" }), said = add("text", { y: 22, class: "said" }, "called");
  add("path", { d: "M20 122H980", class: "axis" });
  for (const tick of [0, .25, .5, .75, 1]) add("text", { x: across(tick), y: 142, class: "tick", "text-anchor": "middle" }, tick);
  // Dots of one score stand on each other: good ones from below, bad ones from above.
  const heights = {};
  for (const { photo, good, score, learned } of [...one.pictures].sort((a, b) => a.learned - b.learned)) {
    const x = across(score ?? beyond), column = `${Math.round(x / 9)} ${good}`, height = heights[column] = (heights[column] ?? -1) + 1;
    const y = good ? 113 - 9 * (height % 8) : 34 + 9 * (height % 4);
    const dot = good ? add("circle", { cx: x, cy: y, r: 4 }) : add("path", { d: `M${x - 4} ${y - 4}l8 8m0 -8l-8 8` });
    dot.setAttribute("class", `dot ${good ? "good" : "bad"}${learned ? " learned" : ""}`);
    dot.append(document.createElementNS(SVG, "title"));
    dot.addEventListener("pointerenter", () => {
      look.hidden = false;
      look.querySelector("img").src = `${at}/photo/${photo.split("/").map(encodeURIComponent).join("/")}`;
      look.querySelector("span").textContent = `${photo} ${score === null ? "" : score.toFixed(3)}${learned ? ", training picture" : ""}`;
    });
  }
  const line = add("path", { class: "line" }), grip = add("circle", { r: 10, cy: 122, class: "grip" });

  function rate(counted, name) {
    if (!counted) return "unknown: there is no such picture";
    return `${counted.events} of ${counted.trials}, ${one.knows_all[name] ? "all training pictures" : `at most ${(100 * counted.at_most).toFixed(1)} %`}`;
  }
  function draw() {
    const x = across(threshold), point = threshold === one.threshold ? one.now : near(threshold);
    line.setAttribute("d", `M${x} 6V122`);
    grip.setAttribute("cx", x);
    called.setAttribute("x", one.called_above ? x : 20);
    called.setAttribute("width", Math.max(0, one.called_above ? 980 - x : x - 20));
    said.setAttribute("x", one.called_above ? Math.min(x + 8, 920) : Math.max(x - 8, 70));
    said.setAttribute("text-anchor", one.called_above ? "start" : "end");
    svg.ariaValueNow = threshold.toFixed(3);
    for (const shows of place.querySelectorAll("[data-shows]")) shows.textContent = shows.dataset.shows === "threshold" ? threshold.toFixed(3) : rate(point[shows.dataset.shows], shows.dataset.shows);
    take.hidden = threshold === one.threshold;
  }
  // The line lies between two scores: elsewhere it would say the same.
  const move = (event) => {
    const box = svg.getBoundingClientRect();
    threshold = near(((event.clientX - box.left) * 1000 / box.width - 20) / 960).threshold;
    draw();
  };
  let drags = false;
  svg.addEventListener("pointerdown", (event) => { event.preventDefault(); svg.focus(); svg.setPointerCapture(event.pointerId); drags = true; move(event); });
  svg.addEventListener("pointermove", (event) => { if (drags) move(event); });
  svg.addEventListener("pointerup", () => { drags = false; });
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    threshold = one.points[Math.min(one.points.length - 1, Math.max(0, one.points.indexOf(near(threshold)) + by))].threshold;
    draw();
  });
  take.addEventListener("click", async () => { if (await tell(take, "POST", `${at}/threshold`, { expert: one.expert, threshold })) leave("threshold"); });
  draw();
}
document.getElementById("bounded")?.addEventListener("click", async (event) => {
  if (await tell(event.target, "POST", `${at}/bounded`)) leave("activate");
});
