// Thresholds of alerts, and earlier alerts.

import { api } from "../api_client.js";
import { $, el, setText } from "../dom.js";
import { timeAgo } from "../formatting.js";

const inputs = () => [...$("op-thresholds").querySelectorAll("input")];
const isShare = (input) => input.dataset.kind !== "failed_tasks";

/** Let the form save its values, and show the current ones. */
export async function setUpThresholds() {
  $("op-thresholds").addEventListener("submit", save);
  await showAlerts();
}

/** Show the thresholds, unless they are being edited, and earlier alerts. */
export async function showAlerts() {
  const { thresholds, earlier } = await api("/alerts");
  if (!$("op-thresholds").contains(document.activeElement)) fill(thresholds);
  $("op-earlier").hidden = !earlier.length;
  $("op-earlier")
    .querySelector("ul")
    .replaceChildren(
      ...earlier.map((alert) =>
        el("li", { textContent: `${alert.message} Raised ${timeAgo(alert.raised_at)}, ${ending(alert)}.` }),
      ),
    );
}

const ending = ({ cleared_at: cleared, dismissed_at: dismissed }) =>
  cleared ? `cleared ${timeAgo(cleared)}` : `dismissed ${timeAgo(dismissed)}`;

function fill(thresholds) {
  for (const input of inputs()) {
    const value = thresholds[input.dataset.kind];
    input.value = value === null ? "" : String(isShare(input) ? Math.round(1e6 * value) / 1e4 : value);
  }
}

async function save(event) {
  event.preventDefault();
  setText($("th-status"), "");
  $("th-error").hidden = true;
  try {
    const body = Object.fromEntries(inputs().map((input) => [input.dataset.kind, parse(input)]));
    const thresholds = await api("/alerts/thresholds", {
      method: "PATCH",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    });
    fill(thresholds);
    setText($("th-status"), "Saved. Workers compare within 30 seconds.");
  } catch (error) {
    setText($("th-error"), error.message);
    $("th-error").hidden = false;
  }
}

function parse(input) {
  const text = input.value.trim().replace(",", ".").replace(/\s*%$/, "");
  if (!text) return null;
  const value = Number(text);
  const name = input.labels[0].textContent;
  if (!Number.isFinite(value) || value <= 0) throw new Error(`${name}: write a positive number, or nothing.`);
  if (isShare(input) && value > 100) throw new Error(`${name}: write at most 100.`);
  if (!isShare(input) && !Number.isInteger(value)) throw new Error(`${name}: write a whole number.`);
  return isShare(input) ? value / 100 : value;
}
