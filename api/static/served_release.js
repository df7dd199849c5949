// Domains that are not searched while an earlier release is served.

import { el } from "./dom.js";
import { count } from "./formatting.js";

const NAMED = 5; // domains

export const NOT_SEARCHED = "not searched by the served release";

/** Whether searches use a learned domain; `pinned` is that of `/library`. */
export const isSearched = (task, pinned) => !pinned || task.learned_order <= pinned.learned_order;

/** Count the domains that are not searched, and name the first. */
export function unsearchedText({ unsearchable: { domains, videos, first } }) {
  const names = first.slice(0, NAMED).map(({ task }) => `“${task}”`);
  const more = domains > names.length ? " …" : "";
  const verb = domains === 1 ? "is" : "are";
  const start = `${count(domains, "later domain")} with ${count(videos, "video")} ${verb} not searched`;
  return `${start}${names.length ? `: ${names.join(", ")}${more}` : ""}.`;
}

/** Create the content of a message about a domain that is not searched. */
export function unsearchedMessage(name, ...actions) {
  return [
    el("strong", { textContent: `“${name}” is not searched.` }),
    "An earlier release of the library is served, and this domain was learned later.",
    ...(actions.length ? [el("p", { className: "act" }, ...actions)] : []),
  ];
}
