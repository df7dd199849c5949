// The recall matrix as a table, and the measures of forgetting.

import { binNumbers } from "./chart_elements.js";
import { $, el, setText } from "./dom.js";
import { count, lossRating, percent, points } from "./formatting.js";

export const FEW_QUERIES = 20; // as in the API
const NO_LOSS = 0.0005;

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

/** Losses, weighted by queries, and the measures of the literature in the shown gallery. */
export function drawMeasures(map, view) {
  const suffix = view.videos === "all" ? "_all" : "";
  for (const gallery of ["local", "global"]) drawLoss(`loss-${gallery}`, map.losses[gallery + suffix]);
  drawWorst(map.losses[`local${suffix}`], map.losses[`global${suffix}`]);
  const { bwf, fr, hm } = map.literature;
  setText($("literature-note"), `${galleryText(view)}.`);
  setText($("bwf"), bwf === null ? "–" : points(bwf));
  setText($("fr"), fr === null ? "–" : points(fr));
  setText($("hm"), hm === null ? "–" : percent(hm));
}

function drawLoss(id, measured) {
  setText($(id), measured ? points(measured.loss) : "–", measured ? rating(measured) : "");
  setText($(`${id}-note`), measured ? explainLoss(measured) : "shown from the second domain on");
}

function drawWorst(local, global) {
  const own = local?.worst;
  const union = global?.worst;
  const isOwn = own && !(union?.loss > own.loss);
  const worst = isOwn ? own : union;
  setText($("loss-worst"), worst ? points(worst.loss) : "–", worst ? rating(worst) : "");
  const place = isOwn ? "in its own shard" : "among all shards";
  const none = local ? "no domain has lost" : "shown from the second domain on";
  setText($("loss-worst-note"), worst ? `points, “${worst.task}” ${place}: ${lossFacts(worst)}` : none);
}

/** Rating of a loss; one whose interval contains 0 is neither good nor bad. */
export const rating = (measured) => (isSignificant(measured) ? lossRating(measured.loss) : "");

const isSignificant = ({ loss, low, high }) =>
  low === null || Math.abs(loss) <= NO_LOSS || low > 0 || high < 0;

function explainLoss(measured) {
  if (Math.abs(measured.loss) <= NO_LOSS)
    return `points of Recall@1: no loss of ${count(measured.domains, "earlier domain")} (${queryCount(measured)})`;
  const change = measured.loss > 0 ? "lost" : "gained";
  return `points of Recall@1 ${change} by ${count(measured.domains, "earlier domain")}: ${lossFacts(measured)}`;
}

/** Interval and number of queries of a loss. */
export function lossFacts(measured) {
  const { loss, low, high } = measured;
  const queries = queryCount(measured);
  if (low === null) return `${queries}, without an interval`;
  const ends = loss > 0 ? [low, high] : [-high, -low];
  const facts = `95 %: ${ends.map(points).join(" to ")}, ${queries}`;
  return isSignificant(measured) ? facts : `${facts}, not significant`;
}

const queryCount = ({ queries }) =>
  `${count(queries, "query", "queries")}${queries < FEW_QUERIES ? ": too few for a reliable share" : ""}`;

/** The gallery in which queries are searched, as the beginning of a sentence. */
function galleryText({ gallery, videos }) {
  const place = gallery === "local" ? "Searched in the own shard" : "Searched among all shards";
  return `${place}, ${videos === "all" ? "all videos" : "held-out videos"}`;
}
