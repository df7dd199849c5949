// Curves of loss and throughput for the tasks that workers process.

import { label, path, svg } from "../chart_elements.js";
import { el } from "../dom.js";

const MARGIN = { left: 48, right: 8, top: 8, bottom: 24 }; // pixels
const HEIGHT = 136;

/** Draw the running tasks into a node. */
export function drawRunning(node, tasks) {
  node.replaceChildren(
    ...tasks.map((task) =>
      el(
        "div",
        { className: "panel figure", "data-testid": `running-${task.name}` },
        el("h4", { textContent: `${task.name}: ${task.state}` }),
        el(
          "div",
          { className: "op-curves" },
          curve("Loss", task.points, "loss"),
          curve("Videos per second", task.points, "videos_per_second"),
        ),
      ),
    ),
  );
}

function curve(title, reports, field) {
  const values = reports.map((report) => report[field]);
  const measured = values.filter((value) => value !== null);
  const last = measured.at(-1);
  const heading = el("p", { className: "muted", textContent: title });
  if (measured.length < 2) {
    heading.textContent = `${title}: ${last === undefined ? "no values in this stage" : number(last)}`;
    return el("div", {}, heading);
  }
  heading.textContent = `${title}: ${number(last)}`;
  return el("div", {}, heading, drawing(title, values, measured, reports));
}

function drawing(title, values, measured, reports) {
  const [low, high] = [Math.min(...measured), Math.max(...measured)];
  const width = 420;
  const x = (index) => MARGIN.left + ((width - MARGIN.left - MARGIN.right) * index) / (values.length - 1);
  const y = (value) =>
    MARGIN.top + (HEIGHT - MARGIN.top - MARGIN.bottom) * (1 - (value - low) / (high - low || 1));
  const image = svg("svg", {
    viewBox: `0 0 ${width} ${HEIGHT}`,
    class: "op-curve",
    role: "img",
    "aria-label": `${title} of the last ${measured.length} reports: from ${number(measured[0])} to ${number(measured.at(-1))}, lowest ${number(low)}, highest ${number(high)}.`,
  });
  for (const value of new Set([low, high])) {
    image.append(
      svg("path", { d: `M${MARGIN.left} ${y(value)}H${width - MARGIN.right}`, class: "grid" }),
      label(MARGIN.left - 6, y(value) + 4, number(value), { "text-anchor": "end" }),
    );
  }
  const time = (report) => new Date(report.at).toLocaleTimeString();
  image.append(
    label(MARGIN.left, HEIGHT - 6, time(reports[0])),
    label(width - MARGIN.right, HEIGHT - 6, time(reports.at(-1)), { "text-anchor": "end" }),
  );
  const points = values.map((value, index) => (value === null ? null : [x(index), y(value)]));
  image.append(svg("path", { class: "curve", d: path(points) }));
  return image;
}

const number = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3));
