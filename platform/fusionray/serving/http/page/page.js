// Two pictures in, one out. The page talks to the API beside it and to nothing else; pictures, handles, the API key and
// the consent token live in memory only and are gone when the page is.

import { Refused, access, ask, buildForm } from "./api.js";
import { setImage, showResult, takeSplit } from "./result.js";
import { ROLES, find, say, setFault, state, task } from "./state.js";
import { TASKS, taskOf } from "./tasks.js";
import { setPicture, takeChoices, takeDrops } from "./wells.js";

const FIRST_RETRY_SECONDS = 2;
const LONGEST_RETRY_SECONDS = 30;

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

function clearFaults() {
  for (const place of [...ROLES, "consent"]) setFault(place, "");
  find("problem").hidden = true;
  find("access").hidden = true;
}

function showProblem(problem, action) {
  const { status, reason = "", picture } = problem;
  const wantsKey = status === 401;
  const atFault = task().roles.includes(picture) ? picture : null;
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
  find("make").focus();
  const action = state.again;
  if (!state.models.length) await attempt(loadModels);
  if (action !== loadModels && find("access").hidden) await attempt(action);
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

// --- Making the picture ---

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

async function make(signal) {
  const { path, kept, busy, file, write } = task();
  const before = state[kept].blob;
  const form = write(state);
  const started = performance.now();
  setBusy(busy);
  const { body, headers } = await ask(path, (response) => response.blob(), { method: "POST", body: form, signal });
  const what = await showResult(body, headers, before, performance.now() - started, file);
  say(`Done: ${what}. The picture was made by AI.`);
}

/** Show what is being done; an empty word ends it. */
function setBusy(word) {
  const busy = Boolean(word);
  if (!busy && document.activeElement === find("cancel")) find("make").focus();
  find("result").classList.toggle("busy", busy);
  find("result").setAttribute("aria-busy", String(busy));
  find("progress").hidden = !busy;
  find("progress").setAttribute("aria-label", word || "Working");
  find("cancel").hidden = !busy;
  find("make").setAttribute("aria-disabled", String(busy));
  find("make").textContent = word || task().verb;
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
  const served = Object.keys(TASKS).filter((name) => body.models.some((model) => taskOf(model) === name));
  find("tabs").hidden = served.length < 2;
  showTask(served.includes(state.task) ? state.task : served[0] ?? state.task);
  setService("ready", "Ready");
}

// --- Tabs ---

/** Show what belongs to a task, and its models; the pictures of the other one stay. */
function showTask(name) {
  state.task = name;
  for (const element of document.querySelectorAll("[data-task]")) element.hidden = element.dataset.task !== name;
  for (const tab of find("tabs").children) {
    tab.setAttribute("aria-selected", String(tab.dataset.tab === name));
    tab.tabIndex = tab.dataset.tab === name ? 0 : -1;
  }
  const models = state.models.filter((model) => taskOf(model) === name);
  const chosen = models.find((model) => model.default) ?? models[0];
  const options = models.map((model) => new Option(`${model.name}, ${model.size} px`, model.name, model === chosen, model === chosen));
  if (options.length) find("model").replaceChildren(...options);
  find("as-given").textContent = `As ${task().kept}`;
  find("make").textContent = task().verb;
  describeModel();
}

function takeTabs() {
  const tabs = [...find("tabs").children];
  const choose = (tab) => {
    if (state.running) return;
    clearFaults();
    showTask(tab.dataset.tab);
    tab.focus();
  };
  for (const [index, tab] of tabs.entries()) {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) choose(tabs[(index + step + tabs.length) % tabs.length]);
    });
  }
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
document.addEventListener("picture", (event) => {
  if (event.detail !== "source") return;
  find("keeping").hidden = !state.source || Boolean(state.source.identity);
  showKept();
});
takeDrops();
takeSplit();
takeTabs();
find("form").addEventListener("submit", (event) => {
  event.preventDefault();
  start(make, task().roles);
});
find("keep").addEventListener("click", () => start(keepFace, ["source"]));
find("cancel").addEventListener("click", () => state.running?.abort());
find("access").addEventListener("submit", useAccess);
find("consent").addEventListener("change", () => setFault("consent", ""));
find("model").addEventListener("change", describeModel);
find("strength").addEventListener("input", (event) => event.target.setAttribute("aria-valuetext", `${event.target.value} %`));
find("show-boxes").addEventListener("change", (event) => find("boxes").toggleAttribute("hidden", !event.target.checked));
connect();
