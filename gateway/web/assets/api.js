// The JSON API of the gateway: its calls, its errors, and its stream of placements.

const tokenKey = "berth-token";
const callTimeout = 35_000; // ms; the gateway gives up after 30 s
const silence = 15_000; // ms without a heartbeat after which a stream counts as broken; they come every 3 s

// The gRPC codes that the page tells apart.
export const code = { outOfRange: 11, unimplemented: 12 };

// session holds the token of this tab. It tells "wanted" when the gateway asks for another one, "changed" when there is one.
export const session = new EventTarget();

export function signIn(token) {
  sessionStorage.setItem(tokenKey, token.trim());
  session.dispatchEvent(new Event("changed"));
}

// ApiError is why a call has no answer. status is that of HTTP, 0 if nobody answered; code is that of gRPC; retryAfter is
// how many seconds to wait, 0 if the gateway does not say; violations are the fields that are wrong.
export class ApiError extends Error {
  constructor(message, { status = 0, code = 0, retryAfter = 0, violations = [] } = {}) {
    super(message);
    Object.assign(this, { status, code, retryAfter, violations });
  }
}

// call sends a request and returns the answer. With a body it is a POST. signal ends it early.
export async function call(path, { body, signal } = {}) {
  const timeout = AbortSignal.timeout(callTimeout);
  const response = await request(path, { body, signal: signal ? AbortSignal.any([signal, timeout]) : timeout });
  try {
    return await response.json();
  } catch (err) {
    throw broken(err, signal);
  }
}

// watchPlacements yields the messages of the stream, after a version if one is given, and before all others an empty one, when it
// is open. It throws when the stream breaks.
export async function* watchPlacements(from, signal) {
  const query = from ? `?from.epoch=${from.epoch}&from.seq=${from.seq}` : "";
  const quiet = new AbortController();
  let timer;
  const heard = () => {
    clearTimeout(timer);
    timer = setTimeout(() => quiet.abort(), silence);
  };
  try {
    heard();
    const response = await request(`v1/placements:watch${query}`, { signal: AbortSignal.any([signal, quiet.signal]) });
    yield {};
    for await (const line of lines(response.body)) {
      heard();
      const { result, error } = JSON.parse(line);
      if (error) throw new ApiError(error.message, { status: error.code === 8 ? 429 : 503, code: error.code });
      yield result;
    }
    throw new ApiError("the stream has ended");
  } catch (err) {
    throw broken(err, signal);
  } finally {
    clearTimeout(timer);
  }
}

async function request(path, { body, signal }) {
  const token = sessionStorage.getItem(tokenKey);
  let response;
  try {
    response = await fetch(path, {
      method: body ? "POST" : "GET",
      headers: {
        ...(token && { Authorization: `Bearer ${token}` }),
        ...(body && { "Content-Type": "application/json" }),
      },
      body: body && JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal,
    });
  } catch (err) {
    throw broken(err, signal);
  }
  if (response.ok) return response;
  const answer = await response.json().catch(() => ({})); // what is in between may answer in other ways
  if (response.status === 401 && token !== sessionStorage.getItem(tokenKey)) {
    return request(path, { body, signal }); // it was about a token that is not this tab's any more: the question is asked with the one that is
  }
  const problem = answer.error ?? answer; // streams wrap it
  if (response.status === 401) session.dispatchEvent(new CustomEvent("wanted", { detail: problem.message }));
  throw new ApiError(problem.message || response.statusText || `HTTP ${response.status}`, {
    status: response.status,
    code: problem.code,
    retryAfter: Number(response.headers.get("Retry-After")) || 0,
    violations: (problem.details ?? []).flatMap((detail) => detail.fieldViolations ?? []),
  });
}

// broken is the error of a connection that fails, unless the caller has ended it.
function broken(err, signal) {
  if (err instanceof ApiError || signal?.aborted) return err;
  return new ApiError(err.name === "TimeoutError" ? "no answer in time" : "the connection broke");
}

// lines yields the lines of a stream of bytes.
async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    yield* parts.filter((line) => line !== "");
  }
}

// explainError says in plain words what went wrong, and what comes next.
export function explainError(err) {
  const fields = (err.violations ?? []).map((v) => `${v.field}: ${v.description}`).join("; ");
  switch (err.status) {
    case 0: return `The gateway does not answer: ${err.message}.`;
    case 401: return `Not signed in: ${err.message}.`;
    case 403: return `Not allowed: ${err.message}.`;
    case 404: return `Not found: ${err.message}.`;
    case 429: return `Too much at once: ${err.message}.${err.retryAfter ? ` The gateway asks to wait ${err.retryAfter} s.` : ""}`;
    case 501: return "This gateway cannot answer that yet.";
    case 503: return `Not ready: ${err.message}.`;
    default: return `${fields || err.message || err}.`;
  }
}
