// Waiting tasks in queue order, with buttons that cancel them.

import { api } from "../api_client.js";
import { $, button, el, replaceRows } from "../dom.js";
import { count } from "../formatting.js";

let drawn = null;

/** Draw the queue; an unchanged list stays as it is and keeps the focus. */
export function drawQueue({ queue, waiting }, refresh) {
  const state = JSON.stringify([queue, waiting]);
  if (state === drawn) return;
  drawn = state;
  $("op-queue-none").hidden = queue.length > 0;
  const rows = queue.map((task) => row(task, refresh));
  const rest = waiting - queue.length;
  if (rest > 0) rows.push(el("li", { className: "muted", textContent: `and ${count(rest, "more task")}` }));
  replaceRows($("op-queue"), rows);
}

function row(task, refresh) {
  const failure = el("span", { className: "bad", role: "alert" });
  const cancel = async () => {
    try {
      await api(`/tasks/${encodeURIComponent(task.id)}/cancel`, { method: "POST" });
      await refresh();
    } catch (error) {
      failure.textContent = error.message;
    }
  };
  return el(
    "li",
    { "data-testid": `queued-${task.name}` },
    el("span", { className: "name", textContent: task.name }),
    el("span", { className: "muted", textContent: facts(task) }),
    failure,
    button("Cancel", cancel, { "aria-label": `Cancel ${task.name}` }),
  );
}

function facts({ kind, state, videos }) {
  const videosToAdd = kind === "upgrade" ? null : count(videos, "video");
  return [kind === "domain" ? null : kind, state, videosToAdd].filter(Boolean).join(" · ");
}
