// The page: a history, its recommendations with reasons, and the state of the service.

import * as api from "./api.js";
import { ask, explainAll, showAnswer, wanted } from "./answer.js";
import * as compare from "./compare.js";
import { announce, button, byId, count, debounce, element, shortNumber } from "./dom.js";
import * as history from "./history.js";
import * as impressions from "./impressions.js";
import { forgetItems, hasFilters, lookUp } from "./items.js";
import * as operations from "./operations.js";
import { day, readAddress, recommendRequest, state, takesRecency, writeAddress } from "./state.js";
import { attempt, onLogin, toast } from "./toasts.js";

const TABS = ["recommend", "operations", "impressions", "model"];
let last = null; // the last request and its answer
let abort;

// -- requests ----------------------------------------------------------------------------------------

async function refresh() {
  writeAddress();
  if (!state.card) return;
  abort?.abort();
  abort = new AbortController();
  const request = recommendRequest(wanted());
  const answer = await ask(request, { signal: abort.signal });
  if (!answer) return;
  const text = JSON.stringify([request, answer]);
  if (text !== last?.text) { // otherwise the list and the keyboard focus stay
    showAnswer(answer, last?.answer);
    announce(`${answer.shown.length} recommendations`);
    explainAll(answer);
  }
  last = { text, answer, request };
  compare.showComparison(answer);
  if (answer.model !== state.card.model) {
    forgetItems();
    await loadCard();
    refresh();
  }
}

const refreshSoon = debounce(refresh, 60);

// -- controls ----------------------------------------------------------------------------------------

function showControls() {
  byId("hide-seen").checked = state.hideSeen;
  byId("as-of").value = state.asOf ?? "";
  byId("words").value = state.words;
  byId("recency").disabled = !takesRecency();
  showRecency(state.recency ?? state.card.recency);
  compare.showChoices();
  showFilters();
}

// A model without a number as recency has learned it from the log, or does not use it.
function showRecency(value) {
  byId("recency").value = Math.log2(value ?? 4);
  byId("recency-value").textContent = !takesRecency() ? "not used by this model"
    : value === null ? "learned by the model" : `${shortNumber(value)} rows`;
  byId("own-recency").hidden = state.recency === null;
  byId("recency").setAttribute("aria-valuetext", byId("recency-value").textContent);
}

function showFilters() {
  const columns = Object.entries(state.card.columns ?? {});
  const listed = columns.filter(([, about]) => about.values?.length > 1);
  const numbers = columns.filter(([, about]) => typeof about.max === "number" && about.max > about.min);
  byId("column-filters").replaceChildren(
    ...listed.map(([name, about]) => selectFilter(name, about.values)),
    ...numbers.map(([name, about]) => numberFilter(name, about)));
  byId("left-out").replaceChildren(...state.without.map((pair) =>
    element("li", {}, button(`${pair.slice(pair.indexOf("=") + 1)} ×`, () => putBack(pair), {
      className: "chip", "aria-label": `Show ${pair.slice(pair.indexOf("=") + 1)} again`,
    }))));
}

function selectFilter(name, values) {
  const id = `filter-${name}`;
  const choice = element("select", { id, onchange: () => {
    if (!choice.value) return;
    state.without = [...new Set([...state.without, `${name}=${choice.value}`])];
    showFilters();
    byId(id).focus();
    refresh();
  } }, element("option", { value: "" }, "choose one"), ...values.map((value) => element("option", { value }, value)));
  return element("div", {}, element("label", { htmlFor: id }, `Exclude a ${name}`), choice);
}

function numberFilter(name, { min, max }) {
  const id = `filter-${name}`;
  const field = element("input", { id, type: "number", min, max, step: "any", value: state.most[name] ?? "", placeholder: `up to ${shortNumber(max)}`,
    onchange: () => {
      if (field.value === "") delete state.most[name];
      else state.most[name] = field.value;
      refresh();
    } });
  return element("div", {}, element("label", { htmlFor: id }, `Maximum ${name}`), field);
}

function putBack(pair) {
  state.without = state.without.filter((one) => one !== pair);
  showFilters();
  byId("words").focus();
  refresh();
}

async function copy(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    announce(`${what} copied`);
    byId("copied").textContent = `${what} copied.`;
  } catch { // not allowed, or no secure address
    byId("to-copy").value = text;
    byId("copy-box").showModal();
    byId("to-copy").select();
  }
}

// -- tabs and the model ------------------------------------------------------------------------------

function showTab() {
  for (const name of TABS) {
    const chosen = name === state.tab;
    byId(`tab-${name}`).setAttribute("aria-selected", String(chosen));
    byId(`tab-${name}`).tabIndex = chosen ? 0 : -1;
    byId(`panel-${name}`).hidden = !chosen;
  }
  operations.watch();
  impressions.watch();
}

function chooseTab(name) {
  state.tab = name;
  writeAddress();
  showTab();
}

function onTabKey(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  const next = TABS.at((TABS.indexOf(state.tab) + step) % TABS.length);
  chooseTab(next);
  byId(`tab-${next}`).focus();
}

function fillDefinitions(list, entries) {
  list.replaceChildren(...entries.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, String(value))]));
}

function showCard(card) {
  const { training } = card;
  const metrics = Object.entries(card.metrics ?? {}).map(([name, value]) => `${name} ${shortNumber(value)}`).join(", ");
  byId("about").textContent =
    `${card.name}, fitted on ${count(training.rows)} rows of ${count(training.users)} users and ` +
    `${count(training.items)} items, up to ${String(training.last_time).slice(0, 10)}`;
  fillDefinitions(byId("card"), [
    ["Version", card.model],
    ["Model", card.name],
    ...(card.paper ? [["Paper", card.paper]] : []),
    ["Data", `${count(training.rows)} rows, ${count(training.users)} users, ${count(training.items)} items`],
    ["Dates", `${String(training.first_time).slice(0, 10)} to ${String(training.last_time).slice(0, 10)}`],
    ["Saved", String(card.saved ?? "unknown").slice(0, 19).replace("T", " ")],
    ["Solver", card.solver ?? "none"],
    ["Metrics", metrics || "none were saved with the model"],
  ]);
  fillDefinitions(byId("params"), Object.entries(card.params));
}

async function loadCard() {
  const card = await attempt(() => api.modelCard());
  if (!card) return null;
  state.card = card;
  const described = await attempt(() => api.document());
  state.takesWhere = Boolean(described?.components.schemas.RecommendRequest.properties.where);
  const stats = await attempt(() => api.stats());
  state.hasStore = Boolean(stats?.store);
  showCard(card);
  return card;
}

// -- start -------------------------------------------------------------------------------------------

const hasSettings = () => Boolean(hasFilters() || state.asOf || state.recency !== null || state.versus || !state.hideSeen);

async function open() {
  readAddress();
  if (hasSettings()) byId("settings").open = true;
  showTab();
  if (!(await loadCard())) return;
  if (state.user !== null && !(await history.loadUser(state.user))) state.user = null;
  else await lookUp(history.shownIds());
  history.showRows();
  showControls();
  await refresh();
}

function listen() {
  byId("hide-seen").addEventListener("change", () => {
    state.hideSeen = byId("hide-seen").checked;
    refresh();
  });
  byId("recency").addEventListener("input", () => {
    state.recency = 2 ** Number(byId("recency").value);
    showRecency(state.recency);
    refreshSoon();
  });
  byId("own-recency").addEventListener("click", () => {
    state.recency = null;
    showRecency(state.card.recency);
    byId("recency").focus();
    refresh();
  });
  byId("as-of").addEventListener("change", () => {
    state.asOf = byId("as-of").value || null;
    refresh();
  });
  byId("today").addEventListener("click", () => {
    byId("as-of").value = state.asOf = day(Date.now());
    refresh();
  });
  byId("words").addEventListener("input", () => {
    state.words = byId("words").value;
    refreshSoon();
  });
  byId("copy-link").addEventListener("click", () => copy(location.href, "Link"));
  byId("copy-curl").addEventListener("click", () => last && copy(api.asCurl(last.request), "Command"));
  byId("copy-close").addEventListener("click", () => byId("copy-box").close());
  for (const name of TABS) byId(`tab-${name}`).addEventListener("click", () => chooseTab(name));
  byId("tabs").addEventListener("keydown", onTabKey);
  addEventListener("hashchange", open);
  addEventListener("unhandledrejection", () => toast("An error occurred on this page. Reload it."));
}

byId("settings").open = !matchMedia("(max-width: 60rem)").matches; // on a phone, recommendations come first
history.start(refresh);
compare.start(refresh);
onLogin(open);
listen();
open();
