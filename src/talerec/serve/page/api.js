// The public API: each function sends one request.

const TOKEN_KEY = "talerec-token";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export const hasToken = () => Boolean(sessionStorage.getItem(TOKEN_KEY));
export function useToken(token) {
  if (token) sessionStorage.setItem(TOKEN_KEY, token);
  else sessionStorage.removeItem(TOKEN_KEY);
}

// Numbers above 2^53 would be rounded: such ids become text, which the service accepts too.
const parse = (text) => JSON.parse(text.replace(/"(item_id|user_id)":(-?\d{16,})/g, '"$1":"$2"')
  .replace(/"users":\[[^\]"]*\]/, (list) => list.replace(/-?\d{16,}/g, '"$&"')));

async function send(method, path, { body, signal, beside } = {}) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN_KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const url = beside ? `${path}${path.includes("?") ? "&" : "?"}beside=${encodeURIComponent(beside)}` : path;
  const response = await fetch(url, { method, headers, signal, body: body && JSON.stringify(body) });
  const text = await response.text();
  if (response.ok) return path === "/metrics" ? text : parse(text);
  const { error } = JSON.parse(text);
  throw new ApiError(response.status, error.code, error.message);
}

const query = (pairs) => new URLSearchParams(pairs).toString();

export const modelCard = (beside) => send("GET", "/v1/model", { beside });
export const searchItems = (q, signal) => send("GET", `/v1/items?${query({ limit: 12, q })}`, { signal });
export const itemsOf = (ids) => send("GET", `/v1/items?${query(ids.map((id) => ["id", id]))}`);
export const searchUsers = (q, signal) => send("GET", `/v1/users?${query({ limit: 12, q })}`, { signal });
export const user = (id) => send("GET", `/v1/users/${encodeURIComponent(id)}`);
// Returns a list that no user of the shop sees: it is not kept as an impression, and has no id.
export async function recommend(body, { signal, beside } = {}) {
  const { recommendation_id, ...answer } = await send("POST", "/v1/recommend", { body: { ...body, impression: false }, signal, beside });
  return answer;
}
export const similar = (item_id, k) => send("POST", "/v1/similar", { body: { item_id, k } });
export const explain = (body, signal) => send("POST", "/v1/explain", { body, signal });
export const document = () => send("GET", "/openapi.json");
export const stats = () => send("GET", "/v1/stats");
export const metrics = () => send("GET", "/metrics");

// Returns the same request as a command for a terminal.
export function asCurl(body) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const token = hasToken() ? " \\\n  -H \"authorization: Bearer $TALEREC_TOKEN\"" : "";
  return `curl -s ${location.origin}/v1/recommend \\\n  -H 'content-type: application/json'${token} \\\n  -d '${quoted}'`;
}
