// Show a video's texts that contain words of the query, with these words marked.

import { el } from "./dom.js";
import { clock } from "./formatting.js";

const ORIGINS = {
  caption: "Caption",
  transcript: "Transcript",
  speech: "Heard",
  screen: "Read",
  confirmed: "Feedback",
  name: "File name",
};
const LINE = 24; // code points per line of the narrowest card
const ELLIPSIS = "… ";
const MAX_FIELD = 18; // code points of a metadata field's name on a card

/** Name a text's origin: its metadata field or kind; for a timed text, also the time. */
export function textOrigin({ kind, field, start }) {
  const origin = field ?? ORIGINS[kind] ?? kind;
  return start == null ? origin : `${origin} at ${clock(start)}`;
}

/** Create a text's nodes with marked words. Marks are positions of code points, not of UTF-16 units. */
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

/** Cut a match so that it begins near the first marked word, which two lines of a card then show. */
export function startNearMark(match) {
  const shown = { ...match, field: shortened(match.field) };
  const characters = [...match.text];
  const first = Math.min(...match.marks.map(([start]) => start));
  const room = Math.max(0, LINE - (match.kind === "caption" ? 0 : [...originLabel(shown)].length));
  if (first <= room || first === Number.POSITIVE_INFINITY) return shown;
  const earliest = first - Math.max(0, room - ELLIPSIS.length);
  const space = characters.indexOf(" ", earliest - 1);
  const cut = space >= 0 && space < first ? space + 1 : earliest;
  const marks = match.marks.map((mark) => mark.map((position) => position - cut + ELLIPSIS.length));
  return { ...shown, text: ELLIPSIS + characters.slice(cut).join(""), marks };
}

function shortened(field) {
  const characters = [...(field ?? "")];
  return characters.length > MAX_FIELD ? `${characters.slice(0, MAX_FIELD - 1).join("")}…` : field;
}

const originLabel = (match) => `${textOrigin(match)}: `;

/** Create the content of one line: origin and text. */
export const matchLine = (match) => [
  el("span", { className: "origin", textContent: originLabel(match) }),
  ...markedText(match),
];

export const matchList = (matches) =>
  el("ul", { className: "matched-texts" }, ...matches.map((match) => el("li", {}, ...matchLine(match))));
