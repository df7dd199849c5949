// Notices above the library: a pinned release, and domains that have lost recall.

import { $, button, el, replaceRows } from "../dom.js";
import { count, timeAgo } from "../formatting.js";
import { isPermitted } from "../permissions.js";
import { unsearchedText } from "../served_release.js";
import { openServeDialog } from "./serve_release_dialog.js";

const MAX_ALERTS = 3; // shown until the user asks for more
let drawn = null;

/** Draw the notices for a state of the library. */
export function drawNotices(status, refresh) {
  const { pinned, alerts, open_alerts: number } = status;
  const state = JSON.stringify([pinned, alerts, number]);
  if (state === drawn) return;
  drawn = state;
  const notices = alerts.map(alertNotice);
  if (number > alerts.length) {
    notices.push(
      el("p", { className: "muted", textContent: `and ${count(number - alerts.length, "more alert")}` }),
    );
  }
  const folded = notices.splice(MAX_ALERTS);
  if (folded.length) {
    const summary = el("summary", { textContent: count(number - MAX_ALERTS, "more alert") });
    notices.push(el("details", {}, summary, ...folded));
  }
  replaceRows($("notices"), [...(pinned ? [pinNotice(pinned, refresh)] : []), ...notices]);
}

function pinNotice(pinned, refresh) {
  const text =
    `The release after “${pinned.task}” is served, not the newest one (after “${pinned.newest_task}”). ` +
    `${unsearchedText(pinned)} ` +
    "Newly learned domains are kept, but aren't searched either.";
  return el(
    "div",
    { className: "op-notice", role: "status", "data-testid": "pinned" },
    el("p", { textContent: text }),
    isPermitted("admin") ? button("Serve the newest", () => openServeDialog("newest", refresh)) : null,
  );
}

function alertNotice(alert) {
  return el(
    "div",
    { className: "op-notice alert", role: "status", "data-testid": `alert-${alert.kind}` },
    el("p", {}, alert.message, el("small", { textContent: ` ${timeAgo(alert.raised_at)} ` })),
  );
}
