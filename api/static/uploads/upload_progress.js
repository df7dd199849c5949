// An upload's progress: total, files in transfer, and failed files.

import { el, setText } from "../dom.js";
import { bytes, count, duration } from "../formatting.js";

const INTERVAL_MILLISECONDS = 200; // between two updates of the page
const MAX_FAILED = 100;

/**
 * Create a function that shows a queue's state in the form, at most a few times per second.
 *
 * @param nodes bar, text and list
 */
export function progressView({ bar, text, list }) {
  const rows = new Map(); // item → its row
  let isScheduled = false;
  const draw = (queue) => {
    isScheduled = false;
    bar.value = queue.total ? queue.sentBytes / queue.total : 1;
    setText(text, summary(queue));
    drawRows(list, rows, [...queue.active, ...queue.failed.slice(0, MAX_FAILED)]);
  };
  return (queue) => {
    if (!isScheduled) setTimeout(draw, INTERVAL_MILLISECONDS, queue);
    isScheduled = true;
  };
}

function summary(queue) {
  const { items, sentFiles, sentBytes, total, failed, isPaused, isWaiting, speed, remainingSeconds } = queue;
  const parts = [
    `${sentFiles.toLocaleString()} of ${count(items.length, "file")}`,
    `${bytes(sentBytes)} of ${bytes(total)}`,
  ];
  if (isPaused) parts.push("paused");
  else if (speed && !isWaiting) parts.push(`${bytes(speed)}/s`, `${duration(remainingSeconds)} left`);
  if (failed.length) parts.push(`${failed.length.toLocaleString()} failed`);
  return parts.join(" · ");
}

function drawRows(list, rows, items) {
  const shown = new Set(items);
  for (const [item, row] of rows) {
    if (shown.has(item)) continue;
    row.node.remove();
    rows.delete(item);
  }
  for (const item of items) {
    if (!rows.has(item)) {
      const row = createRow(item);
      rows.set(item, row);
      list.append(row.node);
    }
    const row = rows.get(item);
    row.bar.value = item.file.size ? item.bytes / item.file.size : 1;
    row.bar.hidden = item.state === "failed";
    setText(row.note, item.note);
  }
}

function createRow(item) {
  const bar = el("progress", { max: 1, value: 0, "aria-label": item.path });
  const note = el("span", { className: "upload-note" });
  const name = el("span", { className: "upload-name", textContent: item.path, title: item.path });
  return { node: el("li", {}, name, bar, note), bar, note };
}
