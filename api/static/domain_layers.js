// Every domain is a layer and keeps its colour: the order in which domains arrived decides.

import { drawing, el } from "./dom.js";
import { ago, count } from "./formatting.js";

const TONES = 8;
const known = [];
const WAVES = [
  "M0 24C150 4 260 2 420 12S700 26 860 12S1080 2 1200 14V40H0Z",
  "M0 14C180 30 330 26 500 14S820 0 980 14S1130 26 1200 20V40H0Z",
  "M0 20C120 8 300 6 470 18S760 30 930 18S1110 4 1200 10V40H0Z",
];

export function tone(name) {
  if (!known.includes(name)) known.push(name);
  return (known.indexOf(name) % TONES) + 1;
}

/** Whether a task was learned, and has videos left to be found. */
export const searchable = (task) => task.state === "ready" && task.counts.accepted > 0;

export function dot(name) {
  return el("span", { className: "dot", "data-tone": tone(name), "aria-hidden": "true" });
}

export function badge(name) {
  return el("span", { className: "badge" }, dot(name), el("span", { textContent: name }));
}

/** A thin bar of shares. Parts: [{name, share}]. */
export function stackBar(node, label, parts) {
  node.replaceChildren(...parts.map(({ name, share }) => {
    const span = el("span", { "data-tone": tone(name), title: name });
    span.style.flexGrow = share;
    return span;
  }));
  node.setAttribute("aria-label", label);
}

/** The layers of the library as they lie: newest on top, as many as a screen or two can show. */
export function strata(learned, chosen) {
  return [...learned].sort((a, b) => b.learned_order - a.learned_order).slice(0, 12).map((task, index) => {
    const wave = drawing("0 0 1200 40", WAVES[index % WAVES.length]);
    wave.setAttribute("preserveAspectRatio", "none");
    const layer = el("button", { type: "button", className: "layer", "data-tone": tone(task.name), "aria-label": `Search in ${task.name}` }, wave,
      el("span", { className: "t", textContent: `t = ${task.learned_order}` }), el("b", { textContent: task.name }),
      el("span", { className: "facts-of", textContent: `${count(task.counts.accepted, "video")} · laid down ${ago(task.finished_at)}` }));
    layer.addEventListener("click", () => chosen(task.name));
    return layer;
  });
}
