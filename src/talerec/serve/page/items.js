// Items as cards: picture, title, category and price from the item table, each requested once.

import * as api from "./api.js";
import { element, label } from "./dom.js";
import { state } from "./state.js";
import { attempt } from "./toasts.js";

const known = new Map(); // by id, as text
const PICTURE = /^(image|picture|photo|img|thumbnail)(_?(url|address|link))?$/i;
const PRICE = /price|cost/i;
const KIND = /^(category|categories|genre|genres|class|kind|type|brand)$/i;

export const itemOf = (id) => known.get(String(id)) ?? { item_id: id };
export const remember = (items) => items.forEach((item) => {
  const before = known.get(String(item.item_id));
  known.set(String(item.item_id), { ...before, ...item });
});

// Requests the item table's rows of these items, a hundred at a time.
export async function lookUp(ids) {
  const wanted = [...new Set(ids.map(String))].filter((id) => !known.get(id)?.asked);
  for (let at = 0; at < wanted.length; at += 100) {
    const part = wanted.slice(at, at + 100);
    const found = await attempt(() => api.itemsOf(part));
    if (!found) return;
    remember(found.items);
    part.forEach((id) => known.set(id, { item_id: id, ...known.get(id), asked: true }));
  }
}

export function forgetItems() {
  known.clear();
}

const columnLike = (pattern, info) => Object.keys(info ?? {}).find((name) => pattern.test(name));

export function picture(id) {
  const item = itemOf(id);
  const name = columnLike(PICTURE, item.info);
  const tile = element("span", { className: "tile", "aria-hidden": "true" }, [...label(item)][0] ?? "?");
  tile.dataset.hue = String(hue(label(item)));
  if (!name) return tile;
  const image = element("img", { src: String(item.info[name]), alt: "", loading: "lazy", className: "tile" });
  image.addEventListener("error", () => image.replaceWith(tile)); // missing, or not from an allowed host
  return image;
}

function hue(text) {
  let sum = 0;
  for (const sign of text) sum = (31 * sum + sign.codePointAt(0)) % 6;
  return sum;
}

// Returns category and price in a line.
export function about(id) {
  const { info } = itemOf(id);
  if (!info) return "";
  const [kind, price] = [columnLike(KIND, info), columnLike(PRICE, info)];
  return [kind && info[kind], price && `${price} ${info[price]}`].filter(Boolean).join(" · ");
}

// -- filters -----------------------------------------------------------------------------------------

export const hasFilters = () => Boolean(state.words.trim() || state.without.length || Object.keys(state.most).length);

export function passes(id) {
  const item = itemOf(id);
  const title = label(item).toLowerCase();
  const words = state.words.toLowerCase().split(/[\s,]+/).filter(Boolean);
  if (words.some((word) => title.includes(word))) return false;
  for (const pair of state.without) {
    const at = pair.indexOf("=");
    if (String(item.info?.[pair.slice(0, at)]) === pair.slice(at + 1)) return false;
  }
  return Object.entries(state.most).every(([column, most]) => !(item.info?.[column] > Number(most)));
}
