// Operations: /metrics and /v1/stats, read every two seconds while the tab is open.

import * as api from "./api.js";
import { byId, count, element, shortNumber } from "./dom.js";
import { showLive } from "./live.js";
import { state } from "./state.js";
import { age, tile } from "./tiles.js";
import { attempt } from "./toasts.js";

const EVERY_MS = 2000;
const KEPT = 90; // samples: three minutes
const samples = [];
let timer;

// Returns every line of the Prometheus text format as {name, labels, value}.
function parse(text) {
  return text.split("\n").filter((line) => line && !line.startsWith("#")).map((line) => {
    const [, name, labels, value] = line.match(/^(\w+)(?:\{(.*)\})? (.*)$/);
    const pairs = [...(labels ?? "").matchAll(/(\w+)="([^"]*)"/g)].map(([, key, text]) => [key, text]);
    return { name: name.replace("talerec_", ""), labels: Object.fromEntries(pairs), value: Number(value) };
  });
}

function summed(lines) {
  const one = (name) => lines.find((line) => line.name === name)?.value ?? 0;
  const api = lines.filter((line) => line.name === "requests_total" && line.labels.route.startsWith("/v1/"));
  const buckets = new Map();
  for (const line of lines.filter((line) => line.name === "request_seconds_bucket" && line.labels.route.startsWith("/v1/"))) {
    buckets.set(line.labels.le, (buckets.get(line.labels.le) ?? 0) + line.value);
  }
  const total = (some) => some.reduce((sum, line) => sum + line.value, 0);
  return {
    at: performance.now(), events: one("events_accepted_total"), requests: total(api), errors: total(api.filter((line) => line.labels.status >= "500")),
    refused: total(api.filter((line) => line.labels.status >= "400" && line.labels.status < "500")), buckets,
    inFlight: one("in_flight"), memory: one("resident_bytes"), workers: one("workers_ready"),
    reloads: one("reloads_done_total"), refusedModels: one("reloads_refused_total"), dropped: one("dropped_connections_total"),
    fallbacks: one("fallbacks_total"), saved: one("model_saved_timestamp_seconds"),
    versions: lines.filter((line) => line.name === "model_workers").map((line) => line.labels.version), lines,
  };
}

// Returns the time, in milliseconds, within which this share of requests between two samples was answered.
function quantile(before, now, share) {
  const counts = [...now.buckets].map(([bound, value]) => [bound === "+Inf" ? Infinity : Number(bound), value - (before?.buckets.get(bound) ?? 0)]);
  counts.sort((a, b) => a[0] - b[0]);
  const all = counts.at(-1)?.[1] ?? 0;
  if (!all) return null;
  const found = counts.find(([, value]) => value >= share * all)[0];
  return found === Infinity ? 10_000 : 1000 * found;
}

async function look() {
  const text = await attempt(api.metrics);
  const stats = text && (await attempt(api.stats));
  if (text) {
    samples.push(summed(parse(text)));
    if (samples.length > KEPT) samples.shift();
    show();
    if (stats) showLive(stats, rates("events"));
  }
  if (state.tab === "operations") timer = setTimeout(look, EVERY_MS);
}

export function watch() {
  clearTimeout(timer);
  if (state.tab === "operations") look();
}

// Returns the rate per second between consecutive samples.
const rates = (name) => samples.slice(1).map((one, n) => (1000 * (one[name] - samples[n][name])) / (one.at - samples[n].at));

function show() {
  const now = samples.at(-1);
  const requests = rates("requests");
  const errors = samples.slice(1).map((one, n) => one.errors - samples[n].errors);
  const minute = samples[Math.max(0, samples.length - 31)];
  const first = samples.length > 1 ? minute : null;
  const times = samples.slice(1).map((one, n) => quantile(samples[n], one, 0.5) ?? 0);
  const ms = (value) => (value === null ? "–" : `≤ ${shortNumber(value)} ms`);
  byId("tiles").replaceChildren(
    tile("Requests per second", shortNumber(Math.max(0, requests.at(-1) ?? 0)), `${count(now.requests)} since the start`, requests),
    tile("Response time, median", ms(quantile(first, now, 0.5)), `99 % ${ms(quantile(first, now, 0.99))}`, times),
    tile("Failures", count(now.errors), `${count(now.refused)} refused requests`, errors, now.errors > 0),
    tile("Age of the model", now.saved ? age(Date.now() / 1000 - now.saved) : "unknown", `version ${now.versions.join(", ")}`),
    tile("Reloads", count(now.reloads), `${count(now.refusedModels)} refused`, null, now.refusedModels > 0),
    tile("Workers", count(now.workers), `${count(now.inFlight)} in flight`),
    tile("Memory", `${count(Math.round(now.memory / 1e6))} MB`, `${count(now.dropped)} dropped connections`, samples.map((one) => one.memory)),
    tile("Fallbacks", count(now.fallbacks), "answers with trending items"));
  byId("routes").tBodies[0].replaceChildren(...routes(now));
}

function routes(now) {
  const of = (name, route) => now.lines.filter((line) => line.name === name && line.labels.route === route);
  const sum = (lines) => lines.reduce((total, line) => total + line.value, 0);
  const names = [...new Set(now.lines.filter((line) => line.name === "requests_total").map((line) => line.labels.route))];
  return names.filter((name) => name.startsWith("/v1/")).sort().map((route) => {
    const [all, seconds] = [sum(of("requests_total", route)), sum(of("request_seconds_sum", route))];
    const bad = sum(of("requests_total", route).filter((line) => line.labels.status >= "400"));
    return element("tr", {}, element("td", {}, route), element("td", {}, count(all)), element("td", {}, count(bad)),
      element("td", {}, all ? `${shortNumber((1000 * seconds) / all)} ms` : "–"));
  });
}
