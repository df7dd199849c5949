// Colors of domains, and their drawing as layers. The first domains have colors, in the order in which they were added;
// the other domains share a neutral tone, because a repeated color would stand for two of them.

import { drawing, el } from "./dom.js";
import { count, timeAgo } from "./formatting.js";

const COLORS = 8;
const MAX_LAYERS = 12; // fit on one or two screens
const WAVES = [
  "M0 24C150 4 260 2 420 12S700 26 860 12S1080 2 1200 14V40H0Z",
  "M0 14C180 30 330 26 500 14S820 0 980 14S1130 26 1200 20V40H0Z",
  "M0 20C120 8 300 6 470 18S760 30 930 18S1110 4 1200 10V40H0Z",
];
const domains = [];
let hasOrder = false; // until `/library` is known, domains get colors in order of appearance

/** A domain's color, 1 to 8; 0 is the neutral tone. */
function colorNumber(name) {
  if (!hasOrder) addColor(name);
  return domains.indexOf(name) + 1;
}

function addColor(name) {
  if (!domains.includes(name) && domains.length < COLORS) domains.push(name);
}

/** Assign colors to the library's first domains, as `/library` lists them. */
export function colorFirstDomains({ first_domains: first }) {
  hasOrder = true;
  for (const { task } of first) addColor(task);
}

export function dot(name) {
  return el("span", { className: "dot", "data-tone": colorNumber(name), "aria-hidden": "true" });
}

/** Give the dot inside an element a domain's current color. */
export function recolorDot(node, name) {
  node.querySelector(".dot").dataset.tone = colorNumber(name);
}

export function badge(name) {
  return el("span", { className: "badge", title: name }, dot(name), el("span", { textContent: name }));
}

/** Fill an element with a thin bar of shares; parts: [{name, share, tone}], where tone is optional. */
export function stackBar(node, label, parts) {
  node.replaceChildren(
    ...parts.map(({ name, share, tone }) => {
      const part = el("span", { "data-tone": tone ?? colorNumber(name), title: name });
      part.style.flexGrow = share;
      return part;
    }),
  );
  node.setAttribute("aria-label", label);
}

/** Create layers for the newest learned domains, newest first. */
export function domainLayers(learned, onSelect) {
  const newest = [...learned].sort((a, b) => b.learned_order - a.learned_order).slice(0, MAX_LAYERS);
  return newest.map((task, index) => layer(task, WAVES[index % WAVES.length], onSelect));
}

function layer(task, path, onSelect) {
  const wave = drawing("0 0 1200 40", path);
  wave.setAttribute("preserveAspectRatio", "none");
  const properties = {
    type: "button",
    className: "layer",
    "data-tone": colorNumber(task.name),
  };
  const facts = `${count(task.counts.accepted, "video")} · indexed ${timeAgo(task.finished_at)}`;
  const node = el(
    "button",
    properties,
    wave,
    el("span", { className: "t", textContent: `t = ${task.learned_order}` }),
    el("span", { className: "hidden", textContent: "Search in" }),
    el("b", { textContent: task.name }),
    el("span", { className: "facts-of", textContent: facts }),
  );
  node.addEventListener("click", () => onSelect(task.name));
  return node;
}
