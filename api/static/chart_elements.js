// Parts of charts: SVG elements, axes, and a text with the values under the pointer or the keyboard cursor.

import { el } from "./dom.js";

const NAMESPACE = "http://www.w3.org/2000/svg";
const LABEL_PIXELS = 34; // minimum distance between labels on the horizontal axis
const TIP_MARGIN = 8; // pixels
const AXIS_ENDS = [0.1, 0.2, 0.4, 0.8, 1]; // a quarter of each is a round percentage

/** Create an SVG element; null attributes are skipped. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const label = (x, y, text, attributes = {}) =>
  svg("text", { x: round(x), y: round(y), ...attributes }, String(text));

const round = (value) => Math.round(100 * value) / 100;

/** Build an SVG path through points; null points interrupt it. */
export function path(points) {
  let isOpen = false;
  let data = "";
  for (const point of points) {
    if (point) data += `${isOpen ? "L" : "M"}${round(point[0])} ${round(point[1])}`;
    isOpen = Boolean(point);
  }
  return data;
}

/** Redraw a chart whenever its element changes in width. */
export function redrawOnResize(node, draw) {
  let width = node.clientWidth;
  new ResizeObserver(() => {
    if (node.clientWidth === width || !node.clientWidth) return;
    width = node.clientWidth;
    draw();
  }).observe(node);
}

/** Choose the indexes to label, so that labels do not overlap. */
function labeledIndexes(count, pixelsPerIndex, labelPixels = LABEL_PIXELS) {
  const step = Math.max(1, Math.ceil(labelPixels / pixelsPerIndex));
  return Array.from({ length: count }, (_, index) => index).filter((index) => index % step === 0);
}

/**
 * Create a chart with shares on the vertical axis and releases on the horizontal one.
 *
 * @param node element of the chart
 * @param options title and description for assistive technology, count (of releases), maximum (share), top (pixels
 *   above the drawing area)
 * @returns {{image: SVGElement, x: (index: number) => number, y: (share: number) => number, step: number}}
 */
export function shareChart(node, { title, description, count, maximum, top = 10 }) {
  const width = Math.max(node.clientWidth, 200);
  const height = Math.max(node.clientHeight, 160);
  const [left, right, bottom] = [44, 8, 40];
  const limit = AXIS_ENDS.find((end) => end >= maximum) ?? 1;
  const step = (width - left - right) / Math.max(1, count);
  const x = (index) => left + step * (index + 0.5);
  const y = (share) => top + (height - top - bottom) * (1 - share / limit);
  const image = svg(
    "svg",
    {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      "aria-label": `${title}. ${description}`,
    },
    svg("title", {}, title),
    svg("desc", {}, description),
  );
  for (let tick = 0; tick <= 4; tick += 1) {
    const share = (limit * tick) / 4;
    image.append(
      svg("path", { d: `M${left} ${round(y(share))}H${width - right}`, class: "grid" }),
      label(left - 8, y(share) + 4, `${Math.round(1000 * share) / 10} %`, { "text-anchor": "end" }),
    );
  }
  for (const index of labeledIndexes(count, step)) {
    image.append(label(x(index), height - bottom + 18, index + 1, { "text-anchor": "middle" }));
  }
  image.append(label(left + (width - left - right) / 2, height - 4, "release", { "text-anchor": "middle" }));
  return { image, x, y, step };
}

/**
 * Show values at the pointer, and in a focused chart at a position that the arrow keys move.
 *
 * @param node element of the chart, which contains only its image
 * @param chart result of `shareChart`
 * @param describe returns the lines of text for an index
 */
export function showValues(node, { image, x }, count, describe) {
  const tip = createTip(node);
  const guide = svg("path", { class: "guide", d: `M0 6V${image.viewBox.baseVal.height - 40}` });
  guide.style.display = "none";
  image.append(guide);
  let selected = count - 1;
  const show = (index) => {
    selected = Math.min(Math.max(index, 0), count - 1);
    guide.style.display = "";
    guide.setAttribute("transform", `translate(${round(x(selected))} 0)`);
    tip.show(describe(selected), x(selected), 12);
  };
  const hide = () => {
    guide.style.display = "none";
    tip.hide();
  };
  if (!count) return;
  image.setAttribute("tabindex", "0");
  image.addEventListener("pointermove", (event) => {
    const offset = event.clientX - image.getBoundingClientRect().left;
    show(Math.round((offset - x(0)) / (x(1) - x(0))));
  });
  image.addEventListener("pointerleave", hide);
  image.addEventListener("focus", () => image.matches(":focus-visible") && show(selected));
  image.addEventListener("blur", hide);
  image.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    show(selected + step);
  });
}

/** Create a chart's text box, whose changes screen readers announce. */
function createTip(node) {
  const box = el("div", { className: "chart-tip", role: "status" });
  node.append(box);
  return {
    show(lines, x, y) {
      const texts = lines.map((line, index) => el(index ? "span" : "b", { textContent: line }));
      box.replaceChildren(...texts);
      const space = node.clientWidth - box.offsetWidth - TIP_MARGIN;
      const isLeft = x + 14 > space;
      box.style.left = `${Math.max(0, isLeft ? x - box.offsetWidth - 14 : x + 14)}px`;
      box.style.top = `${Math.max(0, y)}px`;
    },
    hide() {
      box.replaceChildren();
    },
  };
}
