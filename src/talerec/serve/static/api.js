// The public API: each function sends one request.

const TOKEN_KEY = "talerec-token";

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function useToken(token) {
  sessionStorage.setItem(TOKEN_KEY, token);
}

async function send(method, path, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem(TOKEN_KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  if (body) headers["content-type"] = "application/json";
  const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  const json = await response.json();
  if (!response.ok) throw new ApiError(response.status, json.error.code, json.error.message);
  return json;
}

export const modelCard = () => send("GET", "/v1/model");
export const search = (text, signal) =>
  send("GET", `/v1/items?limit=12&q=${encodeURIComponent(text)}`, null, signal);
export const recommend = (request, signal) => send("POST", "/v1/recommend", request, signal);
export const similar = (item_id) => send("POST", "/v1/similar", { item_id, k: 8 });
export const explain = (request) => send("POST", "/v1/explain", request);
