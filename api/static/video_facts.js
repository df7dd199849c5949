// Facts about a video as entries of a definition list.

import { el } from "./dom.js";
import { bytes, timeAgo } from "./formatting.js";
import { fileName } from "./page_texts.js";

const SPLITS = {
  train: "training",
  val: "validation",
  test: "held out",
  fold: "training, measured by cross-fitting",
  appended: "appended",
};

const READINGS = {
  file: "Its file",
  speech: "Speech",
  screen: "Text in it",
  subtitles: "Subtitles",
  chapters: "Chapters",
};
const UNREAD = { pending: "not read yet", failed: "could not be read", cancelled: "not read" };

export const fact = (name, value) => el("div", {}, el("dt", { textContent: name }), el("dd", {}, value));

/** Word a video's use in its domain. */
export const splitName = (split) => SPLITS[split] ?? "";

export function fileFacts(video) {
  const values = [
    ["Name", video.uri && fileName(video.uri)],
    ["Length", video.duration && `${video.duration.toFixed(1)} s, ${video.frames ?? "?"} frames`],
    ["Picture", video.width && `${video.width} × ${video.height}, ${video.codec}`],
    ["Size", video.bytes && bytes(video.bytes)],
    ["Use", splitName(video.effective_split)],
    ["Added", video.added_at && timeAgo(video.added_at)],
    [
      "Replaced",
      video.replaced_at && `${timeAgo(video.replaced_at)}: texts and feedback may be of the earlier version`,
    ],
    ...video.readings.map(({ source, state, note }) => [READINGS[source], note ?? UNREAD[state]]),
    ["ID", video.id],
  ];
  return values.filter(([, value]) => value).map(([name, value]) => fact(name, value));
}

export function metadataFacts(metadata) {
  return Object.entries(metadata).map(([name, value]) => fact(name, metadataText(value)));
}

const metadataText = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
