// The recall matrix as a table, and the measures of forgetting.

import { $, el, setText } from "./dom.js";
import { lossRating, percent, points } from "./formatting.js";

/** The selected matrix: rows are releases, columns are domains, null where undefined. */
export function selectedMatrix(measures, view) {
  return measures[`matrix_${view.gallery}${view.videos === "all" ? "_all" : ""}`];
}

export function drawMatrix(measures, view) {
  setText($("matrix-note"), matrixNote(measures, view));
  const headings = measures.tasks.map((name) => el("th", { scope: "col", textContent: name }));
  $("matrix").tHead.replaceChildren(
    el("tr", {}, el("th", { scope: "col", textContent: "After" }), ...headings),
  );
  const rows = selectedMatrix(measures, view).map((row, index) => releaseRow(measures, row, index));
  const hasZeroShot = measures.zero_shot.some((value) => value !== null);
  $("matrix").tBodies[0].replaceChildren(...(hasZeroShot ? [zeroShotRow(measures)] : []), ...rows);
}

function matrixNote(measures, view) {
  const gallery = view.gallery === "local" ? "searched in its own shard" : "searched among all shards";
  const videos = view.videos === "all" ? "all videos" : "held-out videos";
  const note = `Recall@1 of each domain (columns) after each release (rows), ${gallery}, among ${videos}.`;
  if (!measures.held_out.includes("derived")) return note;
  return `${note} For domains without a test split, a share of the videos was held out.`;
}

function zeroShotRow(measures) {
  const cells = measures.zero_shot.map((value) =>
    el("td", { className: "muted", textContent: cellText(value) }),
  );
  return el("tr", {}, el("th", { scope: "row", textContent: "nothing (zero-shot)" }), ...cells);
}

function releaseRow(measures, row, release) {
  const name = measures.after[release];
  const cells = row.map((value, task) =>
    el("td", {
      className: name === measures.tasks[task] ? "own" : "",
      "data-testid": `cell-${release + 1}-${task + 1}`,
      textContent: cellText(value),
    }),
  );
  return el("tr", {}, el("th", { scope: "row", textContent: name }), ...cells);
}

const cellText = (value) => (value === null ? "–" : percent(value));

export function drawMeasures(measures) {
  drawForgetting("bwf-local", measures.bwf_local, explainLoss(measures.bwf_local, "in their own shard"));
  const globalText =
    measures.bwf_global > 0.005
      ? "points lost on average when all shards are searched: each new domain adds similar videos"
      : explainLoss(measures.bwf_global, "among all shards");
  drawForgetting("bwf-global", measures.bwf_global, globalText);
  setText($("fr"), measures.fr === null ? "–" : points(measures.fr));
  setText($("hm"), measures.hm === null ? "–" : percent(measures.hm));
}

function drawForgetting(id, loss, explanation) {
  setText($(id), loss === null ? "–" : points(loss), loss === null ? "" : lossRating(loss));
  setText($(`${id}-note`), explanation);
}

function explainLoss(loss, gallery) {
  if (loss === null) return "shown from the second domain on";
  if (Math.abs(loss) <= 0.0005) return `points lost: recall of earlier domains ${gallery} is unchanged`;
  if (loss > 0) return `points of Recall@1 lost on average by earlier domains, ${gallery}`;
  return `points: recall of earlier domains ${gallery} has increased`;
}
