// A video's transcript: texts with their times, from which the video can be played.

import { el } from "./dom.js";
import { clock } from "./formatting.js";

const ROWS = 200; // drawn at a time: a transcript may have 20,000 texts
const NEAR_END = 400; // pixels

/**
 * Fill a scrolling list; more rows are drawn as it is scrolled.
 *
 * @param cues texts with start and end, in order of time
 * @param play called with a text's start, in seconds
 * @returns a function that scrolls to the text at a time and marks it
 */
export function drawTranscript(list, cues, play) {
  list.replaceChildren();
  const drawUntil = (count) => {
    while (list.children.length < Math.min(count, cues.length)) {
      const first = list.children.length;
      list.append(...cues.slice(first, first + ROWS).map(row));
    }
  };
  drawUntil(ROWS);
  list.onscroll = () => {
    if (list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END)
      drawUntil(list.children.length + ROWS);
  };
  list.onclick = ({ target }) => {
    const button = target.closest("button");
    if (button) play(Number(button.value));
  };
  return (start) => {
    const place = cues.findIndex((cue) => cue.start >= start);
    if (place < 0) return;
    drawUntil(place + ROWS);
    const current = list.children[place];
    current.setAttribute("aria-current", "true");
    list.scrollTop = current.offsetTop - list.offsetTop - list.clientHeight / 3;
  };
}

const row = ({ start, text }) =>
  el("li", {}, el("button", { type: "button", value: start, textContent: clock(start) }), text);
