// The page: a history that people build, the answer to it, and why.

import * as api from "./api.js";
import { at, make, named, percent, short } from "./dom.js";

const DAY = 86_400_000;
const state = {
  rows: [], // oldest first: {item_id, title, date}
  titles: new Map(), // titles of what has been seen, by id
  recency: null, // null: the model's own
  answer: null,
  kept: null,
  model: null, // the version whose card is shown
  began: null, // the date of a first row: the day after the model's data end
};

// -- history ---------------------------------------------------------------------------------------

const day = (time) => new Date(time).toISOString().slice(0, 10);

function nextDate() {
  const last = state.rows.at(-1);
  return last ? day(Date.parse(last.date) + DAY) : state.began;
}

function addRow(item) {
  state.rows.push({ item_id: item.item_id, title: item.title, date: nextDate() });
  say(`${named(item)} added to the history`);
  changed();
}

function removeRow(row) {
  const place = state.rows.indexOf(row);
  state.rows.splice(place, 1);
  changed();
  const left = at("rows").querySelectorAll(".remove");
  (left[Math.min(state.rows.length - place, left.length - 1)] ?? at("search")).focus();
}

function dateRow(row, date) {
  if (!date) return;
  row.date = date;
  state.rows.sort((a, b) => (a.date < b.date ? -1 : a.date > b.date ? 1 : 0));
  changed();
}

const asHistory = (rows) =>
  rows.map((row) => ({ item_id: row.item_id, timestamp: `${row.date}T00:00:00Z` }));

function showRows() {
  const lines = state.rows.toReversed().map((row) =>
    make("li", {},
      make("span", { className: "name" }, named(row)),
      make("input", {
        type: "date", value: row.date, required: true, "aria-label": `Date of ${named(row)}`,
        onchange: (event) => dateRow(row, event.target.value),
      }),
      make("button", { type: "button", "aria-label": `Similar to ${named(row)}`, onclick: () => showSimilar(row) }, "≈"),
      make("button", {
        type: "button", className: "remove", "aria-label": `Remove ${named(row)}`, onclick: () => removeRow(row),
      }, "×")));
  at("rows").replaceChildren(...lines);
  at("empty").hidden = state.rows.length > 0;
  at("clear").hidden = state.rows.length === 0;
}

// -- search ----------------------------------------------------------------------------------------

let searching;

async function find() {
  searching?.abort();
  searching = new AbortController();
  const text = at("search").value.trim();
  const found = text ? (await guarded(() => api.search(text, searching.signal)))?.items : [];
  if (!found) return;
  learn(found);
  at("found").replaceChildren(...found.map((item) =>
    make("li", {}, make("button", { type: "button", onclick: () => addRow(item) }, named(item)))));
  if (text) say(found.length ? `${found.length} items found` : "No item found");
}

function walk(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const buttons = [...at("found").querySelectorAll("button")];
  if (event.key === "Escape") {
    at("search").value = "";
    at("search").focus();
    find();
  }
  if (event.key === "Enter" && event.target === at("search") && buttons.length) buttons[0].click();
  if (!step || !buttons.length) return;
  event.preventDefault();
  const place = buttons.indexOf(document.activeElement) + step;
  (place < 0 ? at("search") : buttons[Math.min(place, buttons.length - 1)]).focus();
}

// -- the answer ------------------------------------------------------------------------------------

let asking;

function wish() {
  const made = { history: asHistory(state.rows), k: state.k, hide_seen: at("hide-seen").checked };
  if (state.recency !== null) made.recency = state.recency;
  return made;
}

async function changed() {
  showRows();
  asking?.abort();
  asking = new AbortController();
  const wanted = JSON.stringify(wish());
  const answer = await guarded(() => api.recommend(wish(), asking.signal));
  if (!answer) return;
  learn(answer.items);
  const before = state.answer;
  // the same answer to the same question: whoever stands in the list with the keyboard stays there
  if (wanted === state.wanted && JSON.stringify(answer) === JSON.stringify(before)) return;
  state.wanted = wanted;
  state.answer = answer;
  showAnswer(before);
  showChanged();
  say(`${answer.items.length} recommendations`);
  if (answer.model !== state.model) await refreshCard();
}

function showAnswer(before) {
  const { items, fallback } = state.answer;
  const most = Math.max(...items.map((item) => item.score), 1e-12);
  at("fallback").hidden = !fallback;
  at("fallback").textContent = fallback
    ? `${state.rows.length ? "The model knows none of this history" : "Without a history"}: this is what is ${fallback}.` : "";
  const ranks = new Map(before?.items.map((item) => [item.item_id, item.rank]));
  at("answer").replaceChildren(...items.map((item) => {
    const bar = make("div", { className: "bar" });
    bar.style.width = `calc(${Math.max(2, (100 * item.score) / most)}% - 2.1rem)`;
    return make("li", {},
      make("div", { className: "line" },
        make("span", { className: "rank" }, String(item.rank)),
        make("span", { className: "name" }, named(item)),
        move(before && ranks.get(item.item_id), item.rank, before),
        make("span", { className: "score", title: "score" }, short(item.score)),
        make("button", { type: "button", "aria-label": `Add ${named(item)} to the history`, onclick: () => addRow(item) }, "Add"),
        make("button", { type: "button", "aria-label": `Similar to ${named(item)}`, onclick: () => showSimilar(item) }, "Similar")),
      bar,
      item.because?.length ? reasons(item) : null);
  }));
}

function move(before, now, known) {
  if (!known || before === now) return make("span", { className: "moved" });
  if (before === undefined) return make("span", { className: "moved up" }, "new");
  const up = before > now;
  const by = Math.abs(before - now);
  return make("span", { className: `moved ${up ? "up" : "down"}` },
    make("span", { className: "hidden" }, up ? `up ${by}` : `down ${by}`),
    make("span", { "aria-hidden": "true" }, `${up ? "▲" : "▼"} ${by}`));
}

function reasons(item) {
  const said = item.because
    .map((one) => `${state.titles.get(one.item_id) ?? one.item_id} ${percent(one.share)}`).join(", ");
  const where = make("div", {});
  const asked = wish();
  return make("details", {
    className: "because",
    ontoggle: async (event) => {
      if (!event.target.open || where.firstChild) return;
      const { history, recency } = asked;
      const why = await guarded(() =>
        api.explain({ history, item_id: item.item_id, ...(recency && { recency }) }));
      if (why) where.replaceChildren(explained(why));
    },
  }, make("summary", {}, `Because of ${said}`), where);
}

function explained(why) {
  const lines = why.rows.toReversed().map((row) =>
    make("tr", {},
      make("td", {}, named(row)),
      make("td", {}, row.place === 0 ? "last" : `${row.place} back`),
      make("td", {}, row.weight === null ? "–" : percent(row.weight)),
      make("td", {}, short(row.contribution)),
      make("td", {}, percent(row.share))));
  const heads = ["History row", "Place", "Its place leaves", "Gives", "Of the score"];
  return make("table", {},
    make("caption", { className: "hidden" }, `What each row gives to ${named(why)}`),
    make("thead", {}, make("tr", {}, ...heads.map((text) => make("th", { scope: "col" }, text)))),
    make("tbody", {}, ...lines));
}

// -- similar items, what changed -------------------------------------------------------------------

async function showSimilar(item) {
  const found = await guarded(() => api.similar(item.item_id));
  if (!found) return;
  learn(found.items);
  at("similar-note").textContent = `What is expected right after ${named(found)}:`;
  at("similar").replaceChildren(...found.items.map((one) =>
    make("li", {},
      make("div", { className: "line" },
        make("span", { className: "rank" }, String(one.rank)),
        make("span", { className: "name" }, named(one)),
        make("span", { className: "score" }, short(one.score)),
        make("button", { type: "button", "aria-label": `Add ${named(one)} to the history`, onclick: () => addRow(one) }, "Add")))));
  say(`${found.items.length} items similar to ${named(found)}`);
}

function keep() {
  state.kept = { answer: state.answer, rows: [...state.rows] };
  showChanged();
}

function showChanged() {
  const { kept, answer } = state;
  at("forget").hidden = at("changed").hidden = !kept;
  at("changed-rows").textContent = "";
  if (!kept) return;
  const now = new Map(answer.items.map((item) => [item.item_id, item]));
  const then = new Map(kept.answer.items.map((item) => [item.item_id, item]));
  const all = [...answer.items, ...kept.answer.items.filter((item) => !now.has(item.item_id))];
  at("changed").tBodies[0].replaceChildren(...all.map((item) => {
    const [old, fresh] = [then.get(item.item_id)?.rank, now.get(item.item_id)?.rank];
    return make("tr", {},
      make("td", {}, named(item)),
      make("td", {}, old ? String(old) : "–"),
      make("td", {}, fresh ? String(fresh) : "–"),
      make("td", {}, fresh ? move(old, fresh, true) : make("span", { className: "down" }, "gone")));
  }));
  const names = (rows) => rows.map(named).join(", ") || "nothing";
  at("changed-rows").textContent = `Kept: after ${names(kept.rows)}. Now: after ${names(state.rows)}.`;
}

// -- the model -------------------------------------------------------------------------------------

function pairs(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) =>
    [make("dt", {}, name), make("dd", {}, String(value))]));
}

function showCard(card) {
  const { training } = card;
  const count = (number) => Number(number).toLocaleString("en");
  const metrics = Object.entries(card.metrics ?? {})
    .map(([name, value]) => `${name} ${short(value)}`).join(", ");
  at("about").textContent =
    `${card.name.toUpperCase()}, learned from ${count(training.rows)} rows of ${count(training.users)} users and ` +
    `${count(training.items)} items, up to ${String(training.last_time).slice(0, 10)}.`;
  pairs(at("card"), [
    ["Version", card.model],
    ["Model", card.name],
    ["Paper", card.paper],
    ["Data", `${count(training.rows)} rows, ${count(training.users)} users, ${count(training.items)} items`],
    ["Dates", `${String(training.first_time).slice(0, 10)} to ${String(training.last_time).slice(0, 10)}`],
    ["Saved", String(card.saved ?? "unknown").slice(0, 19).replace("T", " ")],
    ["Solver", card.solver ?? "none"],
    ["Metrics", metrics || "none were saved with it"],
  ]);
  pairs(at("params"), Object.entries(card.params));
  state.k = Math.min(10, training.items);
  state.model = card.model;
  const end = Date.parse(training.last_time);
  state.began = day((Number.isNaN(end) ? Date.now() : end) + DAY);
  at("recency").disabled = card.recency === null;
  if (card.recency === null) at("recency-value").textContent = "this model has none";
  else if (state.recency === null) {
    at("recency").value = Math.log2(card.recency);
    showRecency(card.recency);
  }
}

function showRecency(value) {
  at("recency-value").textContent = `${short(value)} places`;
  at("recency").setAttribute("aria-valuetext", at("recency-value").textContent);
}

// -- everything ------------------------------------------------------------------------------------

function learn(items) {
  for (const item of items) if (item.title) state.titles.set(item.item_id, item.title);
}

function say(text) {
  at("status").textContent = text;
}

async function guarded(request) {
  try {
    const answer = await request();
    at("error").hidden = true;
    return answer;
  } catch (problem) {
    if (problem.name === "AbortError") return null;
    if (problem.status === 401) {
      at("login").hidden = false;
      at("token").focus();
    } else {
      at("error").textContent = problem.message;
      at("error").hidden = false;
    }
    return null;
  }
}

function later(work, wait) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
}

async function refreshCard() {
  const card = await guarded(api.card);
  if (card) showCard(card);
  return card;
}

async function begin() {
  if (await refreshCard()) await changed();
}

at("search").addEventListener("input", later(find, 120));
at("search").addEventListener("keydown", walk);
at("found").addEventListener("keydown", walk);
at("clear").addEventListener("click", () => {
  state.rows = [];
  changed();
  at("search").focus();
});
const moved = later(changed, 60);
at("recency").addEventListener("input", () => {
  state.recency = 2 ** Number(at("recency").value);
  showRecency(state.recency);
  moved();
});
at("hide-seen").addEventListener("change", changed);
at("keep").addEventListener("click", keep);
at("forget").addEventListener("click", () => {
  state.kept = null;
  showChanged();
});
at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  api.useToken(at("token").value);
  at("token").value = "";
  at("login").hidden = true;
  begin();
});
begin();
