// The recall matrix as a table, and the measures of forgetting.

import { binNumbers } from "./chart_elements.js";
import { $, el, setText } from "./dom.js";
import { lossRating, percent, points } from "./formatting.js";

/** The rows and columns of the map as a table: the text alternative of the map. */
export function drawTable(map) {
  const headings = map.columns.map((bin) => el("th", { scope: "col", textContent: binName(bin) }));
  $("matrix").tHead.replaceChildren(
    el("tr", {}, el("th", { scope: "col", textContent: "After" }), ...headings),
  );
  const rows = map.mean.map((values, index) => releaseRow(map, values, index));
  const hasZeroShot = map.zero_shot.some((value) => value !== null);
  $("matrix").tBodies[0].replaceChildren(...(hasZeroShot ? [zeroShotRow(map)] : []), ...rows);
}

const binName = (bin) => (bin.last_name === null ? bin.name : binNumbers(bin));

function zeroShotRow(map) {
  const cells = map.zero_shot.map((value) => el("td", { className: "muted", textContent: cellText(value) }));
  return el("tr", {}, el("th", { scope: "row", textContent: "nothing (zero-shot)" }), ...cells);
}

function releaseRow(map, values, index) {
  const row = map.rows[index];
  const cells = values.map((value, column) =>
    el("td", {
      className: row.t === map.columns[column].t ? "own" : "",
      "data-testid": `cell-${row.first}-${map.columns[column].first}`,
      textContent: cellText(value),
    }),
  );
  return el("tr", {}, el("th", { scope: "row", textContent: binName(row) }), ...cells);
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
