// Online evaluation of the models on arriving events, and the learning process, from /v1/stats.

import { byId, count, element, percent, shortNumber } from "./dom.js";
import { age, tile } from "./tiles.js";

const METRICS = ["HR@10", "MRR@10"];
const KEPT = 90; // values of a sparkline
const before = { hour: [] };

const figure = (value) => (value === undefined || value === null ? "–" : value.toFixed(3));
const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value).toFixed(3)}`;

export function showLive(stats, eventRates) {
  const shown = Boolean(stats?.store || stats?.measured || stats?.candidate);
  byId("live").hidden = !shown;
  if (!shown) return;
  const measured = stats.measured;
  byId("live-tiles").replaceChildren(
    eventsTile(stats, eventRates), ...(measured ? measuredTiles(measured) : []), learningTile(stats.learning));
  showModels(measured);
  showDifference(stats);
}

function eventsTile({ store, events }, rates) {
  const items = store?.items ? `, ${count(store.items)} items` : "";
  const kept = `${count(events.events_accepted ?? 0)} stored, ${count(events.events_waiting ?? 0)} waiting${items}`;
  const answers = store?.answers ?? true;
  return tile("Events per second", shortNumber(Math.max(0, rates.at(-1) ?? 0)), answers ? kept : "the store does not respond", rates, !answers);
}

function measuredTiles(measured) {
  const { hour } = measured;
  const now = hour.current;
  if (now) {
    before.hour.push(now["HR@10"]);
    if (before.hour.length > KEPT) before.hour.shift();
  }
  const whose = `${percent(measured.share)} of users`;
  const behind = measured.left_out ? `${count(measured.left_out)} skipped` : `${count(measured.behind)} events waiting`;
  const notMeasured = Object.values(hour.not_measured?.current ?? {}).reduce((sum, n) => sum + n, 0);
  const waiting = notMeasured ? `${behind}, ${count(notMeasured)} not measured` : behind;
  return [
    tile("Online HR@10, last hour", figure(now?.["HR@10"]), now ? `${count(now.events)} events of ${whose}` : `no events of ${whose} yet`, before.hour),
    tile("Online MRR@10, last hour", figure(now?.["MRR@10"]), waiting, null, measured.left_out > 0),
  ];
}

// The state of the learning process; times are in seconds since 1970.
function learningTile(learning) {
  if (!learning) return tile("Learning", "off", "the model is not refitted");
  const { learned, error, next } = learning;
  const since = learned ? `${count(learned.rows)} rows, refitted ${age(Math.max(0, Date.now() / 1000 - learned.at))} ago` : "no refit yet";
  const soon = next ? `, next in ${age(Math.max(0, next - Date.now() / 1000))}` : "";
  return tile("Learning", String(learning.state ?? "on"), error ? `failed; the previous model stays: ${error}` : since + soon, null, Boolean(error));
}

function showModels(measured) {
  const [hour, day] = [measured?.hour.models ?? [], measured?.day.models ?? []];
  const known = new Map([...hour, ...day].map((one) => [`${one.role} ${one.version}`, one]));
  const of = (window, { role, version }) => window.find((one) => one.role === role && one.version === version);
  byId("live-models-box").hidden = !known.size;
  byId("live-models").tBodies[0].replaceChildren(...[...known.values()].map((one) => {
    const cells = [hour, day].flatMap((window) => {
      const found = of(window, one);
      return [found ? count(found.events) : "–", ...METRICS.map((name) => figure(found?.[name]))];
    });
    return element("tr", {}, element("th", { scope: "row" }, `${one.version.slice(0, 8)}, ${one.role}`),
      ...cells.map((text) => element("td", {}, text)));
  }));
}

function verdict([low, high]) {
  if (low > 0) return "The candidate is better";
  if (high < 0) return "The candidate is worse";
  return "No significant difference yet";
}

function showDifference({ candidate, measured }) {
  byId("difference-box").hidden = !candidate;
  if (!candidate) return;
  byId("candidate-about").textContent =
    `Candidate ${candidate.model.slice(0, 8)} answers ${percent(candidate.share)} of users; both models are evaluated on the same events.`;
  const rows = ["hour", "day"].flatMap((window) => {
    const found = measured?.[window].difference;
    if (!found) return [];
    return METRICS.map((name) => {
      const { difference, interval } = found[name];
      const tone = interval[0] > 0 ? "up" : interval[1] < 0 ? "down" : "";
      return element("tr", {}, element("th", { scope: "row" }, `${name}, last ${window}`),
        element("td", { className: tone }, signed(difference)),
        element("td", {}, `${signed(interval[0])} to ${signed(interval[1])}`),
        element("td", {}, `${count(found.events)} of ${count(found.users)} users`),
        element("td", {}, verdict(interval)));
    });
  });
  byId("difference").hidden = !rows.length;
  byId("difference").tBodies[0].replaceChildren(...rows);
}
