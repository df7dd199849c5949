// Texts of a video that contain words of the query, with these words marked.

import { el } from "./dom.js";
import { clock } from "./formatting.js";

const ORIGINS = { caption: "Caption", transcript: "Transcript", confirmed: "Confirmed", name: "File name" };
const MAX_LEAD = 40; // code points before the first marked word of a text that is shown from its beginning
const LEAD = 24; // code points before it in other texts, at most

/** Where a text stands: its kind, or its metadata field; of a transcript, also the time. */
export function textOrigin({ kind, field, start }) {
  const origin = field ?? ORIGINS[kind] ?? kind;
  return start == null ? origin : `${origin} at ${clock(start)}`;
}

/** The nodes of a text with marked words. Marks are positions of code points, not of UTF-16 units. */
export function markedText({ text, marks }) {
  const characters = [...text];
  const nodes = [];
  let end = 0;
  for (const [first, last] of [...marks].sort(([one], [other]) => one - other)) {
    const start = Math.max(end, first);
    if (last <= start) continue;
    const word = characters.slice(start, last).join("");
    nodes.push(characters.slice(end, start).join(""), el("mark", { textContent: word }));
    end = last;
  }
  return [...nodes, characters.slice(end).join("")];
}

/** A match whose text begins near the first marked word, so that a line of a card shows this word. */
export function startNearMark(match) {
  const characters = [...match.text];
  const first = Math.min(...match.marks.map(([start]) => start));
  if (first < MAX_LEAD || first === Number.POSITIVE_INFINITY) return match;
  const space = characters.indexOf(" ", first - LEAD);
  const cut = space >= 0 && space < first ? space + 1 : first - LEAD;
  const text = `… ${characters.slice(cut).join("")}`;
  return { ...match, text, marks: match.marks.map(([start, end]) => [start - cut + 2, end - cut + 2]) };
}

/** Origin and text as the content of one line. */
export const matchLine = (match) => [
  el("span", { className: "origin", textContent: `${textOrigin(match)}: ` }),
  ...markedText(match),
];

export const matchList = (matches) =>
  el("ul", { className: "matched-texts" }, ...matches.map((match) => el("li", {}, ...matchLine(match))));
