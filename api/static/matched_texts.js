// Texts of a video that contain words of the query, with these words marked.

import { el } from "./dom.js";

const ORIGINS = { caption: "Caption", transcript: "Transcript", name: "File name" };

/** Where a text stands: its kind, or its metadata field. */
export const textOrigin = ({ kind, field }) => field ?? ORIGINS[kind] ?? kind;

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

/** Origin and text as the content of one line. */
export const matchLine = (match) => [
  el("span", { className: "origin", textContent: `${textOrigin(match)}: ` }),
  ...markedText(match),
];

export const matchList = (matches) =>
  el("ul", { className: "matched-texts" }, ...matches.map((match) => el("li", {}, ...matchLine(match))));
