// Links to the pages of domains and videos.

import { $, el } from "./dom.js";
import { badge } from "./domain_layers.js";
import { servicePath } from "./service_paths.js";

/** Search parameters that determine a video's score and rank. */
const SEARCH_PARAMETERS = [
  "q",
  "task",
  "mode",
  "routes",
  "min_duration",
  "max_duration",
  "arrived_after",
  "arrived_before",
  "where",
];

export const domainPath = (id) => servicePath(`/domains/${encodeURIComponent(id)}`);

/** @param parameters of the search that found the video; without a text, the page explains no score */
export function videoPath(id, parameters = new URLSearchParams()) {
  const search = searchParameters(parameters);
  return servicePath(`/watch/${encodeURIComponent(id)}${search.has("q") ? `?${search}` : ""}`);
}

/** Select the parameters of an address that belong to a search. */
export function searchParameters(parameters) {
  return new URLSearchParams(
    SEARCH_PARAMETERS.flatMap((name) => parameters.getAll(name).map((value) => [name, value])),
  );
}

/** ID of the domain or video that the page shows. */
export const pageId = () => document.querySelector(".page").dataset.id;

export function domainLink(name, id) {
  return el("a", { href: domainPath(id), className: "domain-link" }, badge(name));
}

/** Say that the page's resource can't be shown, with a link to another page. */
export function showMissing(kind, error, path, textContent) {
  const title = error.status === 404 ? `This ${kind} doesn't exist.` : `The ${kind} couldn't be loaded.`;
  const link = el("a", { href: servicePath(path), textContent });
  $("missing").replaceChildren(
    el("strong", { textContent: title }),
    error.message,
    el("p", { className: "act" }, link),
  );
  $("missing").hidden = false;
}
