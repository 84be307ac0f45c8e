// Boxes with one value each, and a sparkline of its past.

import { drawing, element } from "./dom.js";

export function tile(title, value, note, line = null, warn = false) {
  return element("li", { className: warn ? "tile-box warn" : "tile-box" },
    element("h3", {}, title), element("p", { className: "value" }, value), element("p", { className: "note" }, note),
    line && line.length > 1 ? sparkline(line) : null);
}

function sparkline(values) {
  const most = Math.max(...values, 1e-9);
  const points = values.map((value, n) => `${((100 * n) / (values.length - 1)).toFixed(1)},${(24 - (22 * Math.max(0, value)) / most).toFixed(1)}`);
  return drawing("svg", { viewBox: "0 0 100 25", preserveAspectRatio: "none", class: "spark", "aria-hidden": "true" },
    drawing("polyline", { points: points.join(" ") }));
}

export const age = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s` : seconds < 7200 ? `${Math.round(seconds / 60)} min`
  : seconds < 172_800 ? `${Math.round(seconds / 3600)} hours` : `${Math.round(seconds / 86_400)} days`);
