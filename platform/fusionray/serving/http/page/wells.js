// The places for pictures: files that are chosen, dropped or pasted.

import { setImage } from "./result.js";
import { ROLES, find, say, setFault, state, task } from "./state.js";

const inside = (role, selector) => find(role).querySelector(selector);

/** Put a picture into its place, or take it out (null); the event `picture` tells the others. */
export function setPicture(role, picture) {
  state[role] = picture;
  const image = inside(role, ".preview");
  setImage(image, picture?.blob);
  image.hidden = !picture;
  inside(role, ".drop").classList.toggle("filled", Boolean(picture));
  inside(role, ".invite").hidden = Boolean(picture);
  inside(role, ".remove").hidden = !picture;
  find(`${role}-note`).textContent = picture?.name ?? "";
  setFault(role, "");
  document.dispatchEvent(new CustomEvent("picture", { detail: role }));
  say(picture ? `${role} picture: ${picture.name}` : `${role} picture removed`);
}

/** Put files where they were dropped, then where there is still room. */
function place(files, first) {
  const wanted = task().roles;
  const roles = first ? [first, ...wanted.filter((role) => role !== first)] : wanted;
  const free = roles.filter((role) => role === first || !state[role]);
  for (const [index, role] of (free.length ? free : [task().kept]).entries()) {
    const blob = files[index];
    if (!blob) break;
    if (blob.type && !blob.type.startsWith("image/")) setFault(role, `${blob.name} is not a picture.`);
    else setPicture(role, { blob, name: blob.name });
  }
}

function wellOf(element) {
  return element?.closest?.(".well")?.id;
}

export function takeDrops() {
  const mark = (role) => ROLES.forEach((each) => inside(each, ".drop").classList.toggle("over", each === role));
  document.addEventListener("dragover", (event) => {
    // Also outside of the two places: a browser would leave the page and open the file.
    event.preventDefault();
    mark(wellOf(event.target));
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget || mark(null));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    mark(null);
    place([...event.dataTransfer.files], wellOf(event.target));
  });
  document.addEventListener("paste", (event) => {
    const files = [...event.clipboardData.files];
    if (!files.length) return;
    event.preventDefault();
    place(files, wellOf(document.activeElement));
  });
}

export function takeChoices(role) {
  const input = find(`${role}-file`);
  input.addEventListener("change", () => {
    place([...input.files], role);
    input.value = ""; // the same file may be chosen again
  });
  inside(role, ".remove").addEventListener("click", () => {
    setPicture(role, null);
    input.focus();
  });
  const image = inside(role, ".preview");
  image.addEventListener("load", () => {
    if (!state[role]) return;
    find(`${role}-note`).textContent = `${state[role].name}, ${image.naturalWidth} × ${image.naturalHeight}`;
  });
  image.addEventListener("error", () => {
    if (!state[role]) return;
    image.hidden = true;
    find(`${role}-note`).textContent = `${state[role].name}: no preview in this browser`;
  });
}
