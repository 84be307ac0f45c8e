// Builds elements without HTML strings: titles and ids come from other people and are never markup.

export const byId = (id) => document.getElementById(id);

export function element(tag, settings = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export const label = (item) => item.title ?? String(item.item_id);
export const percent = (share) => `${Math.round(100 * share)} %`;
export const shortNumber = (number) =>
  Math.abs(number) >= 100 ? number.toFixed(0) : Number(number.toPrecision(3)).toString();
