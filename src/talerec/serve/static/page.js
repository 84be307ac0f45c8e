// The page: people build a history and see the recommendations for it, with reasons.

import * as api from "./api.js";
import { byId, element, label, percent, shortNumber } from "./dom.js";

const DAY = 86_400_000;
const state = {
  rows: [], // oldest first: {item_id, title, date}
  titles: new Map(), // titles of the items shown so far, by id
  recency: null, // null: the model's own
  k: 10,
  requestText: null, // the JSON of the last answered request
  answer: null,
  kept: null, // the answer and rows to compare with
  model: null, // the version whose card is shown
  firstDate: null, // the date of a first row: the day after the last row of the model's data
};

// -- history ---------------------------------------------------------------------------------------

const day = (time) => new Date(time).toISOString().slice(0, 10);

function nextDate() {
  const last = state.rows.at(-1);
  return last ? day(Date.parse(last.date) + DAY) : state.firstDate;
}

function addRow(item) {
  state.rows.push({ item_id: item.item_id, title: item.title, date: nextDate() });
  announce(`${label(item)} added to the history`);
  refresh();
}

function removeRow(row) {
  const place = state.rows.indexOf(row);
  state.rows.splice(place, 1);
  refresh();
  const left = byId("rows").querySelectorAll(".remove");
  (left[Math.min(state.rows.length - place, left.length - 1)] ?? byId("search")).focus();
}

function setDate(row, date) {
  if (!date) return;
  row.date = date;
  state.rows.sort((a, b) => (a.date < b.date ? -1 : a.date > b.date ? 1 : 0));
  refresh();
}

const historyJson = (rows) =>
  rows.map((row) => ({ item_id: row.item_id, timestamp: `${row.date}T00:00:00Z` }));

function showRows() {
  const lines = state.rows.toReversed().map((row) =>
    element("li", {},
      element("span", { className: "name" }, label(row)),
      element("input", {
        type: "date", value: row.date, required: true, "aria-label": `Date of ${label(row)}`,
        onchange: (event) => setDate(row, event.target.value),
      }),
      element("button", { type: "button", "aria-label": `Similar to ${label(row)}`, onclick: () => showSimilar(row) }, "≈"),
      element("button", {
        type: "button", className: "remove", "aria-label": `Remove ${label(row)}`, onclick: () => removeRow(row),
      }, "×")));
  byId("rows").replaceChildren(...lines);
  byId("empty").hidden = state.rows.length > 0;
  byId("clear").hidden = state.rows.length === 0;
}

// -- search ----------------------------------------------------------------------------------------

let searchAbort;

async function showSearch() {
  searchAbort?.abort();
  searchAbort = new AbortController();
  const text = byId("search").value.trim();
  const found = text ? (await attempt(() => api.search(text, searchAbort.signal)))?.items : [];
  if (!found) return;
  rememberTitles(found);
  showFound(found);
  if (text) announce(found.length ? `${found.length} items found` : "No item found");
}

function showFound(items) {
  const list = byId("found");
  const focused = list.contains(document.activeElement) ? document.activeElement.textContent : null;
  list.replaceChildren(...items.map((item) =>
    element("li", {}, element("button", { type: "button", onclick: () => addRow(item) }, label(item)))));
  if (focused === null) return;
  // the keyboard focus stays on its item, or returns to the search field
  const same = [...list.querySelectorAll("button")].find((button) => button.textContent === focused);
  (same ?? byId("search")).focus();
}

function moveFocus(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const buttons = [...byId("found").querySelectorAll("button")];
  if (event.key === "Escape") {
    byId("search").value = "";
    byId("search").focus();
    showSearch();
  }
  if (event.key === "Enter" && event.target === byId("search") && buttons.length) buttons[0].click();
  if (!step || !buttons.length) return;
  event.preventDefault();
  const place = buttons.indexOf(document.activeElement) + step;
  (place < 0 ? byId("search") : buttons[Math.min(place, buttons.length - 1)]).focus();
}

// -- the answer ------------------------------------------------------------------------------------

let recommendAbort;

function recommendRequest() {
  const request = { history: historyJson(state.rows), k: state.k, hide_seen: byId("hide-seen").checked };
  if (state.recency !== null) request.recency = state.recency;
  return request;
}

async function refresh() {
  showRows();
  recommendAbort?.abort();
  recommendAbort = new AbortController();
  const request = recommendRequest();
  const text = JSON.stringify(request);
  const answer = await attempt(() => api.recommend(request, recommendAbort.signal));
  if (!answer) return;
  rememberTitles(answer.items);
  const before = state.answer;
  // nothing has changed: leave the list alone, so that the keyboard focus in it is not lost
  if (text === state.requestText && JSON.stringify(answer) === JSON.stringify(before)) return;
  state.requestText = text;
  state.answer = answer;
  showAnswer(before);
  showComparison();
  announce(`${answer.items.length} recommendations`);
  if (answer.model !== state.model) await loadCard();
}

function showAnswer(before) {
  const { items, fallback } = state.answer;
  const most = Math.max(...items.map((item) => item.score), 1e-12);
  byId("fallback").hidden = !fallback;
  byId("fallback").textContent = fallback
    ? `${state.rows.length ? "The model knows none of this history" : "Without a history"}: these items are ${fallback}.` : "";
  const ranks = new Map(before?.items.map((item) => [item.item_id, item.rank]));
  byId("answer").replaceChildren(...items.map((item) => {
    const bar = element("div", { className: "bar" });
    bar.style.width = `calc(${Math.max(2, (100 * item.score) / most)}% - 2.1rem)`;
    return element("li", {},
      element("div", { className: "line" },
        element("span", { className: "rank" }, String(item.rank)),
        element("span", { className: "name" }, label(item)),
        rankChange(before && ranks.get(item.item_id), item.rank, before),
        element("span", { className: "score", title: "score" }, shortNumber(item.score)),
        element("button", { type: "button", "aria-label": `Add ${label(item)} to the history`, onclick: () => addRow(item) }, "Add"),
        element("button", { type: "button", "aria-label": `Similar to ${label(item)}`, onclick: () => showSimilar(item) }, "Similar")),
      bar,
      item.because?.length ? reasonDetails(item) : null);
  }));
}

function rankChange(before, now, hasBefore) {
  if (!hasBefore || before === now) return element("span", { className: "moved" });
  if (before === undefined) return element("span", { className: "moved up" }, "new");
  const up = before > now;
  const by = Math.abs(before - now);
  return element("span", { className: `moved ${up ? "up" : "down"}` },
    element("span", { className: "hidden" }, up ? `up ${by}` : `down ${by}`),
    element("span", { "aria-hidden": "true" }, `${up ? "▲" : "▼"} ${by}`));
}

function reasonDetails(item) {
  const names = item.because
    .map((one) => `${state.titles.get(one.item_id) ?? one.item_id} ${percent(one.share)}`).join(", ");
  const details = element("div", {});
  const request = recommendRequest();
  return element("details", {
    className: "because",
    ontoggle: async (event) => {
      if (!event.target.open || details.firstChild) return;
      const { history, recency } = request;
      const explanation = await attempt(() =>
        api.explain({ history, item_id: item.item_id, ...(recency && { recency }) }));
      if (explanation) details.replaceChildren(contributionTable(explanation));
    },
  }, element("summary", {}, `Because of ${names}`), details);
}

function contributionTable(explanation) {
  const lines = explanation.rows.toReversed().map((row) =>
    element("tr", {},
      element("td", {}, label(row)),
      element("td", {}, row.place === 0 ? "last" : `${row.place} back`),
      element("td", {}, row.weight === null ? "–" : percent(row.weight)),
      element("td", {}, shortNumber(row.contribution)),
      element("td", {}, percent(row.share))));
  const heads = ["History row", "Place", "Weight", "Contribution", "Share of score"];
  return element("table", {},
    element("caption", { className: "hidden" }, `What each row contributes to ${label(explanation)}`),
    element("thead", {}, element("tr", {}, ...heads.map((text) => element("th", { scope: "col" }, text)))),
    element("tbody", {}, ...lines));
}

// -- similar items, comparison ---------------------------------------------------------------------

async function showSimilar(item) {
  const found = await attempt(() => api.similar(item.item_id));
  if (!found) return;
  rememberTitles(found.items);
  byId("similar-note").textContent = `Expected right after ${label(found)}:`;
  byId("similar").replaceChildren(...found.items.map((one) =>
    element("li", {},
      element("div", { className: "line" },
        element("span", { className: "rank" }, String(one.rank)),
        element("span", { className: "name" }, label(one)),
        element("span", { className: "score" }, shortNumber(one.score)),
        element("button", { type: "button", "aria-label": `Add ${label(one)} to the history`, onclick: () => addRow(one) }, "Add")))));
  announce(`${found.items.length} items similar to ${label(found)}`);
}

function keepAnswer() {
  state.kept = { answer: state.answer, rows: [...state.rows] };
  showComparison();
}

function showComparison() {
  const { kept, answer } = state;
  byId("forget").hidden = byId("changed").hidden = !kept;
  byId("changed-rows").textContent = "";
  if (!kept) return;
  const now = new Map(answer.items.map((item) => [item.item_id, item]));
  const then = new Map(kept.answer.items.map((item) => [item.item_id, item]));
  const all = [...answer.items, ...kept.answer.items.filter((item) => !now.has(item.item_id))];
  byId("changed").tBodies[0].replaceChildren(...all.map((item) => {
    const [old, fresh] = [then.get(item.item_id)?.rank, now.get(item.item_id)?.rank];
    return element("tr", {},
      element("td", {}, label(item)),
      element("td", {}, old ? String(old) : "–"),
      element("td", {}, fresh ? String(fresh) : "–"),
      element("td", {}, fresh ? rankChange(old, fresh, true) : element("span", { className: "down" }, "gone")));
  }));
  const names = (rows) => rows.map(label).join(", ") || "no rows";
  byId("changed-rows").textContent = `Kept: after ${names(kept.rows)}. Now: after ${names(state.rows)}.`;
}

// -- the model -------------------------------------------------------------------------------------

function fillDefinitions(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) =>
    [element("dt", {}, name), element("dd", {}, String(value))]));
}

function showCard(card) {
  const { training } = card;
  const count = (number) => Number(number).toLocaleString("en");
  const metrics = Object.entries(card.metrics ?? {})
    .map(([name, value]) => `${name} ${shortNumber(value)}`).join(", ");
  byId("about").textContent =
    `${card.name.toUpperCase()}, learned from ${count(training.rows)} rows of ${count(training.users)} users and ` +
    `${count(training.items)} items, up to ${String(training.last_time).slice(0, 10)}.`;
  fillDefinitions(byId("card"), [
    ["Version", card.model],
    ["Model", card.name],
    ["Paper", card.paper],
    ["Data", `${count(training.rows)} rows, ${count(training.users)} users, ${count(training.items)} items`],
    ["Dates", `${String(training.first_time).slice(0, 10)} to ${String(training.last_time).slice(0, 10)}`],
    ["Saved", String(card.saved ?? "unknown").slice(0, 19).replace("T", " ")],
    ["Solver", card.solver ?? "none"],
    ["Metrics", metrics || "none were saved with the model"],
  ]);
  fillDefinitions(byId("params"), Object.entries(card.params));
  state.k = Math.min(10, training.items);
  state.model = card.model;
  const end = Date.parse(training.last_time);
  state.firstDate = day((Number.isNaN(end) ? Date.now() : end) + DAY);
  byId("recency").disabled = card.recency === null;
  if (card.recency === null) byId("recency-value").textContent = "not used by this model";
  else if (state.recency === null) {
    byId("recency").value = Math.log2(card.recency);
    showRecency(card.recency);
  }
}

function showRecency(value) {
  byId("recency-value").textContent = `${shortNumber(value)} rows`;
  byId("recency").setAttribute("aria-valuetext", byId("recency-value").textContent);
}

// -- shared ----------------------------------------------------------------------------------------

function rememberTitles(items) {
  for (const item of items) if (item.title) state.titles.set(item.item_id, item.title);
}

function announce(text) {
  byId("status").textContent = text;
}

async function attempt(request) {
  try {
    const answer = await request();
    byId("error").hidden = true;
    return answer;
  } catch (problem) {
    if (problem.name === "AbortError") return null;
    if (problem.status === 401) {
      byId("login").hidden = false;
      byId("token").focus();
    } else {
      byId("error").textContent = problem.message;
      byId("error").hidden = false;
    }
    return null;
  }
}

function debounce(work, wait) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
}

async function loadCard() {
  const card = await attempt(api.modelCard);
  if (card) showCard(card);
  return card;
}

async function start() {
  if (await loadCard()) await refresh();
}

byId("search").addEventListener("input", debounce(showSearch, 120));
byId("search").addEventListener("keydown", moveFocus);
byId("found").addEventListener("keydown", moveFocus);
byId("clear").addEventListener("click", () => {
  state.rows = [];
  refresh();
  byId("search").focus();
});
const refreshSoon = debounce(refresh, 60);
byId("recency").addEventListener("input", () => {
  state.recency = 2 ** Number(byId("recency").value);
  showRecency(state.recency);
  refreshSoon();
});
byId("hide-seen").addEventListener("change", refresh);
byId("keep").addEventListener("click", keepAnswer);
byId("forget").addEventListener("click", () => {
  state.kept = null;
  showComparison();
});
byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  api.useToken(byId("token").value);
  byId("token").value = "";
  byId("login").hidden = true;
  start();
});
start();
