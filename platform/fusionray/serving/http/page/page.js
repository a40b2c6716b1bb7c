// Two pictures in, one out. The page talks to the API beside it and to nothing else; pictures, handles, the API key and
// the consent token live in memory only and are gone when the page is.

import { Refused, access, ask, buildForm } from "./api.js";
import { setImage, showResult, takeSplit } from "./result.js";

const ROLES = ["source", "target"];
const FIRST_RETRY_SECONDS = 2;
const LONGEST_RETRY_SECONDS = 30;

const state = {
  source: null, // { blob, name } or { identity, blob, name }
  target: null, // { blob, name }
  kept: [], // { identity, expires_at, blob, name }
  models: [],
  running: null, // AbortController of the request under way
  again: null, // what to do once a key or a token was entered
};

const find = (id) => document.getElementById(id);
const inside = (role, selector) => find(role).querySelector(selector);

/** Do what a person asked for, one thing at a time; if it is refused, say why. */
async function attempt(action) {
  if (state.running) return;
  state.running = new AbortController();
  clearFaults();
  try {
    await action(state.running.signal);
  } catch (error) {
    if (error instanceof Refused) showProblem(error.problem, action);
    else if (error.name === "AbortError") say("Cancelled.");
    else throw error;
  } finally {
    state.running = null;
    setBusy("");
  }
}

// --- Saying what is the matter ---

function say(text) {
  find("status").textContent = text;
}

function setFault(place, text) {
  find(`${place}-fault`).textContent = text;
  find(`${place}-fault`).hidden = !text;
  const control = find(`${place}-file`) ?? find(place);
  if (text) control.setAttribute("aria-invalid", "true");
  else control.removeAttribute("aria-invalid");
  if (ROLES.includes(place)) find(place).classList.toggle("faulty", Boolean(text));
}

function clearFaults() {
  for (const place of [...ROLES, "consent"]) setFault(place, "");
  find("problem").hidden = true;
  find("access").hidden = true;
}

function showProblem(problem, action) {
  const { status, reason = "", picture } = problem;
  const wantsKey = status === 401;
  const atFault = ROLES.includes(picture) ? picture : null;
  const wait = problem.wait > 0 ? ` Try again in ${problem.wait} s.` : "";
  find("problem-title").textContent = atFault ? `${problem.title}: the ${atFault} picture` : problem.title;
  find("problem-detail").textContent = `${problem.detail ?? ""}${wait}`;
  find("problem-trace").textContent = [reason, problem.request && `request ${problem.request}`].filter(Boolean).join(", ");
  // The first time no key was given: that is a question, not a fault.
  find("problem").hidden = wantsKey && !access.key;
  find("problem-earlier").hidden = find("outcome").hidden;
  if (atFault) setFault(atFault, problem.title);
  if (wantsKey) askAccess("key", action);
  else if (reason.startsWith("consent_")) askAccess("token", action);
  else find("problem").scrollIntoView({ block: "nearest" });
}

function askAccess(field, action) {
  state.again = action;
  for (const name of ["key", "token"]) {
    find(`${name}-field`).hidden = name !== field;
    find(name).disabled = name !== field;
  }
  find("access").hidden = false;
  find(field).focus();
}

async function useAccess(event) {
  event.preventDefault();
  for (const name of ["key", "token"]) {
    if (!find(name).disabled) access[name] = find(name).value;
    find(name).value = "";
  }
  find("access").hidden = true;
  find("fuse").focus();
  const action = state.again;
  if (!state.models.length) await attempt(loadModels);
  if (action !== loadModels && find("access").hidden) await attempt(action);
}

// --- Pictures going in ---

function setPicture(role, picture) {
  state[role] = picture;
  const image = inside(role, ".preview");
  setImage(image, picture?.blob);
  image.hidden = !picture;
  inside(role, ".drop").classList.toggle("filled", Boolean(picture));
  inside(role, ".invite").hidden = Boolean(picture);
  inside(role, ".remove").hidden = !picture;
  find(`${role}-note`).textContent = picture?.name ?? "";
  setFault(role, "");
  if (role === "source") {
    find("keeping").hidden = !picture || Boolean(picture.identity);
    showKept();
  }
  say(picture ? `${role} picture: ${picture.name}` : `${role} picture removed`);
}

/** Put files where they were dropped, then where there is still room. */
function place(files, first) {
  const roles = first ? [first, ...ROLES.filter((role) => role !== first)] : ROLES;
  const free = roles.filter((role) => role === first || !state[role]);
  for (const [index, role] of (free.length ? free : ["target"]).entries()) {
    const blob = files[index];
    if (!blob) break;
    if (blob.type && !blob.type.startsWith("image/")) setFault(role, `${blob.name} is not a picture.`);
    else setPicture(role, { blob, name: blob.name });
  }
}

function wellOf(element) {
  return element?.closest?.(".well")?.id;
}

function takeDrops() {
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

function takeChoices(role) {
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

// --- Kept faces ---

async function keepFace(signal) {
  const { blob, name } = state.source;
  setBusy("Keeping");
  const { body } = await ask("v1/identities", (response) => response.json(), {
    method: "POST",
    body: buildForm({ source: blob, consent: access.token }),
    signal,
  });
  const kept = { ...body, blob, name };
  state.kept.push(kept);
  setPicture("source", kept);
  find("source-file").focus();
  say("The face is kept.");
}

async function forgetFace(kept, signal) {
  try {
    const headers = { "X-FusionRay-Identity": kept.identity }; // a key, so never part of an address
    await ask("v1/identities", (response) => response.text(), { method: "DELETE", headers, signal });
  } catch (error) {
    if (error.problem?.status !== 404) throw error; // expired: as wished
  }
  state.kept = state.kept.filter((each) => each !== kept);
  if (state.source === kept) setPicture("source", null);
  showKept();
  find("source-file").focus();
  say("The face is forgotten.");
}

function useKept(kept) {
  setPicture("source", kept);
  find("source-file").focus();
}

function showKept() {
  const list = find("kept-list");
  for (const image of list.querySelectorAll("img")) setImage(image, null);
  list.replaceChildren(...state.kept.map(buildKept));
  find("kept").hidden = !state.kept.length;
}

function buildKept(kept, index) {
  const image = document.createElement("img");
  image.alt = "";
  setImage(image, kept.blob);
  const until = new Date(kept.expires_at).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
  const text = document.createElement("p");
  text.textContent = `${kept.name}, until ${until}`;
  const button = (word, does) => {
    const made = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: word });
    made.setAttribute("aria-label", `${word} kept face ${index + 1}, ${kept.name}`);
    made.addEventListener("click", does);
    return made;
  };
  const item = document.createElement("li");
  const used = state.source === kept;
  item.append(image, text);
  if (used) item.dataset.used = "";
  else item.append(button("Use again", () => useKept(kept)));
  item.append(button("Delete", () => attempt((signal) => forgetFace(kept, signal))));
  return item;
}

// --- Fusing ---

/** Tell what is missing, and go there; true if nothing is. */
function isComplete(roles) {
  const missing = roles.filter((role) => !state[role]);
  for (const role of missing) setFault(role, `Choose a ${role} picture.`);
  const agreed = find("consent").checked;
  if (!agreed) setFault("consent", "Please confirm this first.");
  if (missing.length) find(`${missing[0]}-file`).focus();
  else if (!agreed) find("consent").focus();
  return agreed && !missing.length;
}

function start(action, roles) {
  if (state.running) return;
  clearFaults();
  if (isComplete(roles)) attempt(action);
}

async function fuse(signal) {
  const { source, target } = state;
  const chosen = new FormData(find("form"));
  const form = buildForm({
    [source.identity ? "identity" : "source"]: source.identity ?? source.blob,
    target: target.blob,
    model: find("model").value,
    faces: chosen.get("faces"),
    format: chosen.get("format"),
    // Left out rather than false: the service may want its mark on every picture.
    mark: find("mark").checked && "true",
    consent: access.token,
  });
  const started = performance.now();
  setBusy("Fusing");
  const { body, headers } = await ask("v1/fuse", (response) => response.blob(), { method: "POST", body: form, signal });
  const faces = await showResult(body, headers, target.blob, performance.now() - started);
  say(`Done: ${faces}. The picture was made by AI.`);
}

/** Show what is being done; an empty word ends it. */
function setBusy(word) {
  const busy = Boolean(word);
  if (!busy && document.activeElement === find("cancel")) find("fuse").focus();
  find("result").classList.toggle("busy", busy);
  find("result").setAttribute("aria-busy", String(busy));
  find("progress").hidden = !busy;
  find("cancel").hidden = !busy;
  find("fuse").setAttribute("aria-disabled", String(busy));
  find("fuse").textContent = word || "Fuse";
  if (busy) say(`${word}.`);
}

// --- Models ---

function setService(kind, text) {
  find("service").dataset.state = kind;
  find("service").textContent = text;
}

async function loadModels() {
  const { body } = await ask("v1/models", (response) => response.json()).catch((error) => {
    setService("failed", error.problem?.status === 401 ? "Needs an API key" : "Not ready");
    throw error;
  });
  state.models = body.models;
  const select = find("model");
  select.replaceChildren(...body.models.map((model) => new Option(`${model.name}, ${model.size} px`, model.name, model.default, model.default)));
  describeModel();
  setService("ready", "Ready");
}

function describeModel() {
  const model = state.models.find((each) => each.name === find("model").value);
  if (!model) return;
  const parts = [model.licence, model.precision, model.provider?.replace("ExecutionProvider", ""), `bundle ${model.bundle.slice(0, 12)}`];
  find("model-note").textContent = parts.filter(Boolean).join(" · ");
}

/** Ask for the models until the service is ready; a key that is missing is asked for. */
async function connect(seconds = FIRST_RETRY_SECONDS) {
  try {
    await loadModels();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (error.problem.status === 401) showProblem(error.problem, loadModels);
    else setTimeout(() => state.models.length || connect(Math.min(2 * seconds, LONGEST_RETRY_SECONDS)), seconds * 1000);
  }
}

// --- Start ---

ROLES.forEach(takeChoices);
takeDrops();
takeSplit();
find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start(fuse, ROLES);
});
find("keep").addEventListener("click", () => start(keepFace, ["source"]));
find("cancel").addEventListener("click", () => state.running?.abort());
find("access").addEventListener("submit", useAccess);
find("consent").addEventListener("change", () => setFault("consent", ""));
find("model").addEventListener("change", describeModel);
find("show-boxes").addEventListener("change", (event) => find("boxes").toggleAttribute("hidden", !event.target.checked));
connect();
