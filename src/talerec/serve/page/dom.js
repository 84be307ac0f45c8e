// Builds elements without HTML strings: titles and ids are data, never markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, settings = {}, ...children) {
  return filled(document.createElement(tag), settings, children);
}

export function drawing(tag, settings = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), settings, children);
}

function filled(made, settings, children) {
  for (const [name, value] of Object.entries(settings)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && !name.includes("-") && !(made instanceof SVGElement)) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const button = (text, onclick, settings = {}) =>
  element("button", { type: "button", onclick, ...settings }, text);
export const hidden = (text) => element("span", { className: "hidden" }, text);

export const label = (item) => item.title ?? String(item.item_id);
export const percent = (share) => `${Math.round(100 * share)} %`;
export const shortNumber = (number) =>
  Math.abs(number) >= 100 ? number.toFixed(0) : Number(number.toPrecision(3)).toString();
export const count = (number) => Number(number).toLocaleString("en");

export function announce(text) {
  byId("status").textContent = text;
}

export function debounce(work, wait) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, wait);
  };
}
