// What the page knows, for this visit only, and how it tells a person what is the matter.

import { TASKS } from "./tasks.js";

export const ROLES = Object.values(TASKS).flatMap((each) => each.roles);

export const state = {
  task: "face_fusion",
  source: null, // { blob, name } or { identity, blob, name }; the others { blob, name }
  target: null,
  content: null,
  style: null,
  kept: [], // { identity, expires_at, blob, name }
  models: [],
  running: null, // AbortController of the request under way
  again: null, // what to do once a key or a token was entered
};

export const task = () => TASKS[state.task];
export const find = (id) => document.getElementById(id);

/** Tell those who listen. */
export function say(text) {
  find("status").textContent = text;
}

/** Say what is wrong with a picture or a choice; an empty text takes it back. */
export function setFault(place, text) {
  find(`${place}-fault`).textContent = text;
  find(`${place}-fault`).hidden = !text;
  const control = find(`${place}-file`) ?? find(place);
  if (text) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
  if (ROLES.includes(place)) find(place).classList.toggle("faulty", Boolean(text));
}
