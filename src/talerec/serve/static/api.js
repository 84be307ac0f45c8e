// The public API, and nothing else: each function is one request.

const KEY = "talerec-token";

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function useToken(token) {
  sessionStorage.setItem(KEY, token);
}

async function ask(method, path, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  const said = await answer.json();
  if (!answer.ok) throw new Refused(answer.status, said.error.code, said.error.message);
  return said;
}

export const card = () => ask("GET", "/v1/model");
export const search = (text, signal) =>
  ask("GET", `/v1/items?limit=12&q=${encodeURIComponent(text)}`, null, signal);
export const recommend = (wish, signal) => ask("POST", "/v1/recommend", wish, signal);
export const similar = (item_id) => ask("POST", "/v1/similar", { item_id, k: 8 });
export const explain = (wish) => ask("POST", "/v1/explain", wish);
