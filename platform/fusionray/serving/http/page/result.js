// The picture that came out: compared with the one before, its faces, its provenance, its time.

import { Refused } from "./api.js";

const STAGES = {
  decode: "Open files", detect: "Find faces", read: "Read faces", queue: "Wait", fuse: "Fuse", paste: "Put back",
  run: "Paint", encode: "Write file", total: "Total",
};

const find = (id) => document.getElementById(id);

/** Show a picture from memory (or none) in `image`, which owns the URL; the one before is let go. */
export function setImage(image, blob) {
  if (image.src) URL.revokeObjectURL(image.src);
  if (blob) image.src = URL.createObjectURL(blob);
  else image.removeAttribute("src");
}

/** Show what came out of `target` and what the answer's headers tell; returns in words what was made. */
export async function showResult(blob, headers, target, milliseconds, name) {
  const [before, after] = [find("before"), find("after")];
  setImage(before, target);
  setImage(after, blob);
  const readable = await after.decode().then(() => true, () => false);
  find("empty").hidden = readable;
  find("outcome").hidden = !readable;
  if (!readable) throw new Refused({ title: "The answer is not a picture", detail: "This browser cannot read it." });
  // A browser may not know the format of the target; then the result stands alone.
  const comparable = await before.decode().then(() => true, () => false);
  find("compare").classList.toggle("alone", !comparable);
  find("compare").style.setProperty("--ratio", after.naturalWidth / after.naturalHeight);
  setSplit(50);
  const num = headers.get("X-FusionRay-Faces");
  find("boxes-choice").hidden = num === null;
  showBoxes(readBoxes(headers.get("X-FusionRay-Boxes")), after.naturalWidth, after.naturalHeight);
  showProvenance(headers);
  showTiming(readTiming(headers.get("Server-Timing")), milliseconds);
  find("download").href = after.src;
  find("download").download = `${name}.${blob.type.replace("image/", "").replace("jpeg", "jpg")}`;
  find("compare").scrollIntoView({ block: "nearest" });
  if (num === null) return "the picture is painted";
  return num === "1" ? "1 face fused" : `${num} faces fused`;
}

function setSplit(percent) {
  const value = Math.round(Math.min(100, Math.max(0, percent)));
  find("split").value = value;
  find("split").setAttribute("aria-valuetext", `${value} % before, ${100 - value} % after`);
  find("compare").style.setProperty("--split", `${value}%`);
}

/** The range serves the keyboard; pointers set it from anywhere on the picture, since iOS moves a range by its thumb only. */
export function takeSplit() {
  const [compare, split] = [find("compare"), find("split")];
  const follow = (event) => {
    const { left, width } = compare.getBoundingClientRect();
    setSplit(((event.clientX - left) / width) * 100);
  };
  compare.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    compare.setPointerCapture(event.pointerId);
    split.focus({ preventScroll: true, focusVisible: false });
    follow(event);
  });
  compare.addEventListener("pointermove", (event) => compare.hasPointerCapture(event.pointerId) && follow(event));
  split.addEventListener("input", () => setSplit(split.valueAsNumber));
}

/** "left,top,width,height;..." in pixels of the picture. */
function readBoxes(text) {
  const boxes = (text ?? "").split(";").map((part) => part.split(",").map(Number));
  return boxes.filter((box) => box.length === 4 && box.every(Number.isFinite));
}

function showBoxes(boxes, width, height) {
  const rectangle = ([x, y, w, h], name) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    for (const [key, value] of Object.entries({ x, y, width: w, height: h, rx: w / 20, class: name })) made.setAttribute(key, value);
    return made;
  };
  const found = boxes.length === 1 ? "1 face found" : `${boxes.length} faces found`;
  find("boxes").setAttribute("viewBox", `0 0 ${width} ${height}`);
  find("boxes").setAttribute("preserveAspectRatio", "none");
  find("boxes").setAttribute("aria-label", found);
  find("boxes").replaceChildren(...boxes.flatMap((box) => [rectangle(box, "under"), rectangle(box, "over")]));
  find("boxes-name").textContent = `Outline: ${found}`;
  find("show-boxes").disabled = !boxes.length;
}

function showProvenance(headers) {
  const [kind, ...remarks] = (headers.get("X-FusionRay-Provenance") ?? "").split(";").map((part) => part.trim());
  const signed = kind === "c2pa";
  find("test-key").hidden = !remarks.includes("test-key");
  find("provenance").textContent = `This picture was made by AI; it is not a photograph. ${
    signed ? "A signed statement in the file (C2PA) says so. Keep it when you pass the picture on." : "The file carries no signed statement of that."
  }`;
  const signature = remarks.includes("test-key") ? "C2PA, test key" : "C2PA, signed";
  find("made-provenance").textContent = signed ? signature : "not signed";
  find("made-model").textContent = headers.get("X-FusionRay-Model") ?? "unknown";
  find("made-bundle").textContent = headers.get("X-FusionRay-Bundle") ?? "unknown";
  find("made-request").textContent = headers.get("X-Request-Id") ?? "unknown";
}

/** "name;dur=1.2, name;dur=3.4" -> [[name, milliseconds], ...] */
function readTiming(text) {
  const entries = (text ?? "").split(",").map((part) => [part.split(";")[0].trim(), parseFloat(/;\s*dur=([\d.]+)/.exec(part)?.[1])]);
  return entries.filter(([, milliseconds]) => Number.isFinite(milliseconds));
}

function showTiming(stages, roundTrip) {
  const longest = Math.max(...stages.filter(([name]) => name !== "total").map(([, milliseconds]) => milliseconds), 1e-9);
  find("timing").replaceChildren(...stages.map(([name, milliseconds]) => buildStage(name, milliseconds, longest)));
  find("timing-section").hidden = !stages.length;
  find("round-trip").textContent = `As seen from this browser: ${formatTime(roundTrip)}.`;
}

function buildStage(name, milliseconds, longest) {
  const item = document.createElement("li");
  const span = (text, kind) => Object.assign(document.createElement("span"), { textContent: text, className: kind });
  const bar = span("", name === "total" ? "" : "bar");
  if (name === "total") item.className = "total";
  else bar.append(document.createElement("i"));
  if (bar.firstChild) bar.firstChild.style.width = `${Math.min(100, (milliseconds / longest) * 100)}%`;
  item.append(span(STAGES[name] ?? name, ""), bar, span(formatTime(milliseconds), "value"));
  return item;
}

function formatTime(milliseconds) {
  return milliseconds < 1000 ? `${milliseconds.toFixed(milliseconds < 10 ? 1 : 0)} ms` : `${(milliseconds / 1000).toFixed(2)} s`;
}
