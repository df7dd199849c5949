// Shared by the pages: calls to the API, elements without innerHTML, colours of domains.

export async function api(path, options) {
  const response = await fetch(path, options);
  const body = await response.json().catch(() => ({ detail: response.statusText }));
  if (response.status === 401) location.assign("/login");
  if (!response.ok) throw Object.assign(new Error(body.detail || "The request failed."), { problem: body, status: response.status });
  return body;
}

/** An element with properties, attributes (data-…, aria-…) and children; text stays text. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.includes("-") || key === "role" || key === "style") node.setAttribute(key, value);
    else node[key] = value;
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const TONES = ["#e0795a", "#4b7fb8", "#7fa65a", "#9c5a86", "#f2b45a", "#2f7f8a", "#c0567a", "#6a63b8", "#8a7a4a", "#4aa58a"];
const known = [];

/** A domain keeps its colour: the order in which domains arrived decides. */
export function tone(name) {
  if (!known.includes(name)) known.push(name);
  return TONES[known.indexOf(name) % TONES.length];
}

export function dot(name) {
  return el("span", { className: "dot", style: `--tone:${tone(name)}`, "aria-hidden": "true" });
}

export function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${power ? count.toFixed(1) : count} ${units[power]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}
