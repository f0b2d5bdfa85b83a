// The pages that teach a board: each step sends what was said, and shows a refusal beside the field.
"use strict";

const teach = document.getElementById("teach"), at = teach?.dataset.path;

// Send, and put a refusal into the place for faults that is next to a field; null if it was refused.
async function tell(near, ...request) {
  const place = (near?.closest("section, form, .panel") ?? document).querySelector(".fault"), { answer, problem } = await ask(...request);
  const text = answer ? "" : `${problem.detail}. ${problem.way_out === "correct the request" ? "" : problem.way_out}`;
  if (place) {
    place.hidden = !text;
    place.textContent = text;
  } else if (text) say(text);
  if (answer && near?.matches("form")) forgetTyped(draftOf(near));
  return answer ?? null;
}
const leave = (step = "") => { location.href = step ? `${at}/${step}` : at; };

document.getElementById("teach-new")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await tell(event.target, "POST", "/teach", { name: document.getElementById("teach-name").value });
  if (answer) location.href = `/teach/${(await answer.json()).draft}/files`;
});

document.getElementById("teach-undo")?.addEventListener("click", async (event) => {
  if (await tell(null, "POST", `${at}/undo?step=${event.currentTarget.dataset.step}`)) location.reload();
});

// Files.
document.querySelectorAll("[data-upload]").forEach((field) => field.addEventListener("change", async () => {
  const faults = [];
  for (const file of field.files) {
    say(`Uploading ${file.name} …`);
    const kind = field.dataset.upload, name = new URLSearchParams({ name: file.name.slice(-200) });
    if (!await tell(field, "PUT", `${at}/files/${kind}?${name}`, file)) faults.push(`${file.name}: ${field.closest("section").querySelector(".fault").textContent}`);
  }
  say("");
  if (!faults.length) { location.reload(); return; }
  field.value = "";
  const place = field.closest("section").querySelector(".fault");
  place.textContent = faults.join(" ");
  place.hidden = false;
}));
document.querySelectorAll("[data-remove]").forEach((button) => button.addEventListener("click", async () => {
  if (await tell(button, "DELETE", `${at}/files/${button.dataset.remove}`)) location.reload();
}));

// How the placement file reads: a change is shown at once, and counts once a person says that it is right.
const reading = document.getElementById("reading");
async function read(isRight) {
  const said = Object.fromEntries(new FormData(reading));
  delete said.right;
  const bottom = said.side === "bottom" ? { bottom_x: said.bottom_x ?? "top", bottom_angle: said.bottom_angle ?? "top-180" } : {};
  if (await tell(reading, "POST", `${at}/reading`, { ...said, ...bottom, held: said.held === "on", read: isRight })) isRight ? leave("place") : location.reload();
}
reading?.addEventListener("change", () => read(false));
reading?.addEventListener("submit", (event) => { event.preventDefault(); read(true); });

// Packages.
document.getElementById("packages")?.addEventListener("submit", async (event) => {
  event.preventDefault();
  const rows = [...event.target.querySelectorAll("tr[data-package]")].map((row) => {
    const field = (name) => row.querySelector(`[name=${name}]`), isIn = field("inspected").checked;
    return { package: row.dataset.package, value: row.dataset.value, component: isIn ? field("component").value.trim() : null, size: isIn ? [Number(field("width").value), Number(field("height").value)] : [1, 1] };
  });
  if (await tell(event.target, "POST", `${at}/packages`, { rows })) leave("pictures");
});

// Good and bad.
const marks = document.getElementById("marks"), words = { 1: "good", 2: "bad", 0: "" };
async function mark(crops, word) {
  const asked = crops.filter((crop) => crop.dataset.mark !== word);
  if (!asked.length) return;
  const answer = await tell(marks, "POST", `${at}/marks`, { marks: Object.fromEntries(asked.map((crop) => [crop.dataset.photo, word])) });
  if (!answer) return;
  const { paths, step } = await answer.json();
  for (const crop of asked) {
    crop.dataset.photo = paths[crop.dataset.photo];
    crop.dataset.mark = word;
    crop.ariaLabel = `${crop.innerText}: ${word || "open"}`;
  }
  for (const [id, of] of [["good", "good"], ["bad", "bad"], ["open", ""]]) document.getElementById(`count-${id}`).textContent = marks.querySelectorAll(`.crop[data-mark="${of}"]`).length;
  const undo = document.getElementById("teach-undo");
  if (!undo) location.reload(); else [undo.dataset.step, undo.firstChild.textContent] = [step, `Undo: ${asked.length} marked `];
}
if (marks) {
  const crops = [...marks.querySelectorAll(".crop")];
  marks.addEventListener("click", (event) => {
    const crop = event.target.closest(".crop");
    if (crop) mark([crop], { "": "good", good: "bad", bad: "" }[crop.dataset.mark]);
  });
  document.getElementById("all-good").addEventListener("click", () => mark(crops.filter((crop) => !crop.dataset.mark), "good"));
  let current = -1;  // the crop that had the focus last: a click gives the focus away
  document.addEventListener("focusin", (event) => { current = crops.indexOf(event.target); });
  const move = (by) => crops[Math.min(crops.length - 1, Math.max(0, current + by))]?.focus();
  document.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? { ArrowDown: 1, ArrowUp: -1 }[event.key] * Math.max(1, crops.filter((crop) => crop.offsetTop === crops[0].offsetTop && crop.parentElement === crops[0].parentElement).length);
    if (by) { event.preventDefault(); move(by); }
  });
  onKey((key) => {
    const crop = crops[current];
    if (!(key in words) || !crop) return false;
    mark([crop], words[key]).then(() => move(1));
    return true;
  });
}
document.getElementById("cut-again")?.addEventListener("click", async (event) => {
  if (await tell(event.target, "POST", `${at}/crops`)) leave("pictures");
});
onKey((key) => {
  const undo = key === "u" && document.getElementById("teach-undo");
  undo && undo.click();
  return Boolean(undo);
});

// Learn, and hand over to the line.
document.getElementById("learn-now")?.addEventListener("click", async (event) => {
  if (await tell(event.target, "POST", `${at}/learn`, { keep_back: document.getElementById("keep-back").checked })) leave("threshold");
});
document.getElementById("stage")?.addEventListener("click", async (event) => {
  const { name, picture } = document.getElementById("activate").dataset;
  const content = await tell(event.target, "GET", `${at}/recipe`);
  const added = content && await tell(event.target, "POST", `/api/v1/recipes/${name}`, await content.json());
  if (added) location.href = `/recipes/${name}/${(await added.json()).version}#${at}/whole/${picture}`;
});

// What runs: asked for each second, until it has ended.
const work = document.getElementById("work");
if (work) {
  document.getElementById("work-stop").addEventListener("click", async () => { if (await tell(null, "DELETE", `${at}/work`)) location.reload(); });
  const begun = performance.now();
  const look = async () => {
    const answer = await send("GET", `${at}/work`);
    if (answer) {
      const { state, at: done, of, log, doing } = await answer.json();
      document.getElementById("work-bar").value = done + 0.5;
      document.getElementById("work-at").textContent = `command ${Math.min(done + 1, of)} of ${of}: ${doing}, ${Math.round((performance.now() - begun) / 1000)} s`;
      document.getElementById("work-log").textContent = log;
      if (state !== "running") { leave(work.dataset.then); return; }
    }
    setTimeout(look, 1000);
  };
  look();
}
