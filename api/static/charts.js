// Plotly in the colours of the page.

import { $ } from "./dom.js";
import { tone } from "./domain_layers.js";
import { matrixOf } from "./recall_matrix.js";

const probe = document.createElement("span");
probe.hidden = true;
document.body.append(probe);

export function drawCharts(measures, view) {
  if (!window.Plotly) { addEventListener("load", () => drawCharts(measures, view), { once: true }); return; }
  const colours = Object.fromEntries(["ink", "ink-2", "ink-3", "line", "surface", "accent", "heat-0", "heat-1", "heat-2", ...Array.from({ length: 8 }, (_, i) => `l${i + 1}`)].map((name) => [name, colour(name)]));
  const cells = matrixOf(measures, view).map((row) => row.map((value) => (value === null ? null : 100 * value)));
  if (!$("heat").hidden) heat(measures, cells, colours);
  time(measures, cells, colours);
  router(measures, colours);
}

/** A colour of the page as Plotly understands it: custom properties alone would still say light-dark(…). */
function colour(name) {
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

function layout(colours, changes = {}) {
  const axis = { color: colours["ink-3"], gridcolor: colours.line, zeroline: false, tickfont: { size: 12 }, fixedrange: true, automargin: true };
  return {
    paper_bgcolor: "transparent", plot_bgcolor: "transparent", showlegend: false, dragmode: false, hovermode: "closest",
    font: { family: getComputedStyle(document.body).fontFamily, color: colours.ink, size: 13 }, margin: { l: 8, r: 8, t: 8, b: 8 },
    hoverlabel: { bgcolor: colours.surface, bordercolor: colours.line, font: { color: colours.ink, size: 13 } }, ...changes,
    xaxis: { ...axis, showgrid: false, ...changes.xaxis }, yaxis: { ...axis, ...changes.yaxis },
  };
}

const config = { displayModeBar: false, responsive: true };
const releases = (measures) => measures.releases.map((_, i) => `${i + 1}`);

function heat(measures, cells, colours) {
  const highest = Math.max(10, ...cells.flat().filter((value) => value !== null));
  const narrow = $("heat").clientWidth < 520;
  Plotly.react("heat", [{
    type: "heatmap", z: cells, x: measures.tasks.map((_, t) => t), y: measures.releases.map((_, i) => i), xgap: 4, ygap: 4, zmin: 0, zmax: highest, hoverongaps: false, showscale: false,
    texttemplate: narrow && measures.tasks.length > 5 ? "%{z:.0f}" : "%{z:.1f}", textfont: { size: narrow ? 12 : 14 }, customdata: cells.map((row, i) => row.map((_, t) => [measures.after[i], measures.tasks[t]])),
    hovertemplate: "Release %{customdata[0]}<br>on %{customdata[1]}: Recall@1 %{z:.1f} %<extra></extra>",
    colorscale: [[0, colours["heat-0"]], [0.55, colours["heat-1"]], [1, colours["heat-2"]]],
  }], layout(colours, {
    xaxis: { tickvals: measures.tasks.map((_, t) => t), ticktext: measures.tasks.map(clip), tickangle: narrow || measures.tasks.length > 7 ? -40 : 0, ticks: "" },
    yaxis: { tickvals: measures.releases.map((_, i) => i), ticktext: measures.releases.map((_, i) => (narrow ? `${i + 1} ` : `after ${clip(measures.after[i])} `)), autorange: "reversed", showgrid: false, ticks: "" },
  }), config);
}

function time(measures, cells, colours) {
  const x = releases(measures);
  const lines = measures.tasks.flatMap((name, t) => {
    const line = { color: colours[`l${tone(name)}`], width: 2.5 };
    const learned = { x, y: cells.map((row) => row[t]), name, mode: "lines+markers", line, marker: { size: 7, line: { width: 2, color: colours.surface } }, hovertemplate: `${escaped(name)}: %{y:.1f} %<extra></extra>` };
    const before = measures.zero_shot[t];
    if (before === null) return [learned];
    return [{ x, y: x.map(() => 100 * before), mode: "lines", line: { color: line.color, width: 1, dash: "dash" }, opacity: 0.55, showlegend: false, hoverinfo: "skip" }, learned];
  });
  Plotly.react("time", lines.map((line) => ({ ...line, name: escaped(line.name ?? "") })), layout(colours, {
    showlegend: true, legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { color: colours["ink-2"], size: 12 }, itemclick: false, itemdoubleclick: false },
    xaxis: { type: "category", title: { text: "release", font: { size: 12, color: colours["ink-3"] } } }, yaxis: { rangemode: "tozero", ticksuffix: " %" },
  }), config);
}

function router(measures, colours) {
  const y = measures.router_accuracy.map((value) => (value === null ? null : 100 * value));
  Plotly.react("router", [{ type: "bar", x: releases(measures), y, marker: { color: colours.accent, cornerradius: 6 }, width: 0.5, texttemplate: "%{y:.0f}", textposition: "outside", cliponaxis: false, textfont: { color: colours["ink-2"], size: 12 }, hovertemplate: "Release %{x}: %{y:.1f} %<extra></extra>" }],
    layout(colours, { xaxis: { type: "category", title: { text: "release", font: { size: 12, color: colours["ink-3"] } } }, yaxis: { range: [0, 108], tickvals: [0, 25, 50, 75, 100], ticksuffix: " %" } }), config);
}

// Plotly reads a small markup in its texts; a name is to stay a name.
const escaped = (name) => String(name).replace(/&/g, "&amp;").replace(/</g, "&lt;");
const clip = (name) => escaped(String(name).length > 16 ? `${String(name).slice(0, 15)}…` : name);
