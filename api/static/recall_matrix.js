// The recall matrix as a table, and what follows from it in words.

import { $, el, say } from "./dom.js";
import { percent, points } from "./formatting.js";

/** The matrix that is chosen: rows are releases, columns are domains, null where undefined. */
export function matrixOf(measures, view) {
  return measures[`matrix_${view.gallery}${view.videos === "all" ? "_all" : ""}`];
}

export function drawMatrix(measures, view) {
  const cells = matrixOf(measures, view);
  const derived = measures.held_out.some((kind) => kind === "derived");
  say($("matrix-note"), `Recall@1 of each domain (columns) after each release (rows), ${view.gallery === "local" ? "searched in its own shard" : "searched among all shards"}, `
    + (view.videos === "all" ? "among all videos." : "among held-out videos.") + (derived ? " Where no test split was given, a share of the videos was held out." : ""));
  $("matrix").tHead.replaceChildren(el("tr", {}, el("th", { scope: "col", textContent: "After" }), ...measures.tasks.map((name) => el("th", { scope: "col", textContent: name }))));
  const zero = measures.zero_shot.some((value) => value !== null)
    ? [el("tr", {}, el("th", { scope: "row", textContent: "nothing (zero-shot)" }), ...measures.zero_shot.map((value) => el("td", { className: "muted", textContent: cell(value) })))] : [];
  $("matrix").tBodies[0].replaceChildren(...zero, ...cells.map((row, i) => el("tr", {}, el("th", { scope: "row", textContent: measures.after[i] }),
    ...row.map((value, t) => el("td", { className: measures.after[i] === measures.tasks[t] ? "own" : "", "data-testid": `cell-${i + 1}-${t + 1}`, textContent: cell(value) })))));
}

export function drawFigures(measures) {
  figure("bwf-local", measures.bwf_local, inWords(measures.bwf_local, "in their own shard"));
  figure("bwf-global", measures.bwf_global, measures.bwf_global > 0.005
    ? "points lost on average when every shard is searched: each new domain also brings look-alikes" : inWords(measures.bwf_global, "among all shards"));
  say($("fr"), measures.fr === null ? "–" : points(measures.fr));
  say($("hm"), measures.hm === null ? "–" : percent(measures.hm));
}

function figure(id, share, words) {
  say($(id), share === null ? "–" : points(share), share === null ? "" : share <= 0.005 ? "good" : share <= 0.03 ? "warn" : "bad");
  say($(`${id}-note`), words);
}

function inWords(share, where) {
  if (share === null) return "shown from the second domain on";
  if (Math.abs(share) <= 0.0005) return `points lost: earlier domains are found ${where} as well as on their first day`;
  return share > 0 ? `points of Recall@1 lost on earlier domains, ${where}, on average` : `points: earlier domains are found better ${where} than on their first day`;
}

const cell = (value) => (value === null ? "–" : percent(value));
