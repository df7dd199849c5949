// Recall over time and router accuracy as charts.

import { binNumbers, path, redrawOnResize, shareChart, showValues, svg } from "./chart_elements.js";
import { $, el, setText } from "./dom.js";
import { count, percent, points } from "./formatting.js";
import { FEW_QUERIES, hasZeroShot } from "./recall_matrix.js";

const MAX_BAR_LABELS = 16;
let drawn = null;

redrawOnResize($("time"), () => drawn && drawCurves(drawn));

export function drawCurves(map) {
  drawn = map;
  drawRecallOverTime(map);
  drawRouterAccuracy(map);
}

/** Whether all domains of the window are drawn as lines, and not only those with the largest loss. */
const showsAllDomains = (map) => map.lines.length === map.columns.at(-1).last - map.columns[0].first + 1;

function drawRecallOverTime(map) {
  const zeroShot = hasZeroShot(map) ? "dashed: zero-shot" : "zero-shot is not measured among these videos";
  setText($("time-note"), `Recall@1 of the domains of the map after each release; ${zeroShot}.`);
  const hasAll = showsAllDomains(map);
  const shares = [...map.recall_high, ...map.lines.flatMap((line) => [line.zero_shot, ...line.recall])];
  const chart = shareChart($("time"), {
    title: "Recall over time",
    description: describeCurves(map),
    rows: map.rows,
    maximum: Math.max(0, ...shares.filter((share) => share !== null)),
  });
  const point = (share, index) => (share === null ? null : [chart.x(index), chart.y(share)]);
  if (!hasAll) chart.image.append(...meanCurve(map, point));
  for (const [index, line] of map.lines.entries()) {
    chart.image.append(
      ...domainCurve(line, chart, point, hasAll ? { "data-tone": index + 1 } : { "data-dash": index + 1 }),
    );
  }
  $("time").replaceChildren(chart.image);
  $("time-legend").replaceChildren(...legend(map, hasAll));
  showValues($("time"), chart, map.rows.length, (index) => [
    `Release ${binNumbers(map.rows[index])}`,
    ...(hasAll ? [] : [`Mean ${text(map.recall_mean[index])}`, `80 % of domains ${range(map, index)}`]),
    ...map.lines
      .filter((line) => line.recall[index] !== null)
      .map((line) => `${line.name} ${text(line.recall[index])}`),
  ]);
}

const text = (share) => (share === null ? "–" : percent(share));
const range = (map, index) => `${text(map.recall_low[index])} to ${text(map.recall_high[index])}`;

function describeCurves(map) {
  const last = map.rows.length - 1;
  return `Mean recall ${text(map.recall_mean[0])} after release ${map.rows[0].t}, ${text(map.recall_mean[last])} after release ${map.rows[last].last_t}.`;
}

function meanCurve(map, point) {
  const high = map.recall_high.map(point);
  const low = map.recall_low.map(point);
  const outline = [...high, ...low.reverse()].filter(Boolean);
  return [
    svg("path", { class: "band", d: `${path(outline)}Z` }),
    svg("path", { class: "curve mean", d: path(map.recall_mean.map(point)) }),
  ];
}

function domainCurve(line, chart, point, style) {
  const places = line.recall.map(point);
  const parts = [svg("path", { class: "curve", d: path(places), ...style })];
  if (line.zero_shot !== null) {
    const y = chart.y(line.zero_shot);
    const [left, right] = [chart.x(-0.4), chart.x(line.recall.length - 0.6)];
    parts.unshift(svg("path", { class: "curve zero-shot", d: `M${left} ${y}H${right}`, ...style }));
  }
  if (line.recall.length <= MAX_BAR_LABELS) {
    for (const place of places.filter(Boolean)) {
      parts.push(svg("circle", { class: "point", cx: place[0], cy: place[1], r: 3.5, ...style }));
    }
  }
  return parts;
}

function legend(map, hasAll) {
  const lines = map.lines.map((line, index) => {
    const style = hasAll ? { "data-tone": index + 1 } : { "data-dash": index + 1 };
    const loss = !hasAll && line.loss !== null ? ` (${points(-line.loss)})` : "";
    return legendEntry("sample", style, line.name + loss);
  });
  if (hasAll) return lines;
  return [
    legendEntry("sample mean", {}, "mean of the domains"),
    legendEntry("sample band", {}, "10th to 90th percentile"),
    ...lines,
  ];
}

function legendEntry(className, style, name) {
  const sample = el("span", { className, "aria-hidden": "true", ...style });
  return el("li", { title: name }, sample, el("span", { textContent: name }));
}

function drawRouterAccuracy(map) {
  const known = map.router_accuracy.filter((share) => share !== null);
  const chart = shareChart($("router"), {
    title: "Router accuracy",
    description: known.length
      ? `${text(known.at(-1))} of ${routedQueries(map, map.rows.length - 1)} after the newest of these releases.`
      : "Not measured.",
    rows: map.rows,
    maximum: 1,
    top: 24,
  });
  const width = Math.min(48, Math.max(2, chart.step * (map.rows.length > MAX_BAR_LABELS ? 0.8 : 0.5)));
  for (const [index, share] of map.router_accuracy.entries()) {
    if (share === null) continue;
    const x = chart.x(index) - width / 2;
    const height = chart.y(0) - chart.y(share);
    chart.image.append(
      svg("rect", { class: "bar-of", x, y: chart.y(share), width, height, rx: Math.min(6, width / 4) }),
    );
    if (map.rows.length > MAX_BAR_LABELS) continue;
    const y = chart.y(share) - 6;
    chart.image.append(svg("text", { x: chart.x(index), y, "text-anchor": "middle" }, barLabel(map, index)));
  }
  $("router").replaceChildren(chart.image);
  showValues($("router"), chart, map.rows.length, (index) => [
    `Release ${binNumbers(map.rows[index])}`,
    `Right domain first: ${text(map.router_accuracy[index])}`,
    routedQueries(map, index),
  ]);
  const last = map.router_queries.at(-1);
  const few = map.router_queries.some((queries) => queries > 0 && queries < FEW_QUERIES);
  const sentences = [
    "Share of queries for which the router ranked the right domain first.",
    last > 0 && `The last bar has ${count(last, "query", "queries")}.`,
    few && `An asterisk marks bars of fewer than ${FEW_QUERIES} queries.`,
  ];
  setText($("router-note"), sentences.filter(Boolean).join(" "));
}

const routedQueries = (map, index) => count(map.router_queries[index], "query", "queries");

const barLabel = (map, index) =>
  percent(map.router_accuracy[index], 0).slice(0, -2) + (map.router_queries[index] < FEW_QUERIES ? "*" : "");
