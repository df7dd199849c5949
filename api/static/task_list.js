// The list of tasks. Rows are updated in place, so that focus and opened details survive a refresh.

import { api, readPage } from "./api_client.js";
import { confirmTaskDeletion } from "./delete_dialog.js";
import { $, announce, button, el, menu, moveFocus, restoreFocus, setText } from "./dom.js";
import { recolorDot } from "./domain_layers.js";
import { bytes, count, duration, percent, timeAgo } from "./formatting.js";
import { domainLink } from "./page_links.js";
import { domainName, fileName, readingText, rejectionReason } from "./page_texts.js";
import { PagedList } from "./paged_list.js";
import { isPermitted } from "./permissions.js";
import { isSearched, NOT_SEARCHED } from "./served_release.js";
import { servicePath } from "./service_paths.js";
import { remedyText, retryTask, retryText } from "./task_retry.js";
import { isFinal, isSearchable } from "./task_states.js";

const STAGES = ["probing", "training", "indexing", "evaluating"];
const MAX_STREAMS = 2; // browsers open six connections per server; other tasks are polled with the page
const MAX_REJECTED = 10; // shown entries; the domain's page lists all
const PAGE = 10; // rows
const MIN_FILTERED = 9; // learned domains from which the list can be searched
const TYPING_MILLISECONDS = 200;
const LISTS = {
  all: { states: ["ready", "failed", "cancelled"], parameters: { kind: "domain", sort: "-position" } },
  active: { states: ["queued", ...STAGES], parameters: { sort: "position" } },
  ready: { states: ["ready"], parameters: { kind: "domain", sort: "-learned" } },
  failed: { states: ["failed", "cancelled"], parameters: { sort: "-position" } },
};
const SMALL_DOMAIN = 10; // training videos, as in the learning job
const EVENT_DELAY_MILLISECONDS = 250;
const rows = new Map();
const streams = new Map(); // ID of a watched task → function that ends the watch
const view = { text: "", state: "all" };
let pinned = null; // the earlier release that is served instead of the newest
let active = []; // the first unfinished tasks
let ended = []; // previously active tasks that the shown page does not contain yet
let listed = []; // tasks of the shown page
let pages = null;
let typing = null;

/**
 * Set up the search field, the state filter and the pages.
 *
 * @param refresh reads the library's state again
 * @param onError shows an error
 */
export function setUpTasks(refresh, onError) {
  pages = new PagedList({
    label: "domains",
    read: (cursor) => readPage(`/tasks?${listParameters(cursor)}`),
    draw: (tasks) => {
      listed = [...tasks.filter((task) => !isEmptied(task)), ...tasks.filter(isEmptied)];
      ended = [];
      drawRows(refresh);
    },
    onError,
  });
  $("tasks").parentElement.after(pages.node);
  $("tasks-filter").addEventListener("submit", (event) => event.preventDefault());
  $("tasks-text").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => filter({ text: $("tasks-text").value.trim() }), TYPING_MILLISECONDS);
  });
  $("tasks-filter").addEventListener("click", ({ target }) => {
    const pressed = target.closest("[data-state]");
    if (!pressed) return;
    for (const other of pressed.parentElement.children) {
      other.setAttribute("aria-pressed", String(other === pressed));
    }
    filter({ state: pressed.dataset.state });
  });
}

function filter(change) {
  Object.assign(view, change);
  return pages.restart();
}

/** Read the shown page again. */
export const refreshTasks = () => pages.refresh();

/** Show the unfinished tasks and the counts in the library's state. */
export function drawTasks(status, refresh) {
  const unfinished = new Set(status.active.map((task) => task.id));
  ended = [...active, ...ended]
    .filter((task) => !unfinished.has(task.id))
    .map((task) => rows.get(task.id)?.task ?? task); // an event may have updated the row
  ({ active, pinned } = status);
  const hasTasks = Object.values(status.tasks).some((number) => number > 0);
  $("tasks-empty").hidden = hasTasks;
  $("tasks-filter").hidden = status.release_count < MIN_FILTERED && !isFiltered();
  setText($("tasks-note"), hasTasks ? summary(status) : "");
  drawRows(refresh);
  const streamed = active.filter((task) => task.state !== "queued" || task === active[0]);
  for (const task of streamed.slice(0, MAX_STREAMS)) watchEvents(task.id, refresh);
}

/** Update relative times. */
export function updateTimes() {
  for (const row of rows.values()) row.update(row.task);
}

const isFiltered = () => view.text !== "" || view.state !== "all";

/** Build the shown list's parameters. Without a filter, unfinished tasks come from the library's state. */
function listParameters(cursor) {
  const parameters = new URLSearchParams({ limit: PAGE, ...LISTS[view.state].parameters });
  const states = view.state === "all" && view.text ? [] : LISTS[view.state].states;
  for (const state of states) parameters.append("state", state);
  if (view.text) parameters.set("text", view.text);
  if (cursor) parameters.set("cursor", cursor);
  return parameters;
}

/** Whether a ready task's videos were all deleted. */
const isEmptied = (task) => task.state === "ready" && !isSearchable(task);

function drawRows(refresh) {
  const current = new Map(active.map((task) => [task.id, task]));
  const known = new Set(listed.map((task) => task.id));
  const isFirst = !isFiltered() && pages.isFirst;
  const first = isFirst ? [...active, ...ended].filter((task) => !known.has(task.id)) : [];
  const shown = [...first, ...listed].map((task) => current.get(task.id) ?? task);
  for (const task of shown) {
    if (!rows.has(task.id)) rows.set(task.id, new TaskRow(task, refresh));
    rows.get(task.id).update(task);
    if (isFinal(task)) streams.get(task.id)?.(); // a final task can be deleted, and a request for it would then fail
  }
  placeRows(shown.map((task) => rows.get(task.id).node));
  const ids = new Set(shown.map((task) => task.id));
  for (const id of rows.keys()) if (!ids.has(id)) rows.delete(id);
  $("tasks-none").hidden = shown.length > 0 || !isFiltered();
  setText($("tasks-none"), view.text ? `No domain matches “${view.text}”.` : "No domain is in this state.");
}

function summary({ domains, trained_domains: trained, searchable_domains: searched, tasks }) {
  const numberOf = (states) => states.reduce((sum, state) => sum + tasks[state], 0);
  const [unfinished, failed] = [numberOf(LISTS.active.states), tasks.failed];
  const parts = [
    `${trained} learned`,
    domains > trained && `${domains - trained} indexed without training`,
    domains > searched && `${domains - searched} of them not searched`,
    unfinished && `${unfinished} in progress`,
    failed && `${failed} failed`,
  ];
  return parts.filter(Boolean).join(", ");
}

/** Place the rows; those in order stay where they are, since a moved row would lose the focus. */
function placeRows(nodes) {
  const list = $("tasks");
  const hadFocus = list.contains(document.activeElement);
  for (const node of [...list.children]) if (!nodes.includes(node)) node.remove();
  for (const [index, node] of nodes.entries()) {
    if (list.children[index] !== node) list.insertBefore(node, list.children[index] ?? null);
  }
  if (hadFocus && !list.contains(document.activeElement)) moveFocus(list.closest("section"));
}

class TaskRow {
  constructor(task, refresh) {
    this.refresh = refresh;
    this.order = el("span", { className: "t" });
    this.state = el("span", { className: "state", "data-testid": `state-${task.name}` });
    this.count = el("span", { className: "count" });
    this.createProgress(task);
    this.createNotes(task);
    this.createButtons(task);
    const stateName = el("span", { className: "hidden", textContent: `${domainName(task)}: ` });
    const stateCell = el("span", { role: "status" }, stateName, this.state);
    stateCell.style.gridArea = "state";
    this.link = domainLink(domainName(task), task.into ?? task.id);
    this.node = el(
      "li",
      { "data-task": task.id },
      this.order,
      el(
        "span",
        { className: "name" },
        this.link,
        task.into
          ? el("span", { className: "pill", textContent: task.upgrades ? "upgrade" : "append" })
          : null,
      ),
      stateCell,
      el(
        "div",
        { className: "work" },
        this.stages,
        this.progress,
        this.facts,
        this.error,
        this.hint,
        this.rejected,
      ),
      this.count,
      el(
        "span",
        { className: "act" },
        this.cancelButton,
        this.retryButton,
        this.relearnButton,
        this.upgradeButton,
        this.menu,
      ),
    );
  }

  createProgress(task) {
    this.stageFills = STAGES.map(() => el("i"));
    const stages = this.stageFills.map((fill) => el("span", {}, fill));
    this.stages = el("div", { className: "rail", "aria-hidden": "true" }, ...stages);
    this.progress = el("progress", {
      className: "hidden",
      max: 1,
      value: 0,
      "aria-label": `${task.name}: progress of the current stage`,
      "data-testid": `progress-${task.name}`,
    });
  }

  createNotes(task) {
    this.facts = el("div", { className: "facts-now", "data-testid": `facts-${task.name}` });
    this.error = el("div", { className: "why", hidden: true });
    this.hint = el("div", { className: "hint", hidden: true });
    this.rejectedSummary = el("summary");
    this.rejectedList = el("ul", { className: "rejects" });
    this.rejected = el("details", { hidden: true }, this.rejectedSummary, this.rejectedList);
    this.rejected.addEventListener("toggle", () => this.rejected.open && this.readRejected());
  }

  createButtons({ name }) {
    const hiddenButton = (text, onClick) =>
      button(text, onClick, { hidden: true, "aria-label": `${text} ${name}` });
    this.cancelButton = hiddenButton("Cancel", () => this.request("cancel", `“${name}” is being cancelled.`));
    this.retryButton = hiddenButton("Retry", () => this.attempt(() => retryTask(this.task)));
    this.relearnButton = hiddenButton("Relearn", () =>
      this.request("relearn", `The appended videos of “${name}” will be learned.`),
    );
    this.upgradeButton = hiddenButton("Upgrade", () => this.request("upgrade", `“${name}” is upgrading.`));
    this.upgradeButton.title = `Learn the domain again on ${$("f-backbone").placeholder}, which new domains use`;
    this.relearnButton.title = "Learn the appended videos as a new domain, and move them there";
    const confirm = () => confirmTaskDeletion(this.task, ({ deleted }) => this.showDeletion(name, deleted));
    this.menu = menu(
      `More actions for ${name}`,
      button("Delete", confirm, { className: "quiet", "aria-label": `Delete ${name}` }),
    );
  }

  update(task) {
    const hasFocus = this.node.contains(document.activeElement);
    this.task = task;
    const isActive = !isFinal(task);
    const hasNoVideos = isEmptied(task);
    const { counts, learned_order: order } = task;
    setText(this.order, order ? String(order) : "");
    this.order.title = order ? `t = ${order}: position in the sequence of learned tasks` : "";
    this.updateState(task, isActive, hasNoVideos);
    this.updateProgress(task, isActive);
    this.updateNotes(task, isActive);
    setText(this.count, count(counts.accepted || counts.videos, "video"));
    this.count.title = `${counts.train} for training, ${counts.val} for validation, ${counts.test} held out, ${counts.rejected} rejected`;
    const mayChange = isPermitted("ingest");
    this.cancelButton.hidden = !mayChange || !isActive;
    this.cancelButton.disabled = task.cancel_requested;
    this.retryButton.hidden = !mayChange || !["failed", "cancelled"].includes(task.state);
    setText(this.retryButton, retryText(task));
    this.retryButton.setAttribute("aria-label", `${retryText(task)} ${task.name}`);
    this.relearnButton.hidden = !mayChange || !isSearchable(task) || !task.progress.drift?.relearn;
    const isCurrent = task.backbone === $("f-backbone").placeholder;
    this.upgradeButton.hidden = !mayChange || !isSearchable(task) || !task.backbone || isCurrent;
    this.menu.hidden = !mayChange || isActive || (hasNoVideos && !counts.videos);
    if (hasFocus) restoreFocus(this.link);
  }

  updateState(task, isActive, hasNoVideos) {
    recolorDot(this.link, domainName(task)); // a domain has a color once it is learned
    const state = hasNoVideos ? "deleted" : task.state;
    const isLeftOut = isSearchable(task) && !isSearched(task, pinned);
    const name = isLeftOut ? "not searched" : state;
    setText(this.state, task.cancel_requested && isActive ? "stopping" : name);
    this.state.dataset.state = isLeftOut ? "cancelled" : state;
    this.state.toggleAttribute("data-live", isActive && task.state !== "queued");
  }

  updateProgress({ state, progress }, isActive) {
    this.stages.hidden = !isActive || state === "queued";
    const current = STAGES.indexOf(state);
    this.stageFills.forEach((fill, index) => {
      const fraction = index === current ? progress.fraction : Number(index < current);
      fill.style.width = `${100 * fraction}%`;
    });
    this.progress.value = progress.fraction;
    this.progress.hidden = !isActive;
  }

  updateNotes(task, isActive) {
    setOptionalText(this.facts, isActive ? activeFacts(task) : finalFacts(task));
    setOptionalText(this.error, task.error);
    setOptionalText(this.hint, remedyText(task));
    const rejected = Math.max(task.counts.rejected, task.rejected.length);
    this.rejected.hidden = !rejected;
    setText(this.rejectedSummary, `${count(rejected, "video")} rejected`);
    // The reasons explain the failure; a user who closes the list keeps it closed.
    if (rejected && task.state === "failed" && !this.isOpened) {
      this.isOpened = true;
      this.rejected.open = true; // which reads the list
    } else if (this.rejected.open && this.rejectedList.children.length < Math.min(rejected, MAX_REJECTED)) {
      this.readRejected();
    }
  }

  async readRejected() {
    const path = `/videos?task=${encodeURIComponent(this.task.id)}&status=rejected&limit=${MAX_REJECTED}`;
    const { videos } = await api(path).catch(() => ({ videos: [] }));
    const items = videos.map(({ uri, reason }) =>
      el("li", {}, el("code", { textContent: fileName(uri) }), ` ${rejectionReason(reason)}`),
    );
    const others = this.task.counts.rejected - items.length;
    if (items.length && others > 0)
      items.push(el("li", { textContent: `and ${count(others, "more video")}` }));
    this.rejectedList.replaceChildren(...items);
  }

  async showDeletion(name, deleted) {
    announce($("tasks-done"), `“${name}” was deleted, with ${count(deleted.length, "video")}.`);
    $("tasks-done").focus(); // the pressed button is gone
    await this.refresh().catch(() => {}); // the page refreshes itself again
  }

  request(action, done) {
    return this.attempt(async () => {
      await api(`/tasks/${encodeURIComponent(this.task.id)}/${action}`, { method: "POST" });
      announce($("tasks-done"), done);
    });
  }

  async attempt(change) {
    try {
      await change();
      await this.refresh();
    } catch (error) {
      setOptionalText(this.error, error.message);
    }
  }
}

function setOptionalText(node, text) {
  setText(node, text || "");
  node.hidden = !text;
}

const joinFacts = (facts) => facts.filter(Boolean).join(" · ");

function activeFacts(task) {
  const { state, progress } = task;
  if (state === "queued") return "queued";
  const speed = progress.videos_per_second;
  return joinFacts([
    stageName(state, progress.stage),
    progress.epoch ? `epoch ${progress.epoch} of ${progress.epochs}` : null,
    progress.total && !progress.epoch ? `${progress.done ?? 0} of ${progress.total}` : null,
    progress.loss == null ? null : `loss ${progress.loss.toFixed(3)}`,
    speed ? `${speed.toFixed(speed < 10 ? 1 : 0)} videos/s` : null,
    peakMemory(task),
  ]);
}

function peakMemory(task) {
  const peak = task.progress.peak_memory;
  return peak ? `at most ${bytes(peak)} of memory` : null;
}

function stageName(state, stage) {
  if (stage === "waiting") return "checked, waiting for training";
  return stage === state || stage === "queued" ? null : stage; // a claimed task keeps its previous stage for a moment
}

function finalFacts(task) {
  if (task.state === "cancelled") return `cancelled ${timeAgo(task.finished_at || task.created_at)}`;
  if (task.state !== "ready") return "";
  if (!isSearchable(task)) return "its videos are deleted; later releases build on its training";
  // The duration includes the time in the queue.
  const total = duration((new Date(task.finished_at) - new Date(task.created_at)) / 1000);
  const { unmeasured } = task.progress;
  return joinFacts([
    task.trained
      ? `learned with ${[task.method, task.backbone].filter(Boolean).join(" on ")}`
      : untrainedNote(task),
    task.trained &&
      task.counts.train < SMALL_DOMAIN &&
      `small domain (${count(task.counts.train, "training video")}): more captioned videos improve search`,
    isSearched(task, pinned)
      ? `searchable ${total} after it was added, ${timeAgo(task.finished_at)}`
      : `${NOT_SEARCHED}, learned ${timeAgo(task.finished_at)}`,
    task.counts.appended > 0 && `${count(task.counts.appended, "video")} appended`,
    task.held_out === "derived" &&
      task.counts.test > 0 &&
      "a share of the videos was held out for evaluation",
    driftNote(task.progress.drift),
    task.reading && readingText(task.reading).toLowerCase(),
    task.trained && peakMemory(task),
    unmeasured && `not measured: ${unmeasured}`,
  ]);
}

/** Say why a domain was not trained. Captions may have been added since. */
function untrainedNote({ method }) {
  if (method === "zero_shot") return "indexed without training";
  return "indexed without training, because no training video had a caption; captions added since are searched, but not learned";
}

/** Recommend learning appended videos that the domain's encoder finds less often than the domain's own. */
function driftNote(drift) {
  if (!drift?.relearn) return null;
  return (
    `appended videos are found less often (recall@${drift.k} ${percent(drift.appended, 0)}, domain ${percent(drift.domain, 0)}): ` +
    "learn them as a new domain"
  );
}

/** Update a row on server-sent events. The page's refresh makes up for lost events. */
function watchEvents(id, refresh) {
  if (streams.has(id)) return;
  const source = new EventSource(servicePath(`/tasks/${encodeURIComponent(id)}/events`));
  const requests = new AbortController();
  let timer = null;
  const stop = () => {
    source.close();
    clearTimeout(timer);
    requests.abort();
    streams.delete(id);
  };
  streams.set(id, stop);
  const updateRow = async () => {
    timer = null;
    const path = `/tasks/${encodeURIComponent(id)}`;
    const task = await api(path, { signal: requests.signal }).catch(() => null);
    if (!task) return;
    rows.get(id)?.update(task);
    if (!isFinal(task)) return;
    stop();
    refresh();
  };
  const schedule = () => {
    timer ??= setTimeout(updateRow, EVENT_DELAY_MILLISECONDS);
  };
  for (const kind of ["state", "progress", "rejected"]) source.addEventListener(kind, schedule);
  source.addEventListener("error", () => {
    if (source.readyState === EventSource.CLOSED) stop();
  });
}
