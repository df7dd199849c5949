// The recall matrix as a map: cells, or bins of cells, with zoom by click, by dragging and by keyboard.

import { binNumbers, createTip, label, labeledIndexes, redrawOnResize, svg } from "./chart_elements.js";
import { $, setText } from "./dom.js";
import { percent } from "./formatting.js";
import { FEW_QUERIES, hasFewQueries, hasZeroShot, queriesText } from "./recall_matrix.js";

const MAX_LABEL = 16; // characters
const NARROW = 520; // pixels
const BIN_PIXELS = { narrow: 15, wide: 21 }; // smallest size of a bin that a finger or a pointer hits
const MAX_BINS = 40;
const MIN_HEIGHT = 300;
const MAX_HEIGHT = 640;
const MIDDLE = 0.55; // share of the maximum that has the middle color
const MAX_PRINTED = 20; // columns with values in their cells
const LETTER_PIXELS = 7.5;
const DRAG_PIXELS = 6; // shorter movements are clicks
let drawn = null;
let drawnWidth = 0; // pixels
let zoomTo = () => {};

/** Number of bins that fit the width of the map. */
export function fittingBins() {
  const width = mapWidth();
  const size = width < NARROW ? BIN_PIXELS.narrow : BIN_PIXELS.wide;
  return Math.min(MAX_BINS, Math.max(8, Math.floor((width - 40) / size)));
}

/** Width of the map in pixels, also before its section is shown: otherwise the first map would be read twice. */
function mapWidth() {
  const section = $("memory");
  const isHidden = section.hidden;
  section.hidden = false; // a hidden element has no width; nothing is painted before it is hidden again
  const width = $("heat").clientWidth || section.clientWidth;
  section.hidden = isHidden;
  return width;
}

/**
 * Call functions when a part of the map is selected, and when the number of fitting bins changes.
 *
 * @param onZoom called with the window {first_release, last_release, first_domain, last_domain}, or null for all
 */
export function setUpMap(onZoom, onResize) {
  zoomTo = onZoom;
  let bins = fittingBins();
  redrawOnResize($("heat"), () => {
    if (drawn && drawnWidth !== $("heat").clientWidth) drawMap(drawn);
    if (fittingBins() === bins) return;
    bins = fittingBins();
    onResize();
  });
  $("zoom-out").addEventListener("click", () => {
    zoomTo(null);
    $("heat").querySelector("svg")?.focus({ preventScroll: true });
  });
}

export function drawMap(map) {
  drawn = map;
  drawTrail(map);
  setText($("scale-maximum"), percent(map.maximum ?? 0, 0));
  if ($("heat").hidden) return;
  const hadFocus = $("heat").contains(document.activeElement);
  drawnWidth = $("heat").clientWidth;
  const grid = layout(map, drawnWidth);
  const image = draw(map, grid);
  $("heat").replaceChildren(image);
  respond(map, grid, image);
  if (hadFocus) image.focus({ preventScroll: true });
}

const isWhole = ({ rows, columns, releases, domains }) =>
  rows[0].first === 1 &&
  columns[0].first === 1 &&
  rows.at(-1).last === releases &&
  columns.at(-1).last === domains;

function drawTrail(map) {
  const isZoomed = !isWhole(map);
  $("zoom-trail").hidden = !isZoomed;
  if (!isZoomed) return;
  const span = (bins) => binNumbers({ t: bins[0].t, last_t: bins.at(-1).last_t });
  setText($("zoom-window"), `Domains ${span(map.columns)} after releases ${span(map.rows)}`);
}

function layout(map, width) {
  const isNarrow = width < NARROW;
  const hasNames = map.rows.every((row) => row.last_name === null);
  const widestNumbers = LETTER_PIXELS * Math.max(...map.rows.map((row) => binNumbers(row).length));
  const left = isNarrow || !hasNames ? Math.max(44, widestNumbers + 12) : 148;
  const columnNames = map.columns.every((column) => column.last_name === null);
  const cellWidth = (width - left - 4) / map.columns.length;
  const isSlanted = columnNames && cellWidth < LETTER_PIXELS * Math.min(MAX_LABEL, longest(map.columns)) + 6;
  const bottom = isSlanted ? 96 : 44;
  const room = Math.min(MAX_HEIGHT, Math.max(MIN_HEIGHT, map.rows.length * Math.min(cellWidth, 64)));
  const cellHeight = room / map.rows.length;
  const gap = Math.min(cellWidth, cellHeight) > 30 ? 4 : 1;
  return {
    isNarrow,
    hasNames,
    columnNames,
    isSlanted,
    left,
    bottom,
    cellWidth,
    cellHeight,
    gap,
    room,
    width,
  };
}

const longest = (bins) => Math.max(...bins.map((bin) => bin.name.length));

function draw(map, grid) {
  const { width, room, bottom } = grid;
  const height = room + bottom;
  const image = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "application",
    tabindex: 0,
    "aria-label": "Map of the recall matrix. Arrow keys read its cells, Enter zooms in, Escape zooms out.",
    "aria-describedby": "matrix-note",
  });
  const cells = svg("g", { class: "cells" });
  for (const [row, values] of map.mean.entries()) {
    for (const [column, value] of values.entries()) {
      if (value !== null) cells.append(...drawCell(map, grid, row, column));
    }
  }
  image.append(cells, ...rowLabels(map, grid), ...columnLabels(map, grid));
  return image;
}

function drawCell(map, { left, cellWidth, cellHeight, gap, isNarrow }, row, column) {
  const value = map.mean[row][column];
  const [x, y] = [left + column * cellWidth + gap / 2, row * cellHeight + gap / 2];
  const [width, height] = [cellWidth - gap, cellHeight - gap];
  const place = { x, y, width, height, rx: gap > 1 ? 4 : 1, "data-cell": `${row + 1}-${column + 1}` };
  const rectangle = svg("rect", place);
  const share = value / Math.max(map.maximum, 0.1);
  rectangle.style.fill = heat(share);
  const hasFew = hasFewQueries(map, row, column);
  if (hasFew) rectangle.classList.add("few");
  const text = map.columns.length > MAX_PRINTED ? null : cellText(value, width, height, isNarrow);
  if (text === null) return [rectangle];
  const style = { "text-anchor": "middle", class: share >= MIDDLE ? "on-dark" : "on-light" };
  const mark = hasFew && width > 44 ? "*" : "";
  return [rectangle, label(x + width / 2, y + height / 2 + 4.5, text + mark, style)];
}

/** A color between the three of the scale. */
function heat(share) {
  const isLow = share < MIDDLE;
  const part = isLow ? share / MIDDLE : (share - MIDDLE) / (1 - MIDDLE);
  const [from, to] = isLow ? ["heat-0", "heat-1"] : ["heat-1", "heat-2"];
  return `color-mix(in oklab, var(--${to}) ${(100 * Math.min(1, part)).toFixed(1)}%, var(--${from}))`;
}

function cellText(value, width, height, isNarrow) {
  if (height < 16 || width < 22) return null;
  return (100 * value).toFixed(width < 36 || (isNarrow && width < 44) ? 0 : 1);
}

const short = (name) => (name.length > MAX_LABEL ? `${name.slice(0, MAX_LABEL - 1)}…` : name);

function rowLabels(map, { left, cellHeight, hasNames, isNarrow }) {
  return labeledIndexes(map.rows.length, cellHeight, 16).map((index) => {
    const row = map.rows[index];
    const name = hasNames && !isNarrow ? `after ${short(row.name)}` : binNumbers(row);
    return label(left - 8, (index + 0.5) * cellHeight + 4, name, { "text-anchor": "end" });
  });
}

function columnLabels(map, { left, cellWidth, room, columnNames, isSlanted, isNarrow, bottom, width }) {
  const widest = LETTER_PIXELS * binNumbers(map.columns.at(-1)).length + 10;
  const distance = isSlanted ? 15 : widest;
  const labels = labeledIndexes(map.columns.length, cellWidth, columnNames && !isSlanted ? 1 : distance).map(
    (index) => {
      const [x, y] = [left + (index + 0.5) * cellWidth, room + 18];
      const name = columnNames ? short(map.columns[index].name) : binNumbers(map.columns[index]);
      if (!isSlanted) return label(x, y, name, { "text-anchor": "middle" });
      return label(x, y - 6, name, { "text-anchor": "end", transform: `rotate(-40 ${x} ${y - 6})` });
    },
  );
  if (columnNames && !isNarrow) return labels;
  const title = columnNames ? "" : "domains";
  return [...labels, label(left + (width - left) / 2, room + bottom - 4, title, { "text-anchor": "middle" })];
}

/** Values under the pointer or the keyboard cursor, and zoom. */
function respond(map, grid, image) {
  const tip = createTip($("heat"));
  const cursor = svg("rect", { class: "cursor", rx: 3 });
  cursor.style.display = "none";
  image.append(cursor);
  let current = { row: map.rows.length - 1, column: 0 };
  let start = null;

  const cellAt = (event) => {
    const box = image.getBoundingClientRect();
    return {
      row: clamp(Math.floor((event.clientY - box.top) / grid.cellHeight), map.rows.length),
      column: clamp(Math.floor((event.clientX - box.left - grid.left) / grid.cellWidth), map.columns.length),
    };
  };
  const mark = (from, to) => {
    const [row, column] = [Math.min(from.row, to.row), Math.min(from.column, to.column)];
    cursor.setAttribute("x", grid.left + column * grid.cellWidth);
    cursor.setAttribute("y", row * grid.cellHeight);
    cursor.setAttribute("width", (Math.abs(from.column - to.column) + 1) * grid.cellWidth);
    cursor.setAttribute("height", (Math.abs(from.row - to.row) + 1) * grid.cellHeight);
    cursor.style.display = "";
  };
  const show = (cell) => {
    current = cell;
    mark(cell, cell);
    const x = grid.left + (cell.column + 0.5) * grid.cellWidth;
    tip.show(describeCell(map, cell), x, (cell.row + 1) * grid.cellHeight + 6);
  };
  const hide = () => {
    cursor.style.display = "none";
    tip.hide();
  };
  const zoom = (from, to) => {
    const window = windowOf(map, from, to);
    if (window) zoomTo(window);
  };

  image.addEventListener("pointerdown", (event) => {
    if (event.button === 0) start = { cell: cellAt(event), x: event.clientX, y: event.clientY };
  });
  image.addEventListener("pointermove", (event) => {
    const isDrag = start && event.pointerType === "mouse" && event.buttons === 1;
    if (isDrag) mark(start.cell, cellAt(event));
    else show(cellAt(event));
  });
  image.addEventListener("pointerup", (event) => {
    if (!start) return;
    const isClick = Math.abs(event.clientX - start.x) + Math.abs(event.clientY - start.y) < DRAG_PIXELS;
    const from = start.cell;
    start = null;
    const to = isClick ? from : cellAt(event);
    if (isClick) show(to);
    zoom(from, to);
  });
  image.addEventListener("pointercancel", () => {
    start = null;
  });
  image.addEventListener("pointerleave", hide);
  image.addEventListener("focus", () => image.matches(":focus-visible") && show(current));
  image.addEventListener("blur", hide);
  image.addEventListener("keydown", (event) => {
    const move = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (move) {
      show({
        row: clamp(current.row + move[0], map.rows.length),
        column: clamp(current.column + move[1], map.columns.length),
      });
    } else if (event.key === "Enter") zoom(current, current);
    else if (event.key === "Escape" && !isWhole(map)) zoomTo(null);
    else return;
    event.preventDefault();
  });
}

const clamp = (index, length) => Math.min(Math.max(index, 0), length - 1);

/** The window between two cells, or null if it would not show more than the map. */
function windowOf(map, from, to) {
  const [top, bottom] = [from.row, to.row].sort((a, b) => a - b).map((row) => map.rows[row]);
  const [left, right] = [from.column, to.column].sort((a, b) => a - b).map((column) => map.columns[column]);
  const isOneCell = top.first === bottom.last && left.first === right.last;
  const isMeasured = map.mean
    .slice(map.rows.indexOf(top), map.rows.indexOf(bottom) + 1)
    .some((row) =>
      row.slice(map.columns.indexOf(left), map.columns.indexOf(right) + 1).some((value) => value !== null),
    );
  if (isOneCell || !isMeasured) return null;
  return {
    first_release: top.first,
    last_release: bottom.last,
    first_domain: left.first,
    last_domain: right.last,
  };
}

function describeCell(map, { row, column }) {
  const value = map.mean[row][column];
  const [release, domain] = [map.rows[row], map.columns[column]];
  const title = `${binTitle("Release", release)} on ${binTitle("domain", domain)}`;
  if (value === null) return [title, "not learned yet, or without queries"];
  const isBin = release.last_name !== null || domain.last_name !== null;
  const queries = queriesText(map, row, column);
  if (!isBin) return [title, `Recall@1 ${percent(value)}`, queries];
  const extremes = `${percent(map.low[row][column])} to ${percent(map.high[row][column])}`;
  return [title, `Mean Recall@1 ${percent(value)}`, `Cells ${extremes}`, queries, "Select to see them"];
}

const binTitle = (kind, bin) =>
  bin.last_name === null ? `${kind} ${bin.t}, ${bin.name},` : `${kind}s ${binNumbers(bin)}`;

const isFew = (queries) => queries > 0 && queries < FEW_QUERIES;

/** The note above the map. */
export function mapNote(map, { gallery, videos }) {
  const searched = gallery === "local" ? "searched in its own shard" : "searched among all shards";
  const among = videos === "all" ? "all videos" : "held-out videos";
  const sentences = [
    `Recall@1 of each domain (columns) after each release (rows), ${searched}, among ${among}.`,
    map.low &&
      "A cell is the mean of its bin, weighted by queries; click it, or drag over several, to see more.",
    [map.zero_shot_queries, ...map.queries].some((row) => row.some(isFew)) &&
      `An asterisk or a dashed edge marks cells with fewer than ${FEW_QUERIES} queries.`,
    !hasZeroShot(map) && "Zero-shot recall is not measured among these videos.",
    map.has_derived_split && "For domains without a test split, a share of the videos was held out.",
  ];
  return sentences.filter(Boolean).join(" ");
}
