// The overlay of a version over a picture that a person chooses; it is shown as it came, and can then be confirmed.
"use strict";

const place = document.getElementById("overlay"), says = document.getElementById("overlay-says");
const stage = document.getElementById("overlay-stage"), asks = document.getElementById("overlay-asks");
let proof = "", picture = "";

document.getElementById("board-picture").addEventListener("change", (event) => draw(event.target.files[0]));
// Who comes from the pages that teach a board brings its picture.
if (location.hash.startsWith("#/teach/") && place.dataset.confirmed !== "1") send("GET", location.hash.slice(1)).then(async (answer) => answer && draw(await answer.blob()));

async function draw(file) {
  stage.hidden = asks.hidden = true;
  if (!file) return;
  says.textContent = "Looking for the board in the picture …";
  const answer = await send("POST", `${place.dataset.path}/overlay?side=2400`, file);
  if (!answer) { says.textContent = "The overlay could not be drawn. Choose another picture."; return; }
  proof = answer.headers.get("X-Overlay-Proof") ?? "";
  picture = answer.headers.get("X-Picture-SHA256");
  const bitmap = await createImageBitmap(await answer.blob());
  const canvas = document.getElementById("overlay-picture");
  canvas.width = bitmap.width;
  canvas.height = bitmap.height;
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  stage.hidden = false;
  asks.hidden = !proof || place.dataset.confirmed === "1";
  says.textContent = proof ? "Look at every part." : "The board was not found in this picture, so you cannot confirm. The reason stands above the picture.";
}

document.getElementById("overlay-confirm").addEventListener("click", async () => {
  if (await send("POST", `${place.dataset.path}/confirmation`, { picture, proof, blind_to: place.dataset.blindTo.split(",").filter(Boolean) })) location.reload();
});
onKey((key) => {
  if (key !== "c" || asks.hidden) return false;
  document.getElementById("overlay-confirm").click();
  return true;
});
