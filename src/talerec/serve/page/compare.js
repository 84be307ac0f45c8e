// Side by side: the same request to another model, or at another date.

import { ask, rankChange, wanted } from "./answer.js";
import { announce, byId, element, label } from "./dom.js";
import { about, itemOf, picture } from "./items.js";
import { recommendRequest, state } from "./state.js";

let abort;
let onChange = () => {};

export const kind = () => state.versus?.split(":")[0] ?? "";
const detail = () => state.versus?.slice(kind().length + 1);

export async function showComparison(answer) {
  abort?.abort();
  byId("versus").hidden = !state.versus;
  byId("sides").classList.toggle("two", Boolean(state.versus));
  if (!state.versus) return;
  abort = new AbortController();
  const moment = kind() === "moment";
  const request = recommendRequest(wanted(), moment ? detail() : state.asOf);
  const other = await ask(request, { signal: abort.signal, beside: moment ? null : detail() });
  if (!other) return;
  byId("versus-title").textContent = moment ? `As of ${detail()}` : `Model ${detail()}`;
  const ranks = new Map(answer.shown.map((item, place) => [String(item.item_id), place + 1]));
  byId("versus-list").replaceChildren(...other.shown.map((item, place) =>
    element("li", { className: "card" },
      element("span", { className: "rank" }, String(place + 1)),
      picture(item.item_id),
      element("div", { className: "body" },
        element("div", { className: "head" },
          element("span", { className: "name" }, label({ ...itemOf(item.item_id), ...item })),
          rankChange(ranks.get(String(item.item_id)), place + 1, ranks)),
        element("p", { className: "about" }, about(item.item_id))))));
  const there = new Set(other.shown.map((item) => String(item.item_id)));
  const gone = answer.shown.filter((item) => !there.has(String(item.item_id)));
  const same = answer.shown.length - gone.length;
  const text = `${same} of ${answer.shown.length} items are in both lists.`;
  byId("versus-note").textContent = gone.length ? `${text} Missing: ${gone.map((item) => label({ ...itemOf(item.item_id), ...item })).join(", ")}.` : text;
  announce(text);
}

export function showChoices() {
  const choice = byId("versus-kind");
  const models = (state.card.beside ?? []).map((name) => ["model:" + name, `Model ${name}`]);
  const options = [["", "Nothing"], ["moment", "Another date"], ...models];
  choice.replaceChildren(...options.map(([value, text]) => element("option", { value }, text)));
  choice.value = kind() === "moment" ? "moment" : state.versus ?? "";
  byId("versus-date-field").hidden = choice.value !== "moment";
  if (kind() === "moment") byId("versus-date").value = detail();
}

export function start(whenChanged) {
  onChange = whenChanged;
  byId("versus-kind").addEventListener("change", () => {
    const value = byId("versus-kind").value;
    byId("versus-date-field").hidden = value !== "moment";
    if (value === "moment") byId("versus-date").value ||= state.asOf ?? String(state.card.training.last_time).slice(0, 10);
    state.versus = value === "moment" ? `moment:${byId("versus-date").value}` : value || null;
    onChange();
  });
  byId("versus-date").addEventListener("change", () => {
    if (!byId("versus-date").value) return;
    state.versus = `moment:${byId("versus-date").value}`;
    onChange();
  });
}
