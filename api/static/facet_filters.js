// Clickable filters: the most frequent metadata values among the results, with counts.

import { $, el, restoreFocus } from "./dom.js";
import { count } from "./formatting.js";
import { hasCondition, selectedValues, toggleCondition } from "./search_filters.js";

const PREFIX = "where.";
let searchAgain = () => {};

/** @param onChange called when a filter was added or removed */
export function setUpFacets(onChange) {
  searchAgain = onChange;
}

/** Show a response's metadata values, and those that are already filters. */
export function showFacets(facets) {
  const focused = document.activeElement?.dataset.facet;
  const groups = facetGroups(facets).map(([name, values]) => facetGroup(name, values));
  $("facets").replaceChildren(...groups);
  $("facets").hidden = $("skip-facets").hidden = !groups.length;
  if (!focused) return;
  [...$("facets").querySelectorAll("button")].find(({ dataset }) => dataset.facet === focused)?.focus();
  restoreFocus($("answer"));
}

/** Group counts by metadata field; a filter whose values are not counted comes first, so that it can be removed. */
function facetGroups(facets) {
  const counted = facets.filter(({ field }) => field.startsWith(PREFIX));
  const groups = new Map(counted.map(({ field, values }) => [field.slice(PREFIX.length), values]));
  const selected = selectedValues().map(([name, values]) => {
    const present = groups.get(name) ?? [];
    const isCounted = (value) => present.some((facet) => String(facet.value) === String(value));
    const missing = values.filter((value) => !isCounted(value)).map((value) => ({ value, count: null }));
    return [name, [...missing, ...present]];
  });
  const isSelected = new Set(selected.map(([name]) => name));
  const rest = [...groups].filter(([name]) => !isSelected.has(name));
  return [...selected, ...rest];
}

function facetGroup(name, values) {
  const buttons = values.map(({ value, count: videos }) => facetButton(name, value, videos));
  const label = el("span", { className: "facet-name", textContent: name, "aria-hidden": "true" });
  return el("div", { className: "facet", role: "group", "aria-label": name }, label, ...buttons);
}

function facetButton(name, value, videos) {
  const number = videos === null ? null : el("small", { textContent: videos.toLocaleString() });
  const properties = {
    type: "button",
    "aria-pressed": String(hasCondition(name, value)),
    "aria-label": videos === null ? String(value) : `${value} ${count(videos, "video")}`,
    "data-facet": JSON.stringify([name, value]),
  };
  const node = el("button", properties, el("span", { textContent: String(value) }), " ", number);
  node.addEventListener("click", () => {
    toggleCondition(name, value);
    node.setAttribute("aria-pressed", String(hasCondition(name, value)));
    searchAgain();
  });
  return node;
}
