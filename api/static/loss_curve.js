// The curve of a training's loss, drawn as SVG.

import { api } from "./api_client.js";
import { $, drawing, el, setText } from "./dom.js";
import { count } from "./formatting.js";

const WIDTH = 600;
const HEIGHT = 200;

/** Read and draw the losses of a task. */
export async function showLossCurve(task) {
  try {
    const curve = await api(`/tasks/${encodeURIComponent(task.id)}/losses`);
    drawCurve(curve);
  } catch (error) {
    setText($("loss-note"), `The losses cannot be loaded. ${error.message}`);
  }
}

function drawCurve({ points, reason }) {
  $("loss").hidden = points.length < 2;
  if (!points.length) {
    setText($("loss-note"), reason);
    return;
  }
  const losses = points.map(({ loss }) => loss);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const epochs = points.at(-1).epoch;
  const summary = `From ${number(losses[0])} to ${number(losses.at(-1))} in ${count(epochs ?? 1, "epoch")}`;
  setText($("loss-note"), `${summary}; loss of single training steps.`);
  if (points.length < 2) return;
  const svg = drawing(`0 0 ${WIDTH} ${HEIGHT}`, path(points, low, high));
  svg.setAttribute("preserveAspectRatio", "none");
  const label = `Loss. ${summary}. Lowest ${number(low)}, highest ${number(high)}.`;
  $("loss").replaceChildren(
    el("div", { className: "loss-plot", role: "img", "aria-label": label }, svg),
    el(
      "div",
      { className: "loss-scale", "aria-hidden": "true" },
      el("span", {}, number(high)),
      el("span", {}, number(low)),
    ),
    el("div", { className: "loss-epochs", "aria-hidden": "true" }, ...epochTicks(epochs)),
  );
}

function path(points, low, high) {
  const first = points[0].fraction;
  const span = points.at(-1).fraction - first || 1;
  const height = high - low || 1;
  const places = points.map(({ fraction, loss }) => {
    const x = (WIDTH * (fraction - first)) / span;
    const y = HEIGHT * (1 - (loss - low) / height);
    return `${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  return `M${places.join("L")}`;
}

function epochTicks(epochs) {
  if (!epochs) return [el("span", { textContent: "start" }), el("span", { textContent: "end" })];
  return [
    el("span", { textContent: "epoch 1" }),
    epochs > 1 ? el("span", { textContent: `epoch ${epochs}` }) : null,
  ].filter(Boolean);
}

const number = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3));
