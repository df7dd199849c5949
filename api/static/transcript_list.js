// A video's timed texts: played from, corrected and deleted in place, and shown by source.

import { api, sendJson } from "./api_client.js";
import { button, el, moveFocus, setText } from "./dom.js";
import { clock } from "./formatting.js";
import { isPermitted } from "./permissions.js";
import { servicePath } from "./service_paths.js";

const ROWS = 200; // drawn at a time: a transcript may have 20,000 texts
const NEAR_END = 400; // pixels
const SOURCES = {
  person: "Edited",
  chapters: "Chapter",
  speech: "Heard",
  screen: "Read",
  subtitles: "Subtitles",
};

/**
 * Fill the section of a video's timed texts; more rows are drawn as the list is scrolled.
 *
 * @param section element with a list, a choice of the source, and an alert
 * @param video with its transcript, in order of time
 * @param play called with a text's start, in seconds
 * @param onSaved called with the video, after a text was corrected or deleted
 * @returns a function that scrolls to the text at a time and marks it
 */
export function drawTranscript(section, video, play, onSaved) {
  const [list, choice] = [section.querySelector("ol"), section.querySelector("select")];
  const drawn = list.children.length; // by an earlier call
  const sources = Object.keys(SOURCES).filter((name) =>
    video.transcript.some(({ source }) => source === name),
  );
  const chosen = sources.includes(choice.value) ? choice.value : "";
  choice.replaceChildren(...["", ...sources].map((name) => option(name, name === chosen)));
  choice.hidden = sources.length < 2;
  section.hidden = !video.transcript.length;
  section.querySelector("a").href = servicePath(
    `/videos/${encodeURIComponent(video.id)}/transcript?format=srt`,
  );
  let cues = [];
  const drawUntil = (count) => {
    while (list.children.length < Math.min(count, cues.length)) {
      const first = list.children.length;
      list.append(...cues.slice(first, first + ROWS).map((cue) => row(cue, sources.length > 1)));
    }
  };
  choice.onchange = () => {
    cues = video.transcript.filter(({ source }) => !choice.value || source === choice.value);
    list.replaceChildren();
    drawUntil(ROWS);
  };
  choice.onchange();
  drawUntil(drawn);
  list.onscroll = () => {
    if (list.scrollHeight - list.scrollTop - list.clientHeight < NEAR_END)
      drawUntil(list.children.length + ROWS);
  };
  const change = async (cue, send) => {
    const place = cues.indexOf(cue);
    const path = `/videos/${encodeURIComponent(video.id)}/transcript/${encodeURIComponent(cue.id)}`;
    const alert = section.querySelector("[role=alert]");
    try {
      const saved = await send(path);
      alert.hidden = true;
      const top = list.scrollTop;
      onSaved(saved);
      list.scrollTop = top;
      const next = list.children[Math.min(place, list.children.length - 1)];
      moveFocus(next?.querySelector("[data-action=edit]") ?? section.parentElement); // its row is drawn again
    } catch (error) {
      setText(alert, error.message);
      alert.hidden = false;
    }
  };
  list.onclick = ({ target }) => {
    const node = target.closest("li");
    const cue = cues[[...list.children].indexOf(node)];
    const action = target.closest("button")?.dataset.action;
    if (action === "play") play(cue.start);
    if (action === "edit")
      edit(node, cue, (text) => change(cue, (path) => sendJson(path, { text }, { method: "PATCH" })));
    if (action === "delete")
      confirmOrDelete(target, () => change(cue, (path) => api(path, { method: "DELETE" })));
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

const option = (value, selected) =>
  el("option", { value, selected, textContent: value ? SOURCES[value] : "All texts" });

function row({ start, text, source }, namesSource) {
  const time = clock(start);
  const rowButton = (action, textContent, label) =>
    el("button", {
      type: "button",
      className: "link",
      textContent,
      "data-action": action,
      "aria-label": label,
    });
  const changes = [
    rowButton("edit", "Edit", `Edit the text at ${time}`),
    rowButton("delete", "Delete", `Delete the text at ${time}`),
  ];
  return el(
    "li",
    {},
    rowButton("play", time, `Play from ${time}`),
    el(
      "span",
      {},
      namesSource || ["speech", "screen"].includes(source)
        ? el("span", { className: "origin", textContent: `${SOURCES[source] ?? source}: ` })
        : null,
      text,
    ),
    isPermitted("ingest") ? el("span", { className: "cue-actions" }, ...changes) : null,
  );
}

/** Ask once more, in the button's own words. */
function confirmOrDelete(node, remove) {
  if (node.textContent !== "Delete") return remove();
  const label = node.ariaLabel;
  node.textContent = "Delete for good?";
  node.ariaLabel = `${label} for good?`;
  node.onblur = () => {
    node.textContent = "Delete";
    node.ariaLabel = label;
  };
}

/** Replace a row's text by a field with it; Escape restores the row. */
function edit(node, cue, save) {
  const [content, actions] = [...node.children].slice(1);
  const input = el("input", { type: "text", value: cue.text, "aria-label": `Text at ${clock(cue.start)}` });
  const close = () => {
    form.remove();
    node.append(content, actions);
    actions.querySelector("button").focus();
  };
  const form = el(
    "form",
    { className: "cue-form" },
    input,
    el("button", { type: "submit", className: "small primary", textContent: "Save" }),
    button("Cancel", close),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (text && text !== cue.text) save(text);
    else close();
  });
  form.addEventListener("keydown", ({ key }) => key === "Escape" && close());
  content.remove();
  actions.remove();
  node.append(form);
  input.focus();
}
