// The curve of a training's loss.

import { api } from "./api_client.js";
import { label, labeledIndexes, path, redrawOnResize, showValues, svg } from "./chart_elements.js";
import { $, setText } from "./dom.js";
import { count } from "./formatting.js";

const TICKS = 4;
const MARGIN = { left: 52, right: 8, top: 10, bottom: 40 }; // pixels
const EPOCH_LABEL_PIXELS = 30;
let drawn = [];

if ($("loss")) redrawOnResize($("loss"), () => drawn.length && drawCurve(drawn));

/** Read and draw the losses of a task. */
export async function showLossCurve(task) {
  try {
    const { points, reason } = await api(`/tasks/${encodeURIComponent(task.id)}/losses`);
    setText($("loss-note"), points.length ? `${summary(points)}; loss of single training steps.` : reason);
    $("loss").hidden = points.length < 2;
    if (points.length > 1) drawCurve(points);
  } catch (error) {
    setText($("loss-note"), `The losses cannot be loaded. ${error.message}`);
  }
}

const number = (value) => (Math.abs(value) >= 100 ? value.toFixed(0) : value.toPrecision(3));

function summary(points) {
  const epochs = points.at(-1).epoch ?? 1;
  return `From ${number(points[0].loss)} to ${number(points.at(-1).loss)} in ${count(epochs, "epoch")}`;
}

function drawCurve(points) {
  drawn = points;
  const node = $("loss");
  const width = Math.max(node.clientWidth, 200);
  const height = Math.max(node.clientHeight, 160);
  const losses = points.map(({ loss }) => loss);
  const [low, high] = [Math.min(...losses), Math.max(...losses)];
  const step = (width - MARGIN.left - MARGIN.right) / (points.length - 1);
  const x = (index) => MARGIN.left + step * index;
  const y = (loss) =>
    MARGIN.top + (height - MARGIN.top - MARGIN.bottom) * (1 - (loss - low) / (high - low || 1));
  const image = svg("svg", {
    viewBox: `0 0 ${width} ${height}`,
    width,
    height,
    role: "img",
    "aria-label": `Loss. ${summary(points)}. Lowest ${number(low)}, highest ${number(high)}.`,
  });
  for (let tick = 0; tick <= TICKS; tick += 1) {
    const loss = low + ((high - low) * tick) / TICKS;
    image.append(
      svg("path", { d: `M${MARGIN.left} ${y(loss)}H${width - MARGIN.right}`, class: "grid" }),
      label(MARGIN.left - 8, y(loss) + 4, number(loss), { "text-anchor": "end" }),
    );
  }
  image.append(...epochLabels(points, x, step, height));
  image.append(svg("path", { class: "curve", d: path(losses.map((loss, index) => [x(index), y(loss)])) }));
  node.replaceChildren(image);
  showValues(node, { image, x }, points.length, (index) => [
    `Loss ${number(losses[index])}`,
    `epoch ${points[index].epoch ?? 1}, ${Math.round(100 * points[index].fraction)} % of the training`,
  ]);
}

/** The number of each epoch at its first step, as far as there is room. */
function epochLabels(points, x, step, height) {
  const firsts = points.flatMap(({ epoch }, index) => (epoch !== points[index - 1]?.epoch ? [index] : []));
  const pixels = (step * points.length) / firsts.length;
  const labels = labeledIndexes(firsts.length, pixels, EPOCH_LABEL_PIXELS).map((place) =>
    label(x(firsts[place]), height - MARGIN.bottom + 18, points[firsts[place]].epoch ?? 1, {
      "text-anchor": "middle",
    }),
  );
  const middle = (x(0) + x(points.length - 1)) / 2;
  return [...labels, label(middle, height - 4, "epoch", { "text-anchor": "middle" })];
}
