// Rejected videos of a domain and of the appends to it, with their reasons.

import { $, el, setText } from "./dom.js";
import { count } from "./formatting.js";

/** Show the rejected videos; the section is hidden if there are none. */
export function showRejected(task, appends) {
  const rejected = [task, ...appends].flatMap((one) => one.rejected);
  $("rejected").hidden = !rejected.length;
  setText($("rejected-note"), count(rejected.length, "video"));
  $("rejected-list").replaceChildren(...rejected.map(rejectedRow));
}

const rejectedRow = ({ uri, reason }) =>
  el("li", {}, el("code", { textContent: uri }), el("span", { textContent: reason }));
