// The domains and how far each is. Rows are kept and brought up to date, so that focus and open lists survive.

import { askToDelete } from "./delete_dialog.js";
import { $, button, el, say } from "./dom.js";
import { ago, count, duration } from "./formatting.js";
import { api } from "./api_client.js";
import { badge, searchable } from "./domain_layers.js";

const FINAL = ["ready", "failed", "cancelled"];
const STAGES = ["probing", "training", "indexing", "evaluating"];
const MOST_STREAMS = 2; // a browser keeps six connections to a server; the rest is polled
const rows = new Map();
const streams = new Map();

export function drawTasks(tasks, refresh) {
  const live = tasks.filter((task) => !FINAL.includes(task.state));
  const order = [...live, ...tasks.filter((task) => FINAL.includes(task.state)).reverse()];
  $("tasks-empty").hidden = tasks.length > 0;
  say($("curl"), `curl ${location.origin}/tasks -H 'Content-Type: application/json' \\\n  -d '{"name": "night traffic", "videos": [{"uri": "clips/1.mp4", "captions": ["a taxi turns left"]}]}'`);
  const ready = tasks.filter(searchable).length;
  say($("tasks-note"), tasks.length ? `${ready} learned${live.length ? `, ${live.length} on the way` : ""}` : "");
  for (const task of tasks) {
    if (!rows.has(task.id)) rows.set(task.id, new Row(task, refresh));
    rows.get(task.id).update(task);
  }
  const wanted = order.map((task) => rows.get(task.id).node);
  if (wanted.length !== $("tasks").children.length || wanted.some((node, index) => $("tasks").children[index] !== node)) $("tasks").replaceChildren(...wanted);
  for (const task of live.filter((entry) => entry.state !== "queued" || entry === live[0]).slice(0, MOST_STREAMS)) watch(task.id, refresh);
}

class Row {
  constructor(task, refresh) {
    this.refresh = refresh;
    this.t = el("span", { className: "t" });
    this.state = el("span", { className: "state", "data-testid": `state-${task.name}` });
    this.fills = STAGES.map(() => el("i"));
    this.rail = el("div", { className: "rail", "aria-hidden": "true" }, ...this.fills.map((fill) => el("span", {}, fill)));
    this.progress = el("progress", { className: "hidden", max: 1, value: 0, "aria-label": `${task.name}: progress of this stage`, "data-testid": `progress-${task.name}` });
    this.facts = el("div", { className: "facts-now", "data-testid": `facts-${task.name}` });
    this.why = el("div", { className: "why", hidden: true });
    this.hint = el("div", { className: "hint", hidden: true });
    this.summary = el("summary");
    this.rejects = el("ul", { className: "rejects" });
    this.details = el("details", { hidden: true }, this.summary, this.rejects);
    this.count = el("span", { className: "count" });
    this.cancel = button("Cancel", () => this.act("cancel"), { hidden: true, "aria-label": `Cancel ${task.name}` });
    this.retry = button("Retry", () => this.act("retry"), { hidden: true, "aria-label": `Retry ${task.name}` });
    this.remove = button("Delete", () => this.ask(), { hidden: true, "aria-label": `Delete ${task.name}` });
    this.node = el("li", { "data-task": task.id }, this.t, el("span", { className: "name" }, badge(task.name)), el("span", {}, this.state),
      el("div", { className: "work" }, this.rail, this.progress, this.facts, this.why, this.hint, this.details), this.count,
      el("span", { className: "act" }, this.cancel, this.retry, this.remove));
    this.node.children[2].style.gridArea = "state";
  }

  update(task) {
    this.task = task;
    const live = !FINAL.includes(task.state);
    const progress = task.progress;
    say(this.t, task.learned_order ? String(task.learned_order) : "");
    this.t.title = task.learned_order ? `t = ${task.learned_order}: the place in which it was learned` : "";
    const emptied = task.state === "ready" && !searchable(task);
    say(this.state, task.cancel_requested && live ? "stopping" : emptied ? "deleted" : task.state);
    this.state.dataset.state = emptied ? "deleted" : task.state;
    this.state.toggleAttribute("data-live", live && task.state !== "queued");
    this.rail.hidden = !live || task.state === "queued";
    const stage = STAGES.indexOf(task.state);
    this.fills.forEach((fill, index) => { fill.style.width = `${100 * (index < stage ? 1 : index === stage ? progress.fraction : 0)}%`; });
    this.progress.value = progress.fraction;
    this.progress.hidden = !live;
    say(this.facts, live ? lively(task) : finished(task));
    this.facts.hidden = !this.facts.textContent;
    say(this.why, task.error || "");
    this.why.hidden = !task.error;
    say(this.hint, task.error_hint || "");
    this.hint.hidden = !task.error_hint;
    this.details.hidden = !task.rejected.length;
    say(this.summary, `${count(task.rejected.length, "video")} left out`);
    if (this.rejects.children.length !== Math.min(task.rejected.length, 200)) {
      this.rejects.replaceChildren(...task.rejected.slice(0, 200).map((entry) => el("li", {}, el("code", { textContent: entry.uri }), ` ${entry.reason}`)));
    }
    const { counts } = task;
    say(this.count, count(counts.accepted || counts.videos, "video"));
    this.count.title = `${counts.train} to learn from, ${counts.val} to choose by, ${counts.test} held out, ${counts.rejected} left out`;
    this.cancel.hidden = !live;
    this.cancel.disabled = task.cancel_requested;
    this.retry.hidden = !["failed", "cancelled"].includes(task.state);
    this.remove.hidden = live || (emptied && !counts.videos);
  }

  ask() {
    const { id, name, learned_order: learned, counts } = this.task;
    askToDelete({
      title: `Delete “${name}”?`,
      name,
      path: `/tasks/${encodeURIComponent(id)}`,
      lost: [
        `${count(counts.videos, "video")} with captions, metadata and previews, and the files that were uploaded. No search finds them any more.`,
        learned && "What was measured of it: its column of the recall matrix.",
      ],
      stays: [
        "Your own files below the media root.",
        learned && "What the encoders learned from it, its place as a layer, and its name, which stays taken.",
        learned && "Its vectors take room on disk until the library is compacted; nobody can reach them.",
        "What snapshots hold that were made before.",
      ],
      done: async ({ deleted }) => {
        $("tasks-done").hidden = false;
        say($("tasks-done"), `“${name}” was deleted, with ${count(deleted.length, "video")}.`);
        $("tasks-done").focus(); // the button that was pressed is gone
        await this.refresh().catch(() => {}); // the page asks again by itself
      },
    });
  }

  async act(verb) {
    try {
      await api(`/tasks/${encodeURIComponent(this.task.id)}/${verb}`, { method: "POST" });
      await this.refresh();
    } catch (error) {
      say(this.why, error.message);
      this.why.hidden = false;
    }
  }
}

function lively(task) {
  const { progress } = task;
  const left = task.eta_seconds ? `about ${duration(task.eta_seconds)} left` : null;
  if (task.state === "queued") return ["in the line", left].filter(Boolean).join(" · ");
  return [
    progress.stage === "waiting" ? "examined, waiting for its turn" : progress.stage !== task.state ? progress.stage : null,
    progress.epoch ? `epoch ${progress.epoch} of ${progress.epochs}` : null,
    progress.total && !progress.epoch ? `${progress.done ?? 0} of ${progress.total}` : null,
    progress.loss == null ? null : `loss ${progress.loss.toFixed(3)}`,
    progress.videos_per_second ? `${progress.videos_per_second.toFixed(progress.videos_per_second < 10 ? 1 : 0)} videos/s` : null,
    left,
  ].filter(Boolean).join(" · ");
}

function finished(task) {
  if (task.state === "cancelled") return `cancelled ${ago(task.finished_at || task.created_at)}`;
  if (task.state !== "ready") return "";
  if (!searchable(task)) return "its videos are deleted; later releases are built on what it taught";
  const how = task.trained ? `learned with ${task.method}` : "indexed without training: there were no captions";
  const took = duration((new Date(task.finished_at) - new Date(task.created_at)) / 1000); // its wait for others included
  return `${how} · searchable ${took} after it was posted, ${ago(task.finished_at)}${task.held_out === "derived" ? " · a share was held out to measure with" : ""}`
    + (task.progress.unmeasured ? ` · not measured: ${task.progress.unmeasured}` : "");
}

/** Progress as it happens; the page's own refresh is the safety net. */
function watch(id, refresh) {
  if (streams.has(id)) return;
  const source = new EventSource(`/tasks/${encodeURIComponent(id)}/events`);
  streams.set(id, source);
  let due = null;
  const fetchLater = () => {
    due ??= setTimeout(async () => {
      due = null;
      const task = await api(`/tasks/${encodeURIComponent(id)}`).catch(() => null);
      if (!task) return;
      rows.get(id)?.update(task);
      if (!FINAL.includes(task.state)) return;
      source.close();
      streams.delete(id);
      refresh();
    }, 250);
  };
  for (const kind of ["state", "progress", "rejected"]) source.addEventListener(kind, fetchLater);
  source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) streams.delete(id); });
}
