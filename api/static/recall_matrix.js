// The recall matrix as a table, and the measures of forgetting.

import { binNumbers } from "./chart_elements.js";
import { $, el, setText } from "./dom.js";
import { count, lossRating, percent, points } from "./formatting.js";

export const FEW_QUERIES = 20; // as in the API

/** The rows and columns of the map as a table: the text alternative of the map. */
export function drawTable(map) {
  const headings = map.columns.map((bin) => el("th", { scope: "col", textContent: binName(bin) }));
  $("matrix").tHead.replaceChildren(
    el("tr", {}, el("th", { scope: "col", textContent: "After" }), ...headings),
  );
  const rows = map.mean.map((values, index) => releaseRow(map, values, index));
  $("matrix").tBodies[0].replaceChildren(...(hasZeroShot(map) ? [zeroShotRow(map)] : []), ...rows);
}

const binName = (bin) => (bin.last_name === null ? bin.name : binNumbers(bin));

function zeroShotRow(map) {
  const cells = map.zero_shot.map((value, column) => {
    const queries = map.zero_shot_queries[column];
    const hasFew = value !== null && queries < FEW_QUERIES;
    return el("td", {
      className: "muted",
      "data-testid": `zero-shot-${map.columns[column].first}`,
      textContent: cellText(value) + (hasFew ? "*" : ""),
      title: value === null ? "" : queriesTitle(queries, map.columns[column].last_name !== null, hasFew),
    });
  });
  return el("tr", {}, el("th", { scope: "row", textContent: "nothing (zero-shot)" }), ...cells);
}

function releaseRow(map, values, index) {
  const row = map.rows[index];
  const cells = values.map((value, column) => {
    const hasFew = hasFewQueries(map, index, column);
    return el("td", {
      className: row.t === map.columns[column].t ? "own" : "",
      "data-testid": `cell-${row.first}-${map.columns[column].first}`,
      textContent: cellText(value) + (hasFew ? "*" : ""),
      title: value === null ? "" : queriesText(map, index, column),
    });
  });
  return el("tr", {}, el("th", { scope: "row", textContent: binName(row) }), ...cells);
}

const cellText = (value) => (value === null ? "–" : percent(value));

/** Whether no cell of a bin has enough queries for a reliable share. */
export const hasFewQueries = (map, row, column) =>
  map.mean[row][column] !== null && map.queries[row][column] < FEW_QUERIES;

export function queriesText(map, row, column) {
  const isBin = map.rows[row].last_name !== null || map.columns[column].last_name !== null;
  return queriesTitle(map.queries[row][column], isBin, hasFewQueries(map, row, column));
}

function queriesTitle(number, isBin, hasFew) {
  const few = hasFew ? ": too few for a reliable share" : "";
  return `${isBin ? "Up to " : ""}${count(number, "query", "queries")}${few}`;
}

/** Whether the untrained backbone was measured in the gallery of the map. */
export const hasZeroShot = (map) => map.zero_shot.some((value) => value !== null);

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
