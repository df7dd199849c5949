// The recall matrix as a table, paged by domains and by releases, and the measures of forgetting.

import { $, el, setText } from "./dom.js";
import { count, lossRating, percent, points } from "./formatting.js";

export const FEW_QUERIES = 20; // as in the API
const MAX_MEASURED = 64; // earlier domains, as in the learning job
const NO_LOSS = 0.0005;
const COLORED_SHARE = 0.55; // of the color scale, so that numbers stay legible in every cell

/** Draw the shown gallery's rows: the untrained backbone, each domain's own release, then all releases. */
export function drawTable(matrix, view) {
  const headings = matrix.tasks.map((name) =>
    el("th", { scope: "col", title: name }, el("span", { textContent: name })),
  );
  $("matrix").tHead.replaceChildren(
    el("tr", {}, el("th", { scope: "col", textContent: "After" }), ...headings),
  );
  const gallery = galleryName(view);
  const queries = matrix.tasks.map((_, column) => Math.max(0, ...matrix.queries.map((row) => row[column])));
  const references = [
    hasZeroShot(matrix, view) && tableRow("nothing (zero-shot)", "zero-shot", matrix.zero_shot, queries),
    tableRow("its own release", "learned", matrix.learned[gallery], queries),
  ];
  const rows = matrix[`matrix_${gallery}`].map((values, index) => {
    const position = matrix.first_release + index;
    return tableRow(matrix.after[index], `cell-${position}`, values, matrix.queries[index], position);
  });
  $("matrix").tBodies[0].replaceChildren(...references.filter(Boolean), ...rows);
  setText($("matrix-note"), matrixNote(matrix, view));
}

function tableRow(heading, testId, values, queries, release = null) {
  const cells = values.map((value, column) => {
    if (value === null) return el("td", { className: "muted", textContent: "–" });
    const hasFew = queries[column] < FEW_QUERIES;
    const cell = el("td", {
      "data-testid": `${testId}-${column + 1}`,
      textContent: (100 * value).toFixed(1) + (hasFew ? "*" : ""),
      title: `${count(queries[column], "query", "queries")}${hasFew ? ": too few for a reliable share" : ""}`,
    });
    cell.style.setProperty("--share", `${100 * COLORED_SHARE * value}%`);
    return cell;
  });
  const number = release && el("small", { textContent: `${release} ` });
  return el(
    "tr",
    { className: release ? "" : "reference" },
    el("th", { scope: "row", title: heading }, number, heading),
    ...cells,
  );
}

function matrixNote(matrix, view) {
  const searched = view.gallery === "local" ? "searched in its own shard" : "searched among all shards";
  const among = view.videos === "all" ? "all videos" : "held-out videos";
  const sentences = [
    `Recall@1 in percent of each domain (columns) after each release (rows), ${searched}, among ${among}.`,
    matrix.domains > MAX_MEASURED &&
      `A release measures its own domain and at most ${MAX_MEASURED} others, evenly spaced.`,
    matrix.queries.flat().some((queries) => queries > 0 && queries < FEW_QUERIES) &&
      `An asterisk marks cells with fewer than ${FEW_QUERIES} queries.`,
    !hasZeroShot(matrix, view) && "Zero-shot recall is not measured among these videos.",
    matrix.held_out.includes("derived") &&
      "For domains without a test split, a share of the videos was held out.",
    matrix.held_out.includes("cross_fitted") && crossFittedNote(matrix),
  ];
  return sentences.filter(Boolean).join(" ");
}

/** Name the domains whose cells are cross-fitted, if others are not. */
function crossFittedNote({ held_out: uses, tasks }) {
  const own = tasks.filter((_, column) => uses[column] === "cross_fitted");
  const domains = own.length < tasks.length ? `in ${own.join(", ")} ` : "";
  return `Held-out videos ${domains}are cross-fitted: learned, but measured by a solution without them.`;
}

/** The API's name for the shown gallery. */
export const galleryName = ({ gallery, videos }) => gallery + (videos === "all" ? "_all" : "");

/** Whether the untrained backbone was measured in the shown gallery. */
export const hasZeroShot = (matrix, view) =>
  galleryName(view) === "local" && matrix.zero_shot.some((value) => value !== null);

/** Format the shown gallery's cells, given as parts of the matrix, as CSV, one line per release and domain. */
export function matrixCsv(parts, view) {
  const lines = ["release,after,domain,recall_at_1,queries"];
  for (const part of parts)
    for (const [row, values] of part[`matrix_${galleryName(view)}`].entries())
      for (const [column, value] of values.entries()) {
        if (value === null) continue;
        const names = [part.after[row], part.tasks[column]].map(quoted);
        lines.push([part.first_release + row, ...names, value, part.queries[row][column]].join(","));
      }
  return `${lines.join("\r\n")}\r\n`;
}

/** Quote a CSV field so that no spreadsheet takes it for a formula. */
const quoted = (text) => `"${(/^[=+\-@]/.test(text) ? "'" : "") + text.replaceAll('"', '""')}"`;

/** Show losses, weighted by queries, and measures from the literature. */
export function drawMeasures(matrix, view) {
  const suffix = view.videos === "all" ? "_all" : "";
  for (const gallery of ["local", "global"]) drawLoss(`loss-${gallery}`, matrix.losses[gallery + suffix]);
  drawWorst(matrix.losses[`local${suffix}`], matrix.losses[`global${suffix}`]);
  const { bwf_local: local, bwf_global: union, fr, hm } = matrix;
  for (const [id, value] of Object.entries({ "bwf-local": local, "bwf-global": union, fr }))
    setText($(id), value === null ? "–" : points(value));
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
  setText(
    $("loss-worst-note"),
    worst ? `points, “${worst.task}” ${place}: ${queryCount(worst.queries)}` : none,
  );
}

/** Rate a loss; one of few queries is neither good nor bad. */
export const rating = ({ loss, queries }) =>
  queries >= FEW_QUERIES || Math.abs(loss) <= NO_LOSS ? lossRating(loss) : "";

function explainLoss(measured) {
  if (Math.abs(measured.loss) <= NO_LOSS)
    return `points of Recall@1: no loss in ${count(measured.domains, "earlier domain")} (${queryCount(measured.queries)})`;
  const change = measured.loss > 0 ? "lost" : "gained";
  return `points of Recall@1 ${change} by ${count(measured.domains, "earlier domain")}: ${queryCount(measured.queries)}`;
}

/** Format a number of queries, with a warning if it is too small for a reliable share. */
export const queryCount = (queries) =>
  `${count(queries, "query", "queries")}${queries < FEW_QUERIES ? ": too few for a reliable share" : ""}`;
