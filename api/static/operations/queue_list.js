// Waiting tasks in the order of the queue, with buttons that move and cancel them.

import { api } from "../api_client.js";
import { $, button, el } from "../dom.js";
import { count, duration } from "../formatting.js";

let drawn = null;

/** Draw the queue; the list stays as it is, with the focus, while it has not changed. */
export function drawQueue({ queue, waiting }, refresh) {
  const state = JSON.stringify([queue, waiting]);
  if (state === drawn) return;
  drawn = state;
  $("op-queue-none").hidden = queue.length > 0;
  const rows = queue.map((task) => row(task, queue, refresh));
  const rest = waiting - queue.length;
  if (rest > 0) rows.push(el("li", { className: "muted", textContent: `and ${count(rest, "more task")}` }));
  $("op-queue").replaceChildren(...rows);
}

function row(task, queue, refresh) {
  const failure = el("span", { className: "bad", role: "alert" });
  const peers = queue.filter(({ kind }) => kind === task.kind);
  const place = peers.indexOf(task);
  const act = (action, body) => async () => {
    try {
      await api(`/tasks/${encodeURIComponent(task.id)}/${action}`, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: body && JSON.stringify(body),
      });
      await refresh();
    } catch (error) {
      failure.textContent = error.message;
    }
  };
  const move = (text, name, isPossible, body) =>
    button(text, act("move", body), {
      disabled: !isPossible,
      "aria-label": `${name}: ${task.name}`,
      title: name,
    });
  const later = peers[place + 2];
  return el(
    "li",
    { "data-testid": `queued-${task.name}` },
    el("span", { className: "name", textContent: task.name }),
    el("span", { className: "muted", textContent: facts(task) }),
    failure,
    el(
      "span",
      { className: "op-actions" },
      move("First", "Move to the front", place > 0, { to: "front" }),
      move("↑", "Move up", place > 0, { before: peers[place - 1]?.id }),
      move("↓", "Move down", place < peers.length - 1, later ? { before: later.id } : { to: "back" }),
      button("Cancel", act("cancel"), { "aria-label": `Cancel ${task.name}` }),
    ),
  );
}

function facts({ kind, state, videos, eta_seconds: left }) {
  return [
    kind === "append" ? "append" : null,
    state,
    count(videos, "video"),
    left === null ? null : `about ${duration(left)} left`,
  ]
    .filter(Boolean)
    .join(" · ");
}
