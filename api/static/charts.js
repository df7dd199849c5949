// Plotly charts in the colors of the page.

import { $ } from "./dom.js";
import { colorNumber } from "./domain_layers.js";
import { selectedMatrix } from "./recall_matrix.js";

const CONFIG = { displayModeBar: false, responsive: true };
const MAX_LABEL = 16; // characters
const NARROW = 520; // pixels
const COLOR_NAMES = [
  ..."ink ink-2 ink-3 line surface accent heat-0 heat-1 heat-2".split(" "),
  ...Array.from({ length: 8 }, (_, index) => `l${index + 1}`),
];

const colorProbe = document.createElement("span");
colorProbe.hidden = true;
document.body.append(colorProbe);

export function drawCharts(measures, view) {
  if (!window.Plotly) {
    addEventListener("load", () => drawCharts(measures, view), { once: true });
    return;
  }
  const colors = Object.fromEntries(COLOR_NAMES.map((name) => [name, resolveColor(name)]));
  const cells = selectedMatrix(measures, view).map((row) => row.map(toPercent));
  if (!$("heat").hidden) drawHeatmap(measures, cells, colors);
  drawRecallOverTime(measures, cells, colors);
  drawRouterAccuracy(measures, colors);
}

const toPercent = (value) => (value === null ? null : 100 * value);
const releaseNumbers = (measures) => measures.releases.map((_, index) => `${index + 1}`);

/** A color of the page as rgb(…): custom properties contain light-dark(…), which Plotly does not parse. */
function resolveColor(name) {
  colorProbe.style.color = `var(--${name})`;
  return getComputedStyle(colorProbe).color;
}

function chartLayout(colors, { xaxis, yaxis, ...changes }) {
  const axis = {
    color: colors["ink-3"],
    gridcolor: colors.line,
    zeroline: false,
    tickfont: { size: 12 },
    fixedrange: true,
    automargin: true,
  };
  const hoverFont = { color: colors.ink, size: 13 };
  return {
    paper_bgcolor: "transparent",
    plot_bgcolor: "transparent",
    showlegend: false,
    dragmode: false,
    hovermode: "closest",
    font: { family: getComputedStyle(document.body).fontFamily, color: colors.ink, size: 13 },
    margin: { l: 8, r: 8, t: 8, b: 8 },
    hoverlabel: { bgcolor: colors.surface, bordercolor: colors.line, font: hoverFont },
    ...changes,
    xaxis: { ...axis, showgrid: false, ...xaxis },
    yaxis: { ...axis, ...yaxis },
  };
}

const releaseAxis = (colors) => ({
  type: "category",
  title: { text: "release", font: { size: 12, color: colors["ink-3"] } },
});

function drawHeatmap(measures, cells, colors) {
  const isNarrow = $("heat").clientWidth < NARROW;
  const tasks = measures.tasks;
  const trace = {
    type: "heatmap",
    z: cells,
    x: tasks.map((_, task) => task),
    y: measures.releases.map((_, release) => release),
    xgap: 4,
    ygap: 4,
    zmin: 0,
    zmax: Math.max(10, ...cells.flat().filter((value) => value !== null)),
    hoverongaps: false,
    showscale: false,
    texttemplate: isNarrow && tasks.length > 5 ? "%{z:.0f}" : "%{z:.1f}",
    textfont: { size: isNarrow ? 12 : 14 },
    customdata: cells.map((row, release) => row.map((_, task) => [measures.after[release], tasks[task]])),
    hovertemplate: "Release %{customdata[0]}<br>on %{customdata[1]}: Recall@1 %{z:.1f} %<extra></extra>",
    colorscale: [
      [0, colors["heat-0"]],
      [0.55, colors["heat-1"]],
      [1, colors["heat-2"]],
    ],
  };
  const releaseLabel = (release) =>
    isNarrow ? `${release + 1} ` : `after ${shortLabel(measures.after[release])} `;
  const layout = chartLayout(colors, {
    xaxis: {
      tickvals: trace.x,
      ticktext: tasks.map(shortLabel),
      tickangle: isNarrow || tasks.length > 7 ? -40 : 0,
      ticks: "",
    },
    yaxis: {
      tickvals: trace.y,
      ticktext: trace.y.map(releaseLabel),
      autorange: "reversed",
      showgrid: false,
      ticks: "",
    },
  });
  Plotly.react("heat", [trace], layout, CONFIG);
}

function drawRecallOverTime(measures, cells, colors) {
  const lines = measures.tasks.flatMap((name, task) => recallLines(measures, cells, colors, name, task));
  const layout = chartLayout(colors, {
    showlegend: true,
    legend: {
      orientation: "h",
      x: 0,
      y: 1.02,
      yanchor: "bottom",
      font: { color: colors["ink-2"], size: 12 },
      itemclick: false,
      itemdoubleclick: false,
    },
    xaxis: releaseAxis(colors),
    yaxis: { rangemode: "tozero", ticksuffix: " %" },
  });
  Plotly.react("time", lines, layout, CONFIG);
}

/** The recall of a domain after each release, and its zero-shot recall as a dashed line. */
function recallLines(measures, cells, colors, name, task) {
  const x = releaseNumbers(measures);
  const color = colors[`l${colorNumber(name)}`];
  const learned = {
    x,
    y: cells.map((row) => row[task]),
    name: escapeMarkup(name),
    mode: "lines+markers",
    line: { color, width: 2.5 },
    marker: { size: 7, line: { width: 2, color: colors.surface } },
    hovertemplate: `${escapeMarkup(name)}: %{y:.1f} %<extra></extra>`,
  };
  const zeroShot = measures.zero_shot[task];
  if (zeroShot === null) return [learned];
  const dashed = {
    x,
    y: x.map(() => 100 * zeroShot),
    name: "",
    mode: "lines",
    line: { color, width: 1, dash: "dash" },
    opacity: 0.55,
    showlegend: false,
    hoverinfo: "skip",
  };
  return [dashed, learned];
}

function drawRouterAccuracy(measures, colors) {
  const trace = {
    type: "bar",
    x: releaseNumbers(measures),
    y: measures.router_accuracy.map(toPercent),
    marker: { color: colors.accent, cornerradius: 6 },
    width: 0.5,
    texttemplate: "%{y:.0f}",
    textposition: "outside",
    cliponaxis: false,
    textfont: { color: colors["ink-2"], size: 12 },
    hovertemplate: "Release %{x}: %{y:.1f} %<extra></extra>",
  };
  const yaxis = { range: [0, 108], tickvals: [0, 25, 50, 75, 100], ticksuffix: " %" };
  Plotly.react("router", [trace], chartLayout(colors, { xaxis: releaseAxis(colors), yaxis }), CONFIG);
}

/** Plotly renders a subset of HTML in texts; names must stay plain text. */
const escapeMarkup = (name) => String(name).replace(/&/g, "&amp;").replace(/</g, "&lt;");

function shortLabel(name) {
  const text = String(name);
  return escapeMarkup(text.length > MAX_LABEL ? `${text.slice(0, MAX_LABEL - 1)}…` : text);
}
