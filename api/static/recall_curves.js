// Recall over time and router accuracy as charts over all releases.

import { path, redrawOnResize, shareChart, showValues, svg } from "./chart_elements.js";
import { $, el, setText } from "./dom.js";
import { count, percent } from "./formatting.js";
import { FEW_QUERIES, galleryName, hasZeroShot } from "./recall_matrix.js";

const MAX_BAR_LABELS = 16;
const MAX_LINES = 8; // the number of colors of the pages
let redraw = null;

redrawOnResize($("time"), () => redraw?.());

export function drawCurves(matrix, view) {
  redraw = () => {
    drawRecallOverTime(matrix, view);
    drawRouterAccuracy(matrix);
  };
  redraw();
}

/** Collect each domain's recall over the releases; null if there are many domains, or the matrix is a part. */
function domainLines(matrix, view) {
  const releases = matrix.router_accuracy.length;
  if (matrix.tasks.length !== matrix.domains || matrix.domains > MAX_LINES) return null;
  if (matrix.releases.length !== releases) return null;
  return matrix.tasks.map((name, column) => ({
    name,
    recall: matrix[`matrix_${galleryName(view)}`].map((row) => row[column]),
    zeroShot: hasZeroShot(matrix, view) ? matrix.zero_shot[column] : null,
  }));
}

function drawRecallOverTime(matrix, view) {
  const lines = domainLines(matrix, view);
  const mean = matrix[`recall_over_time_${view.gallery}`];
  const zeroShot = hasZeroShot(matrix, view)
    ? "; dashed: zero-shot"
    : "; zero-shot is not measured among these videos";
  setText(
    $("time-note"),
    lines
      ? `Recall@1 of each domain after each release${zeroShot}.`
      : "Mean Recall@1 of the domains after each release, weighted by queries, among held-out videos.",
  );
  const shares = lines ? lines.flatMap((line) => [line.zeroShot, ...line.recall]) : mean;
  const chart = shareChart($("time"), {
    title: "Recall over time",
    description: `Mean recall ${text(mean[0])} after the first release, ${text(mean.at(-1))} after the newest.`,
    count: mean.length,
    maximum: Math.max(0, ...shares.filter((share) => share !== null)),
  });
  const point = (share, index) => (share === null ? null : [chart.x(index), chart.y(share)]);
  if (!lines) chart.image.append(svg("path", { class: "curve mean", d: path(mean.map(point)) }));
  for (const [index, line] of (lines ?? []).entries()) {
    chart.image.append(...domainCurve(line, chart, point, { "data-tone": index + 1 }));
  }
  $("time").replaceChildren(chart.image);
  $("time-legend").replaceChildren(
    ...(lines ?? []).map(({ name }, index) => {
      const sample = el("span", { className: "sample", "aria-hidden": "true", "data-tone": index + 1 });
      return el("li", { title: name }, sample, el("span", { textContent: name }));
    }),
  );
  showValues($("time"), chart, mean.length, (index) => [
    `Release ${index + 1}`,
    ...(lines
      ? lines
          .filter(({ recall }) => recall[index] !== null)
          .map((line) => `${line.name} ${text(line.recall[index])}`)
      : [`Mean ${text(mean[index])}`]),
  ]);
}

const text = (share) => (share === null ? "–" : percent(share));

function domainCurve(line, chart, point, style) {
  const places = line.recall.map(point);
  const parts = [svg("path", { class: "curve", d: path(places), ...style })];
  if (line.zeroShot !== null) {
    const y = chart.y(line.zeroShot);
    const [left, right] = [chart.x(-0.4), chart.x(line.recall.length - 0.6)];
    parts.unshift(svg("path", { class: "curve zero-shot", d: `M${left} ${y}H${right}`, ...style }));
  }
  for (const place of places.filter(Boolean)) {
    parts.push(svg("circle", { class: "point", cx: place[0], cy: place[1], r: 3.5, ...style }));
  }
  return parts;
}

function drawRouterAccuracy({ router_accuracy: shares, served }) {
  const chart = shareChart($("router"), {
    title: "Router accuracy",
    description: `${text(shares.at(-1))} after the newest release.`,
    count: shares.length,
    maximum: 1,
    top: 24,
  });
  const hasLabels = shares.length <= MAX_BAR_LABELS;
  const width = Math.min(48, Math.max(2, chart.step * (hasLabels ? 0.5 : 0.8)));
  for (const [index, share] of shares.entries()) {
    if (share === null) continue;
    const x = chart.x(index) - width / 2;
    const height = chart.y(0) - chart.y(share);
    chart.image.append(
      svg("rect", { class: "bar-of", x, y: chart.y(share), width, height, rx: Math.min(6, width / 4) }),
    );
    if (!hasLabels) continue;
    const label = percent(share, 0).slice(0, -2);
    chart.image.append(
      svg("text", { x: chart.x(index), y: chart.y(share) - 6, "text-anchor": "middle" }, label),
    );
  }
  $("router").replaceChildren(chart.image);
  showValues($("router"), chart, shares.length, (index) => [
    `Release ${index + 1}`,
    `Right domain first: ${text(shares[index])}`,
  ]);
  const routed = served.router_accuracy?.queries;
  const sentences = [
    "Share of queries for which the router ranked the right domain first.",
    routed && `The served release has ${count(routed, "query", "queries")}.`,
    routed < FEW_QUERIES && "Too few for a reliable share.",
  ];
  setText($("router-note"), sentences.filter(Boolean).join(" "));
}
