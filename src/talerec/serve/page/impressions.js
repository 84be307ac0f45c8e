// Impressions: what was shown and clicked, from /v1/stats, read every five seconds while the tab is open.

import * as api from "./api.js";
import { byId, count, drawing, element, percent } from "./dom.js";
import { state } from "./state.js";
import { age, tile } from "./tiles.js";
import { attempt } from "./toasts.js";

const EVERY_MS = 5000;
const REASONS = {
  other_user: "by another user", not_shown: "on items that were not in the list", early: "before the answer",
  late: "too late", repeated: "repeated", negative: "negative feedback",
};
let timer;

export function watch() {
  clearTimeout(timer);
  if (state.tab === "impressions") look();
}

async function look() {
  const stats = await attempt(api.stats);
  if (stats) show(stats.impressions);
  if (state.tab === "impressions") timer = setTimeout(look, EVERY_MS);
}

const rate = (value) => (value === null || value === undefined ? "–" : `${(100 * value).toFixed(2)} %`);
const points = (value) => `${value < 0 ? "−" : "+"}${pointsOf(100 * Math.abs(value))}`;
const pointsOf = (size) => Number(size >= 0.1 ? size.toFixed(2) : size.toPrecision(2)).toString();
const between = ([low, high]) => `${(100 * low).toFixed(2)} to ${(100 * high).toFixed(2)} %`;

function show(figures) {
  const isCounted = Boolean(figures?.answers);
  byId("no-impressions").hidden = isCounted;
  byId("impressions").hidden = !isCounted;
  if (!isCounted) {
    byId("no-impressions").textContent = !figures
      ? "This service keeps no impressions: start it with --store and --impressions 0.1."
      : figures.answers === 0 && !figures.queue.queued ? "Nothing was shown yet. Figures follow the first answers within seconds."
        : "The first figures are being counted…";
    return;
  }
  byId("impression-tiles").replaceChildren(...tiles(figures));
  showComparison(figures);
  fill("rates-by-model", Object.entries(figures.by_model).map(([model, row]) => [`${model.slice(0, 8)}, ${row.role}`, row]));
  fill("rates-by-rank", Object.entries(figures.by_rank));
  fill("rates-by-list", Object.entries(figures.by_list).map(([name, row]) => [name === "recommend" ? "personal lists" : name, row]));
  const left = Object.entries(figures.not_clicks).filter(([, n]) => n);
  byId("not-clicks").textContent = left.length
    ? `Events that are no clicks: ${left.map(([reason, n]) => `${count(n)} ${REASONS[reason] ?? reason}`).join(", ")}.` : "";
}

function tiles(figures) {
  const { queue, explored } = figures;
  const [since, counted] = [figures.since, figures.counted_at].map((time) => age(Math.max(0, Date.now() / 1000 - time)));
  const boxes = [
    tile("Answers", count(figures.answers), `${count(figures.impressions)} shown items, ${percent(figures.share)} of users`),
    tile("Clicks", count(figures.clicks), `within ${age(figures.attribution)} of an answer`),
    tile("Click rate", rate(figures.ctr), `95 %: ${between(figures.interval)}; ${count(figures.users)} users`),
    tile("Not kept", count(queue.lost), `${count(queue.written)} answers written since the start`, null, queue.lost > 0),
    tile("Period", since, `since the first answer; at most four weeks, or the latest 100,000 answers. Counted ${counted} ago`),
  ];
  if (explored) boxes.push(tile("Explored items", rate(explored.ctr), `${count(explored.impressions)} shown, 95 %: ${between(explored.interval)}`));
  return boxes;
}

function showComparison(figures) {
  const comparison = figures.comparison;
  byId("clicks-difference").hidden = !comparison;
  if (!comparison) return;
  const { difference, interval, advice, users, ctr } = comparison, window = age(figures.attribution);
  const tone = interval === null ? "" : interval[0] > 0 ? "up" : interval[1] < 0 ? "down" : "";
  byId("advice").className = tone;
  byId("advice").textContent = `${advice[0].toUpperCase()}${advice.slice(1)}.`;
  const span = interval === null ? "no interval yet" : `${points(interval[0])} to ${points(interval[1])}`;
  byId("difference-about").textContent =
    `Of 100 shown items, a user clicks on ${(100 * ctr.current).toFixed(2)} with the current model (${count(users.current)} users) ` +
    `and on ${(100 * ctr.candidate).toFixed(2)} with the candidate ${comparison.candidate.slice(0, 8)} (${count(users.candidate)} users): ` +
    `${points(difference)} percentage points (${span}, valid however often you look). ` +
    `Each user counts once, with the first ${window} of the comparison, so these rates differ a little from those below.`;
}

// Rows of a table: a name, counts, and the rate with a drawing of its interval on one scale.
function fill(table, entries) {
  const most = Math.max(...entries.map(([, row]) => row.interval[1]), 1e-9);
  byId(table).tBodies[0].replaceChildren(...entries.map(([name, row]) => element("tr", {},
    element("th", { scope: "row" }, name), element("td", {}, count(row.impressions)), element("td", {}, count(row.clicks)),
    element("td", {}, rate(row.ctr)), element("td", {}, between(row.interval)), element("td", {}, span(row, most)))));
}

function span({ ctr, interval }, most) {
  const [low, middle, high] = [interval[0], ctr ?? 0, interval[1]].map((value) => (100 * value) / most);
  return drawing("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "interval", "aria-hidden": "true" },
    drawing("line", { x1: low, x2: high, y1: 5, y2: 5 }), drawing("rect", { x: Math.max(0, middle - 0.75), y: 1, width: 1.5, height: 8 }));
}
