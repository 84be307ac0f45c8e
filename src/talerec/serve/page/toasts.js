// Error messages at the edge of the page. Every request is sent by `attempt`.

import * as api from "./api.js";
import { button, byId, element } from "./dom.js";

const SHOWN_MS = 12_000;
const PLAIN = {
  busy: "The service is busy. Try again in a moment.",
  timeout: "The answer takes too long. Try a shorter history.",
  not_ready: "The model is still being loaded. Try again in a moment.",
  stopping: "The service is about to stop.",
  internal: "The service failed. See its log.",
  unknown_user: "The model does not know this user.",
  unknown_item: "The model does not know this item any more.",
  no_histories: "This model was saved without the histories of users: build a history instead.",
};
const UNREACHABLE = "The service does not respond. Is it running?";

export function toast(text) {
  const same = [...byId("toasts").children].find((one) => one.firstChild.textContent === text);
  same?.remove();
  const one = element("div", { className: "toast" }, element("p", {}, text),
    button("×", () => one.remove(), { "aria-label": "Close this message" }));
  byId("toasts").append(one);
  const close = () => (one.contains(document.activeElement) ? setTimeout(close, 2000) : one.remove());
  setTimeout(close, SHOWN_MS);
}

// Returns the result of a request; null if it failed, which is shown, or was aborted.
export async function attempt(request) {
  try {
    return await request();
  } catch (problem) {
    if (problem.name === "AbortError") return null;
    if (problem.status === 401) askForToken();
    else toast(problem instanceof api.ApiError ? PLAIN[problem.code] ?? sentence(problem.message) : UNREACHABLE);
    return null;
  }
}

const sentence = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

function askForToken() {
  const wrong = api.hasToken();
  api.useToken(null);
  byId("login").hidden = false;
  byId("wrong-token").hidden = !wrong;
  byId("token").setAttribute("aria-invalid", String(wrong));
  byId("token").focus();
}

export function onLogin(start) {
  byId("login").addEventListener("submit", (event) => {
    event.preventDefault();
    api.useToken(byId("token").value.trim());
    byId("token").value = "";
    byId("login").hidden = true;
    start();
  });
}
