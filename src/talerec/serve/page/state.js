// What the page shows, and its form in the address, so that a link shows the same to everybody.
// The part after the # is never sent to the service.

export const DAY = 86_400_000;
export const day = (time) => new Date(time).toISOString().slice(0, 10);

export const state = {
  user: null, // a user of the log whose rows are shown; null once the rows are edited
  rows: [], // oldest first: {item_id, timestamp}
  asOf: null, // a date; null: the end of the log
  recency: null, // null: the model's value
  hideSeen: true,
  words: "", // titles with one of these words are excluded
  without: [], // "column=value": items with this value are excluded
  most: {}, // column -> maximum
  versus: null, // "moment:DATE" or "model:NAME"
  tab: "recommend",
  card: null, // the model card
  hasStore: false, // does the service store events?
  takesWhere: false, // does the service accept conditions on the item table?
};

export function writeAddress() {
  const parts = new URLSearchParams();
  if (state.tab !== "recommend") parts.set("tab", state.tab);
  if (state.user !== null) parts.set("user", state.user);
  else for (const row of state.rows) parts.append("row", `${shortTime(row.timestamp)} ${row.item_id}`);
  if (state.asOf) parts.set("asof", state.asOf);
  if (state.recency !== null) parts.set("recency", Number(state.recency.toFixed(3)));
  if (!state.hideSeen) parts.set("seen", "shown");
  if (state.words) parts.set("words", state.words);
  for (const pair of state.without) parts.append("without", pair);
  for (const [column, value] of Object.entries(state.most)) parts.append("most", `${column}=${value}`);
  if (state.versus) parts.set("versus", state.versus);
  const text = parts.toString();
  history.replaceState(null, "", text ? `#${text}` : location.pathname);
}

export function readAddress() {
  const parts = new URLSearchParams(location.hash.slice(1));
  const recency = Number(parts.get("recency"));
  Object.assign(state, {
    user: parts.get("user"),
    rows: parts.getAll("row").map(asRow).filter(Boolean),
    asOf: asDate(parts.get("asof")),
    recency: recency > 0 ? recency : null,
    hideSeen: parts.get("seen") !== "shown",
    words: parts.get("words") ?? "",
    without: parts.getAll("without").filter((pair) => pair.includes("=")),
    most: Object.fromEntries(parts.getAll("most").map((pair) => pair.split("=")).filter(([, n]) => n && !isNaN(n))),
    versus: /^(moment:\d{4}-\d\d-\d\d|model:.+)$/.test(parts.get("versus")) ? parts.get("versus") : null,
    tab: ["recommend", "operations", "impressions", "model"].includes(parts.get("tab")) ? parts.get("tab") : "recommend",
  });
}

const asDate = (text) => (/^\d{4}-\d\d-\d\d$/.test(text ?? "") && !isNaN(Date.parse(text)) ? text : null);
const shortTime = (timestamp) => timestamp.replace(/T00:00:00(Z|\+00:00)$/, "");

function asRow(text) {
  const space = text.indexOf(" ");
  const [timestamp, item_id] = [text.slice(0, space), text.slice(space + 1)];
  if (space < 0 || !item_id || isNaN(Date.parse(timestamp))) return null;
  return { item_id, timestamp: timestamp.length === 10 ? midnight(timestamp) : timestamp };
}

export const midnight = (date) => `${date}T00:00:00Z`;

// -- requests ----------------------------------------------------------------------------------------

export const takesRecency = () => "recency" in (state.card?.params ?? {});
export const historyJson = () => state.rows.map(({ item_id, timestamp }) => ({ item_id, timestamp }));

export function recommendRequest(k, asOf = state.asOf) {
  const request = { history: historyJson(), k, hide_seen: state.hideSeen };
  if (state.recency !== null && takesRecency()) request.recency = state.recency;
  if (asOf) request.as_of = asOf === day(Date.now()) ? new Date().toISOString() : midnight(asOf); // today: now
  const where = state.takesWhere ? condition() : "";
  if (where) request.where = where;
  return request;
}

// A value as a literal of the column's type, which the model card tells.
function literal(name, value) {
  const about = state.card?.columns?.[name];
  if (typeof about?.max === "number") return Number(value);
  return typeof about?.values?.[0] === "boolean" ? value === "true" : `'${value.replaceAll("'", "''")}'`;
}

// The column filters as a condition on the item table; items without a value pass.
function condition() {
  const column = (name) => `"${name.replaceAll('"', '""')}"`;
  const without = state.without.map((pair) => {
    const at = pair.indexOf("=");
    const [name, value] = [pair.slice(0, at), pair.slice(at + 1)];
    return `(${column(name)} IS NULL OR ${column(name)} <> ${literal(name, value)})`;
  });
  const most = Object.entries(state.most).map(([name, value]) => `(${column(name)} IS NULL OR ${column(name)} <= ${Number(value)})`);
  return [...without, ...most].join(" AND ");
}

export function nextTime() {
  const last = state.rows.at(-1);
  const end = last ? Date.parse(last.timestamp) : Date.parse(state.card.training.last_time);
  return midnight(day((isNaN(end) ? Date.now() : end) + DAY));
}
