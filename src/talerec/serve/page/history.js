// The history: that of a user of the log, or one that is built here.

import * as api from "./api.js";
import { announce, button, byId, count, debounce, element, label } from "./dom.js";
import { itemOf, lookUp, remember } from "./items.js";
import { midnight, nextTime, state } from "./state.js";
import { attempt } from "./toasts.js";

const SHOWN = 12; // rows, until all are requested
let onChange = () => {};
let showAll = false;
const EVERY_MS = 2000; // between checks for new events of the user
let timer;
let fresh = new Set(); // rows that have just arrived

// -- rows --------------------------------------------------------------------------------------------

export function addRow(item) {
  remember([item]);
  state.rows.push({ item_id: item.item_id, timestamp: nextTime() });
  changed(`${label(item)} added to the history`);
}

function removeRow(row) {
  const place = state.rows.length - 1 - state.rows.indexOf(row);
  state.rows.splice(state.rows.indexOf(row), 1);
  changed(`${label(itemOf(row.item_id))} removed`);
  const left = byId("rows").querySelectorAll(".remove");
  (left[Math.min(place, left.length - 1)] ?? byId("search")).focus();
}

function setDate(row, date) {
  if (!date) return;
  row.timestamp = midnight(date);
  state.rows.sort((a, b) => Date.parse(a.timestamp) - Date.parse(b.timestamp));
  changed(`${label(itemOf(row.item_id))} is now dated ${date}`);
}

function changed(text) {
  state.user = null;
  announce(text);
  showRows();
  onChange();
}

export function showRows() {
  const newest = state.rows.toReversed();
  const shown = showAll ? newest : newest.slice(0, SHOWN);
  byId("rows").replaceChildren(...shown.map(rowLine));
  byId("empty").hidden = state.rows.length > 0;
  byId("clear").hidden = state.rows.length === 0;
  byId("all-rows").hidden = showAll || newest.length <= SHOWN;
  byId("all-rows").textContent = `Show all ${count(newest.length)} rows`;
  byId("who").textContent = state.user === null ? (state.rows.length ? "Custom history" : "No user selected")
    : `User ${state.user}, ${count(state.rows.length)} rows`;
}

function rowLine(row) {
  const name = label(itemOf(row.item_id));
  return element("li", { className: fresh.has(key(row)) ? "fresh" : "" },
    element("span", { className: "name" }, name),
    element("input", {
      type: "date", value: row.timestamp.slice(0, 10), required: true, "aria-label": `Date of ${name}`,
      onchange: (event) => setDate(row, event.target.value),
    }),
    button("×", () => removeRow(row), { className: "remove", "aria-label": `Remove ${name}` }));
}

// -- users -------------------------------------------------------------------------------------------

export async function loadUser(id) {
  const found = await attempt(() => api.user(id));
  if (!found) return false;
  state.user = String(found.user_id);
  fresh = new Set();
  state.rows = found.history;
  showAll = false;
  await lookUp(shownIds());
  watchUser();
  return true;
}

// Events of the user that arrive while the page is open are added to the rows, marked as new.
function watchUser() {
  clearTimeout(timer);
  byId("arriving").textContent = "";
  if (state.user !== null && state.hasStore) timer = setTimeout(lookAtUser, EVERY_MS);
}

async function lookAtUser() {
  const id = state.user;
  const found = document.hidden || id === null ? null : await attempt(() => api.user(id));
  if (id === null || id !== state.user) return;
  const known = new Map();
  for (const row of state.rows) known.set(key(row), (known.get(key(row)) ?? 0) + 1);
  const isNew = (row) => {
    const left = known.get(key(row)) ?? 0;
    known.set(key(row), left - 1);
    return left <= 0;
  };
  const arrived = (found?.history ?? []).filter(isNew);
  if (arrived.length) {
    state.rows = found.history;
    fresh = new Set(arrived.map(key));
    await lookUp(shownIds());
    showRows();
    byId("arriving").textContent = `${count(arrived.length)} new ${arrived.length === 1 ? "event" : "events"} at ${new Date().toLocaleTimeString("en")}`;
    onChange();
  }
  timer = setTimeout(lookAtUser, EVERY_MS);
}

const key = (row) => `${row.timestamp} ${row.item_id}`;

export const shownIds = () => state.rows.slice(-SHOWN).map((row) => row.item_id);

async function chooseUser(id) {
  if (!(await loadUser(id))) return;
  byId("user").value = "";
  users.show([]);
  showRows();
  announce(`User ${id}, ${state.rows.length} rows`);
  onChange();
}

// -- a search field with its results ---------------------------------------------------------------

class Finder {
  constructor(field, list, { find, text, choose }) {
    Object.assign(this, { field: byId(field), list: byId(list), find, text, choose, found: [], asked: "" });
    this.field.addEventListener("input", debounce(() => this.search(), 120));
    this.field.addEventListener("keydown", (event) => this.onKey(event));
    this.list.addEventListener("keydown", (event) => this.onKey(event));
  }

  // Searches for the present text of the field. A search for an earlier text is aborted; one for the
  // same text is waited for, so that typing cannot abort the search that Enter has begun.
  search() {
    const text = this.field.value.trim();
    if (this.searching?.text === text) return this.searching.done;
    this.searching?.abort.abort();
    const searching = { text, abort: new AbortController() };
    this.searching = searching;
    searching.done = this.searchFor(text, searching.abort.signal).finally(() => {
      if (this.searching === searching) this.searching = null;
    });
    return searching.done;
  }

  async searchFor(text, signal) {
    const found = text ? await attempt(() => this.find(text, signal)) : [];
    if (!found) return false;
    this.asked = text;
    this.show(found);
    if (text) announce(found.length ? `${found.length} found` : "Nothing found");
    return true;
  }

  show(found) {
    this.found = found;
    const focused = this.list.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.list.replaceChildren(...found.map((one) =>
      element("li", {}, button(this.text(one), () => this.choose(one)))));
    if (!found.length && this.field.value.trim()) this.list.append(element("li", { className: "note" }, "Nothing found."));
    if (focused === null) return;
    const same = this.buttons().find((one) => one.textContent === focused); // the focus stays where it was
    (same ?? this.field).focus();
  }

  buttons() {
    return [...this.list.querySelectorAll("button")];
  }

  async onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      this.field.value = "";
      this.field.focus();
      this.show([]);
    }
    if (event.key === "Enter" && event.target === this.field) {
      event.preventDefault();
      // the list may show the results of an earlier text
      if (this.asked === this.field.value.trim() || (await this.search())) {
        if (this.found.length) this.choose(this.found[0]);
      }
    }
    if (!step || !this.found.length) return;
    event.preventDefault();
    const buttons = this.buttons();
    const place = buttons.indexOf(document.activeElement) + step;
    (place < 0 ? this.field : buttons[Math.min(place, buttons.length - 1)]).focus();
  }
}

let users;

export function start(whenChanged) {
  onChange = whenChanged;
  new Finder("search", "found", {
    find: async (text, signal) => {
      const { items } = await api.searchItems(text, signal);
      remember(items);
      return items;
    },
    text: label,
    choose: addRow,
  });
  users = new Finder("user", "users", {
    find: async (text, signal) => (await api.searchUsers(text, signal)).users,
    text: String,
    choose: chooseUser,
  });
  byId("clear").addEventListener("click", () => {
    state.rows = [];
    changed("The history is empty");
    byId("search").focus();
  });
  byId("all-rows").addEventListener("click", async () => {
    showAll = true;
    await lookUp(state.rows.map((row) => row.item_id));
    showRows();
    byId("rows").querySelectorAll(".remove")[SHOWN]?.focus();
  });
}
