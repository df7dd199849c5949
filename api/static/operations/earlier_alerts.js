// Alerts that were cleared or dismissed.

import { api } from "../api_client.js";
import { $, el } from "../dom.js";
import { timeAgo } from "../formatting.js";

export async function showEarlierAlerts() {
  const { earlier } = await api("/alerts");
  const lines = earlier.map((alert) =>
    el("li", { textContent: `${alert.message} Raised ${timeAgo(alert.raised_at)}, ${ending(alert)}.` }),
  );
  $("op-earlier-none").hidden = lines.length > 0;
  $("op-earlier").querySelector("ul").replaceChildren(...lines);
}

const ending = ({ cleared_at: cleared, dismissed_at: dismissed }) =>
  cleared ? `cleared ${timeAgo(cleared)}` : `dismissed ${timeAgo(dismissed)}`;
