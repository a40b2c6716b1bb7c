// How the page asks the API beside it: one origin, one way to fail.

/** What a person entered for this visit; never stored, never part of an address. */
export const access = { key: "", token: "" };

export class Refused extends Error {
  constructor(problem) {
    super(problem.title);
    this.problem = problem;
  }
}

/** Ask the API; `read` takes the body out of a good answer. Throws Refused with a problem document for any other. */
export async function ask(path, read, options = {}) {
  const headers = { ...options.headers, ...(access.key && { Authorization: `Bearer ${access.key}` }) };
  let response, body;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store", redirect: "error" });
    body = await (response.ok ? read(response) : readProblem(response));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    const detail = "The service cannot be reached, or it cut the connection: it does so if pictures are far too large.";
    throw new Refused({ status: 0, title: "No answer from the service", detail });
  }
  if (!response.ok) throw new Refused(body);
  return { body, headers: response.headers };
}

async function readProblem(response) {
  const plain = { title: `The service answered ${response.status}`, detail: response.statusText };
  const isJson = response.headers.get("Content-Type")?.includes("json");
  const told = isJson ? await response.json().catch(() => ({})) : {};
  const { headers, status } = response;
  return { ...plain, ...told, status, request: headers.get("X-Request-Id"), wait: Number(headers.get("Retry-After")) };
}

/** Build a form from the fields that have a value. */
export function buildForm(fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value) form.append(name, value);
  return form;
}
