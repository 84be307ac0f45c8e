// Recommendations: cards with reasons for and against an item, and similar items in place.

import * as api from "./api.js";
import { announce, button, byId, element, hidden, label, percent, shortNumber } from "./dom.js";
import { addRow } from "./history.js";
import { about, hasFilters, itemOf, lookUp, passes, picture, remember } from "./items.js";
import { historyJson, recommendRequest, state } from "./state.js";
import { attempt } from "./toasts.js";

const SHOWN = 10;
const LOOKED_AT = 200; // items to request, of which those that pass the filters are shown
const SIMILAR = 6;
const LEAST = 0.01; // share of all reasons: smaller ones appear only in the table
const LEAST_FAMILY = 0.05; // the same of families of features

const filtersHere = () => (state.takesWhere ? Boolean(state.words.trim()) : hasFilters());
export const wanted = () => Math.min(filtersHere() ? LOOKED_AT : SHOWN, state.card.training.items, state.card.limits.max_k);

// Returns the answer to this request, with the items that pass the filters; null if it failed.
export async function ask(request, options) {
  const answer = await attempt(() => api.recommend(request, options));
  if (!answer) return null;
  remember(answer.items.map(({ item_id, title }) => ({ item_id, ...(title && { title }) })));
  await lookUp([...answer.items.map((item) => item.item_id), ...answer.items.flatMap(
    (item) => (item.because ?? []).map((one) => one.item_id))].slice(0, 300));
  const shown = answer.items.filter((item) => passes(item.item_id)).slice(0, SHOWN);
  return { ...answer, shown, looked: answer.items.length };
}

// -- the list ----------------------------------------------------------------------------------------

export function showAnswer(answer, before) {
  const { shown, fallback, looked } = answer;
  const notes = [];
  if (fallback) {
    notes.push(`${state.rows.length ? "The model knows no item of this history" : "Without a history"}: these items are ${fallback}.`);
  }
  if (filtersHere() && shown.length < SHOWN) notes.push(`${shown.length} of the first ${looked} items pass the filters.`);
  if (!shown.length) notes.push(hasFilters() ? "No item passes the filters." : "The model has no recommendations after this history.");
  byId("fallback").hidden = !notes.length;
  byId("fallback").textContent = notes.join(" ");
  const scores = shown.map((item) => item.score);
  const least = Math.min(...scores, 0); // a ranker's scores may be below 0
  const most = Math.max(...scores, least + 1e-12);
  const ranks = before && new Map(before.shown.map((item, place) => [String(item.item_id), place + 1]));
  byId("answer").replaceChildren(...shown.map((item, place) => card(item, place + 1, (item.score - least) / (most - least), ranks)));
}

function card(item, place, share, ranks) {
  const named = { ...itemOf(item.item_id), ...item };
  const name = label(named);
  const bar = element("div", { className: "bar" });
  bar.style.width = `${Math.max(2, 100 * share)}%`;
  const more = element("div", { className: "more" });
  return element("li", { className: "card" },
    element("span", { className: "rank" }, String(place)),
    picture(item.item_id),
    element("div", { className: "body" },
      element("div", { className: "head" },
        element("span", { className: "name" }, name),
        rankChange(ranks?.get(String(item.item_id)), place, ranks),
        element("span", { className: "score" }, hidden("score "), shortNumber(item.score))),
      element("p", { className: "about" }, about(item.item_id)),
      bar,
      reasons(item),
      element("div", { className: "actions" },
        button("Add", () => addRow(named), { "aria-label": `Add ${name} to the history` }),
        toggle("Why", `Why ${name}`, more, () => whyTable(item)),
        toggle("Similar", `Similar to ${name}`, more, () => similarList(item)))),
    more);
}

export function rankChange(before, now, hasBefore) {
  if (!hasBefore || before === now) return element("span", { className: "moved" });
  if (before === undefined) return element("span", { className: "moved up" }, "new");
  const up = before > now;
  const by = Math.abs(before - now);
  return element("span", { className: `moved ${up ? "up" : "down"}` },
    hidden(up ? `up ${by}` : `down ${by}`),
    element("span", { "aria-hidden": "true" }, `${up ? "▲" : "▼"} ${by}`));
}

// A button that opens or closes details below a card.
function toggle(text, name, more, make) {
  const one = button(text, async () => {
    const open = one.getAttribute("aria-expanded") === "true";
    more.closest("li").querySelectorAll("[aria-expanded]").forEach((other) => other.setAttribute("aria-expanded", "false"));
    const made = open ? null : await make();
    more.replaceChildren(...(made ? [made] : []));
    one.setAttribute("aria-expanded", String(Boolean(made)));
  }, { "aria-label": name, "aria-expanded": "false" });
  return one;
}

// -- reasons -----------------------------------------------------------------------------------------

// A reason, with its share of all that speaks for and against the item; null until that is known.
const chip = (text, share, kind) => element("li", { className: `chip ${kind}` }, text,
  ...(share === null ? [] : [" ", element("b", {}, percent(Math.abs(share)))]));

function reasons(item) {
  const holder = element("div", { className: "reasons" });
  holder.dataset.id = String(item.item_id);
  const because = (item.because ?? []).map((one) => ({ ...itemOf(one.item_id), direction: Math.sign(one.share), share: null }));
  fillReasons(holder, because);
  return element("div", {}, familyLine(item.families), holder);
}

// Shares of contributions, with their signs. Those for and against an item may nearly cancel, so that
// a contribution may be several times the score: all of them together, without signs, are 100 %.
function sharesOf(contributions) {
  const total = contributions.reduce((sum, one) => sum + Math.abs(one), 0);
  return contributions.map((one) => (total ? one / total : 0));
}

// What families of features say for an item: "the user has it at this hour 41 %, popular today 12 %".
function familyLine(families) {
  const strong = (families ?? []).filter((one) => one.share >= LEAST_FAMILY).sort((a, b) => b.share - a.share);
  if (!strong.length) return null;
  return element("p", { className: "about families" }, strong.map((one) => `${one.reason} ${percent(one.share)}`).join(", "));
}

function fillReasons(holder, rows) {
  const isShown = (row) => row.share === null || Math.abs(row.share) >= LEAST;
  const lists = [
    ["Because of", "for", rows.filter((row) => row.direction > 0 && isShown(row)).slice(0, 4)],
    ["Despite", "against", rows.filter((row) => row.direction < 0 && isShown(row)).slice(0, 3)],
  ];
  holder.replaceChildren(...lists.filter(([, , some]) => some.length).map(([title, kind, some]) =>
    element("div", { className: kind },
      element("span", { className: "lead" }, title),
      element("ul", { className: "chips" }, ...some.map((row) => chip(row.text ?? label(row), row.share, kind))))));
}

let explaining;

// Loads what the first answer omits, card by card: popularity at the time, and further rows.
export async function explainAll(answer) {
  explaining?.abort();
  const mine = (explaining = new AbortController());
  if (answer.fallback) return;
  for (const item of answer.shown) {
    let found = null;
    try {
      found = await api.explain(explainRequest(item), mine.signal);
    } catch {
      return; // "Why" reports the error
    }
    const holder = [...document.querySelectorAll("#answer .reasons")].find((one) => one.dataset.id === String(item.item_id));
    if (mine.signal.aborted || !holder) return;
    const shares = sharesOf([...found.rows.map((row) => row.contribution), found.base ?? 0]);
    const rows = found.rows.map((row, n) => ({ ...row, title: row.title ?? itemOf(row.item_id).title, share: shares[n] }));
    if (!found.families) rows.push({ text: "popular at the time", share: shares.at(-1) });
    rows.sort((a, b) => Math.abs(b.share) - Math.abs(a.share));
    fillReasons(holder, rows.map((row) => ({ ...row, direction: Math.sign(row.share) })));
  }
}

function explainRequest(item) {
  const { recency, as_of } = recommendRequest(1);
  return { history: historyJson(), item_id: item.item_id, ...(recency && { recency }), ...(as_of && { as_of }) };
}

async function whyTable(item) {
  const found = await attempt(() => api.explain(explainRequest(item)));
  if (!found) return null;
  const shares = sharesOf([...found.rows.map((row) => row.contribution), found.base ?? 0]);
  const share = (value) => (value < -0.005 ? `${percent(-value)} against` : percent(Math.abs(value)));
  const cells = (...texts) => element("tr", {}, ...texts.map((text) => element("td", {}, text)));
  const rows = found.rows.map((row, n) => ({ ...row, share: shares[n] }));
  const lines = rows.toReversed().filter((row) => row.contribution || row.place < 10).map((row) =>
    cells(row.title ?? label(itemOf(row.item_id)), share(row.share), shortNumber(row.contribution),
      row.place === 0 ? "last" : `${row.place} back`, row.weight === null ? "–" : percent(row.weight)));
  if (found.families) {
    lines.unshift(cells("Not from the history", share(shares.at(-1)), shortNumber(found.base ?? 0), "–", "–"));
    const families = found.families.map((one) =>
      cells(one.reason, share(one.share), shortNumber(one.contribution), "–", "–"));
    lines.push(cells("The same score by families:", "", shortNumber(found.score), "", ""), ...families);
  } else if (found.base !== undefined) {
    lines.unshift(cells("Popular at the time", share(shares.at(-1)), shortNumber(found.base), "–", "–"));
  }
  const heads = ["History row", "Share", "Contribution", "Position", "Weight"];
  return element("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": `Why ${label(found)}` },
    element("table", {},
      element("caption", {}, `The score of ${shortNumber(found.score)} is the sum of the rows' contributions. `
        + "Shares are of all contributions for and against, together 100 %."),
      element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))),
      element("tbody", {}, ...lines)));
}

// -- similar items -----------------------------------------------------------------------------------

async function similarList(item) {
  const found = await attempt(() => api.similar(item.item_id, Math.min(SIMILAR, state.card.training.items)));
  if (!found) return null;
  remember(found.items.map(({ item_id, title }) => ({ item_id, ...(title && { title }) })));
  await lookUp(found.items.map((one) => one.item_id));
  announce(`${found.items.length} items similar to ${label(found)}`);
  return element("div", {},
    element("p", { className: "lead" }, `Expected right after ${label(found)}`),
    element("ol", { className: "similar" }, ...found.items.map((one) => {
      const named = { ...itemOf(one.item_id), ...one };
      return element("li", {}, picture(one.item_id), element("span", { className: "name" }, label(named)),
        button("Add", () => addRow(named), { "aria-label": `Add ${label(named)} to the history` }));
    })));
}
