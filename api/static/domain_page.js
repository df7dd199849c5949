// The page of a domain: its state, videos, worst queries, confusion with other domains, and rejected videos.

import "./search_shortcut.js";
import { api, readPage } from "./api_client.js";
import { confirmTaskDeletion } from "./delete_dialog.js";
import { $, announce, button, el, replaceRows, restoreFocus, setText } from "./dom.js";
import { dot } from "./domain_layers.js";
import { showVideos } from "./domain_videos.js";
import { count, percent, shortId, timeAgo } from "./formatting.js";
import { watchHealth } from "./health_indicator.js";
import { loadLibraryState } from "./library_state.js";
import { domainPath, pageId, showMissing } from "./page_links.js";
import { readingText } from "./page_texts.js";
import { isPermitted } from "./permissions.js";
import { showQueryReport } from "./query_report.js";
import { showRejected } from "./rejected_list.js";
import { isSearched, NOT_SEARCHED, unsearchedMessage } from "./served_release.js";
import { servicePath } from "./service_paths.js";
import { remedyText, retryTask, retryText } from "./task_retry.js";
import { isFinal } from "./task_states.js";

const POLL_MILLISECONDS = 4000;
const MAX_APPENDS = 20; // read for the page, newest first
const SHOWN_APPENDS = 3;
const page = { task: null, pinned: null, appends: [], upgrades: [], hasEarlierAppends: false, shown: "" };

watchHealth();
page.pinned = await loadLibraryState();
await load();
setInterval(() => {
  const isChanging =
    page.task &&
    [page.task, ...page.appends, ...page.upgrades].some((task) => !isFinal(task) || task.reading);
  if (isChanging && !document.hidden) load();
}, POLL_MILLISECONDS);

async function load() {
  try {
    const id = encodeURIComponent(pageId());
    const readTasks = (kind) =>
      readPage(`/tasks?into=${id}&kind=${kind}&sort=-position&limit=${MAX_APPENDS}`).catch(() => ({
        entries: [],
      }));
    const requests = [api(`/tasks/${id}`), readTasks("append"), readTasks("upgrade")];
    const [task, appends, upgrades] = await Promise.all(requests);
    if (task.into) return location.replace(domainPath(task.into));
    const hasEarlierAppends = Boolean(appends.next);
    Object.assign(page, { task, appends: appends.entries, upgrades: upgrades.entries, hasEarlierAppends });
    draw();
  } catch (error) {
    if (!page.task) showMissing("domain", error, "/admin", "Open the library");
  }
}

function draw() {
  const { task, appends } = page;
  document.title = `${task.name} · Cinestrata`;
  $("missing").hidden = true;
  drawHead(task);
  drawGlance(task, appends);
  // A poll that changes nothing must not close dialogs, lose the focus or repeat searches.
  const state = JSON.stringify([task.state, task.counts, task.release, appends.map(({ state }) => state)]);
  if (state === page.shown) return;
  page.shown = state;
  showVideos(task, {
    onDeleted: showDeletion,
    onEdited: showEdit,
    onFailed: (error) => announce($("done"), error.message),
  });
  showRejected(task);
  if (task.state !== "ready") return;
  if (isSearched(task, page.pinned)) showQueryReport(task);
  else showNotMeasured();
}

/** Say that the served release does not search the domain; searches with its captions would be refused. */
function showNotMeasured() {
  $("unsearched").replaceChildren(...unsearchedMessage(page.task.name));
  $("unsearched").hidden = false;
  setText($("found"), "–");
  setText($("found-note"), `The domain is ${NOT_SEARCHED}.`);
  $("measures").hidden = false;
  setText($("confusion-note"), `Not measured: the domain is ${NOT_SEARCHED}.`);
}

function drawHead(task) {
  $("name").replaceChildren(dot(task.name), el("span", { textContent: task.name }));
  const isEmptied = task.state === "ready" && !task.counts.accepted;
  const state = isEmptied ? "deleted" : task.state;
  $("state").hidden = false;
  setText($("state"), state);
  $("state").dataset.state = state;
  $("state").toggleAttribute("data-live", !isFinal(task) && state !== "queued");
  $("actions").hidden = !isFinal(task);
  $("search-link").hidden = task.state !== "ready" || isEmptied || !isSearched(task, page.pinned);
  $("search-link").href = servicePath(`/?${new URLSearchParams({ task: task.name })}`);
  $("append-link").hidden = task.state !== "ready" || !isPermitted("ingest");
  $("append-link").href = servicePath(`/admin?${new URLSearchParams({ into: task.id })}`);
  $("delete-domain").hidden = isEmptied || !isPermitted("ingest");
  $("delete-domain").onclick = () => confirmTaskDeletion(task, () => location.assign(servicePath("/admin")));
  drawRetry(task);
  $("work").hidden = isFinal(task) && !task.reading;
  $("work-bar").value = task.reading ? task.reading.done / task.reading.total : task.progress.fraction;
  setText($("work-text"), task.reading ? readingText(task.reading) : task.progress.stage || task.state);
  $("failure").hidden = !task.error;
  setText($("failure"), [task.error, remedyText(task)].filter(Boolean).join(" "));
}

function drawRetry(task) {
  $("retry-domain").hidden = !["failed", "cancelled"].includes(task.state) || !isPermitted("ingest");
  setText($("retry-domain"), retryText(task));
  $("retry-domain").onclick = async () => {
    try {
      await retryTask(task);
      await load();
      restoreFocus($("main"));
    } catch (error) {
      announce($("done"), error.message);
    }
  };
}

function drawGlance(task, appends) {
  const { counts } = task;
  $("glance").hidden = false;
  setText($("count"), (counts.accepted || counts.videos).toLocaleString());
  const parts = [
    [counts.train, "for training"],
    [counts.val, "for validation"],
    [counts.test, "held out"],
    [counts.appended, "appended"],
    [counts.rejected, "rejected"],
  ];
  const shown = parts
    .filter(([number]) => number)
    .map(([number, use]) => `${number.toLocaleString()} ${use}`);
  setText($("count-note"), shown.join(", "));
  const isLearned = task.state === "ready";
  setText($("learned"), isLearned ? timeAgo(task.finished_at) : "–");
  setText($("learned-note"), isLearned ? learnedNote(task) : "Not learned yet.");
  setText($("appended"), count(counts.appended, "video"));
  drawUpgrade(task, page.upgrades[0]);
  drawAppends(task, appends);
}

function describeUpgrade(outcome) {
  const recalls = [outcome.r1_before, outcome.r1_after].map((r1) => (r1 == null ? "–" : percent(r1)));
  const lines = [`Upgraded from ${outcome.backbone}: recall@1 ${recalls.join(" → ")}.`];
  if (outcome.remaining)
    lines.push(`Videos that could not be read and stay as they were: ${outcome.remaining}.`);
  return lines;
}

/** Show the last upgrade with its recall, or offer one to the backbone of new domains. */
function drawUpgrade(task, last) {
  const outcome = last?.progress.upgrade;
  const lines = [];
  if (last && !isFinal(last)) lines.push(`Upgrade to ${last.backbone}: ${last.progress.stage}`);
  else if (last?.state === "failed") lines.push(`The upgrade to ${last.backbone} failed: ${last.error}`);
  else if (outcome && outcome.status !== "undone") lines.push(...describeUpgrade(outcome));
  const isIdle =
    task.state === "ready" && task.counts.accepted && (!last || isFinal(last)) && isPermitted("ingest");
  const { backbone } = document.querySelector("[data-backbone]").dataset;
  const buttons = [];
  if (isIdle && outcome?.status === "undoable")
    buttons.push(["Undo the upgrade", "/undo"], ["Keep it", "/accept"]);
  if (isIdle && task.backbone !== backbone) buttons.push([`Upgrade to ${backbone}`, ""]);
  const state = JSON.stringify([lines, buttons]);
  if ($("upgrade-note").dataset.shown === state) return; // a poll keeps the focus of the button
  $("upgrade-note").dataset.shown = state;
  replaceRows($("upgrade-note"), [
    ...lines.map((textContent) => el("div", { textContent })),
    ...buttons.map(([text, route]) => button(text, () => changeBackbone(task, route))),
  ]);
}

async function changeBackbone(task, route) {
  try {
    await api(`/tasks/${encodeURIComponent(task.id)}/upgrade${route}`, { method: "POST" });
    await load();
  } catch (error) {
    announce($("done"), error.message);
  }
}

function learnedNote(task) {
  const way = task.trained ? `With ${task.method}` : "Indexed without training";
  const position = task.learned_order ? `, t = ${task.learned_order}` : "";
  const backbone = task.backbone ? ` on ${task.backbone}` : "";
  return `${way}${backbone}${position}, release ${shortId(task.release)}.`;
}

function drawAppends(task, appends) {
  if (!appends.length) {
    setText($("appended-note"), "No appended videos.");
    return;
  }
  const lines = appends
    .slice(0, SHOWN_APPENDS)
    .map((append) => el("div", { textContent: appendLine(append) }));
  const earlier = appends.length - SHOWN_APPENDS;
  const least = page.hasEarlierAppends ? "more than " : "";
  if (earlier > 0) lines.push(el("div", { textContent: `and ${least}${count(earlier, "earlier append")}` }));
  const { drift } = task.progress;
  if (drift?.relearn) lines.push(...relearnAdvice(task, drift));
  const state = JSON.stringify(lines.map(({ textContent }) => textContent));
  if ($("appended-note").dataset.shown === state) return; // a poll keeps the focus of the button
  $("appended-note").dataset.shown = state;
  $("appended-note").replaceChildren(...lines);
}

/** Recommend learning appended videos that the domain's encoder finds less often than the domain's own. */
function relearnAdvice(task, { k, appended, domain }) {
  const text = `Found less often: recall@${k} ${percent(appended, 0)}, other videos ${percent(domain, 0)}.`;
  if (!isPermitted("ingest")) return [el("div", { textContent: text })];
  const relearn = async () => {
    try {
      const created = await api(`/tasks/${encodeURIComponent(task.id)}/relearn`, { method: "POST" });
      location.assign(domainPath(created.id));
    } catch (error) {
      announce($("done"), error.message);
    }
  };
  return [el("div", { textContent: text }), button("Learn as a new domain", relearn)];
}

function appendLine({ counts, state, progress, created_at: at }) {
  const videos = count(counts.accepted || counts.videos, "video");
  if (state === "ready") return `${videos}, ${timeAgo(at)}`;
  const share = state === "failed" || state === "cancelled" ? "" : ` ${percent(progress.fraction, 0)}`;
  return `${videos}: ${state}${share}`;
}

async function showDeletion(text) {
  announce($("done"), text);
  $("done").focus(); // the pressed button is gone
  await load();
}

function showEdit(text) {
  announce($("done"), text);
  if (isSearched(page.task, page.pinned)) showQueryReport(page.task);
}
