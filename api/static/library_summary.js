// The library's summary: learned domains, forgetting, health and the next step.

import { confirmTaskDeletion } from "./delete_dialog.js";
import { $, button, el, replaceRows, setText } from "./dom.js";
import { stackBar } from "./domain_layers.js";
import { bytes, count, percent, points } from "./formatting.js";
import { domainPath } from "./page_links.js";
import { domainName, fileName, rejectionReason } from "./page_texts.js";
import { isPermitted } from "./permissions.js";
import { FEW_QUERIES, queryCount, rating } from "./recall_matrix.js";
import { NOT_SEARCHED } from "./served_release.js";
import { remedyText, retryTask, retryText } from "./task_retry.js";

const NO_LOSS = 0.0005;
const SIMILAR_DOMAINS_LOSS = 0.15;
const START_WORKERS = "Start the workers: cinestrata worker --queue cpu, and --queue gpu.";
let shownAdvice = "";

export function drawSummary(overview, measures, actions) {
  drawLearned(measures, overview);
  drawForgotten(measures);
  const faults = drawHealth(overview);
  const advice = findAdvice(measures, overview, faults, actions);
  setText($("advice"), advice.text);
  // The button is replaced only when the advice changes, so that it keeps the keyboard focus.
  if (advice.text !== shownAdvice) {
    replaceRows($("advice-action"), advice.actions ?? []);
  }
  shownAdvice = advice.text;
}

function drawLearned(measures, overview) {
  const domains = overview.searchable_domains;
  setText($("learned"), count(domains, "domain"));
  $("learned-bar").hidden = !overview.vectors;
  const parts = overview.first_domains.map(({ task, vectors }) => ({ name: task, share: vectors }));
  const others = overview.vectors - parts.reduce((sum, part) => sum + part.share, 0);
  if (others > 0) parts.push({ name: `${domains - parts.length} other domains`, share: others, tone: 0 });
  stackBar($("learned-bar"), "Vectors by domain", parts);
  setText($("learned-note"), learnedNote(measures, overview));
}

function learnedNote(measures, overview) {
  if (!overview.domains) return "Nothing yet.";
  const note = [searchedNote(overview), unmeasuredNote(measures, overview)].filter(Boolean).join(" ");
  const { recall } = measures.served;
  if (!recall.local) return note;
  const places = [
    ["in its own shard", recall.local],
    ["among all shards", recall.global],
    ["among all videos", recall.global_all],
  ];
  const shares = places
    .filter(([, share]) => share)
    .map(([place, share]) => `${percent(share.share, 0)} ${place}`);
  return `${note} Of ${count(recall.local.queries, "held-out query", "held-out queries")}, the right video comes first for ${shares.join(", ")}.`;
}

function searchedNote({ domains, searchable_domains: searched, searchable: videos }) {
  const note = `${count(videos, "video")} can be searched.`;
  const left = domains - searched;
  if (!left) return note;
  return `${note} ${count(left, "later domain")} ${left === 1 ? "is" : "are"} ${NOT_SEARCHED}.`;
}

/** Count domains without held-out captions, which the figures leave out. */
function unmeasuredNote({ served }, { searchable_domains: searched }) {
  const number = searched - served.domains;
  if (number <= 0) return "";
  return `${count(number, "domain")} without held-out captions ${number === 1 ? "is" : "are"} not measured.`;
}

/** Show losses as searches experience them, weighted by queries. */
function drawForgotten(measures) {
  const { loss } = measures.served;
  const unfound = unfoundDomains(measures.served).number;
  if (!loss.local) {
    setText($("forgotten"), "–", "big");
    setText($("forgotten-note"), `Shown from the second domain on. ${unfoundNote(measures.served)}`.trim());
    return;
  }
  const measured = [loss.local, loss.global, loss.global_all].filter(Boolean);
  const largest = measured.reduce((first, second) => (second.loss > first.loss ? second : first));
  const most = largest.loss;
  // A domain that was never found has lost nothing, but is not good.
  const color = unfound && rating(largest) === "good" ? "" : rating(largest);
  setText($("forgotten"), most <= NO_LOSS ? "Nothing" : `${points(most)} points`, `big ${color}`.trim());
  const notes = [
    lossNote("in their own shard", loss.local),
    loss.global && lossNote("among all shards", loss.global),
    loss.global_all && lossNote("among all videos", loss.global_all),
    worstNote(measured),
    unfoundNote(measures.served),
  ];
  setText($("forgotten-note"), notes.filter(Boolean).join(" "));
}

function lossNote(place, measured) {
  const { loss, queries } = measured;
  const start = `Earlier domains ${place}`;
  if (Math.abs(loss) <= NO_LOSS) return `${start}: no loss (${count(queries, "query", "queries")}).`;
  const change = loss > 0 ? `${points(loss)} points lost` : `${points(-loss)} points gained`;
  return `${start}: ${change} (${queryCount(measured.queries)}).`;
}

/** Name the domain with the largest loss, which the mean over all queries hides. */
function worstNote(measured) {
  const worst = measured.map((one) => one.worst).filter(Boolean);
  if (!worst.length) return "";
  const most = worst.reduce((first, second) => (second.loss > first.loss ? second : first));
  return `Most: “${most.task}”, ${points(most.loss)} points (${queryCount(most.queries)}).`;
}

/** Find domains in which no query ranks its video first, among all videos if that is measured. */
function unfoundDomains(served) {
  return served.recall.global_all
    ? { number: served.unfound_all_domains, first: served.unfound_all, place: "among all videos" }
    : { number: served.unfound_domains, first: served.unfound, place: "among all shards" };
}

function unfoundNote(served) {
  const { number, first, place } = unfoundDomains(served);
  if (!number) return "";
  const names = first.map(({ task, queries }) => `“${task}” (${queryCount(queries)})`);
  if (number > names.length) names.push(`${number - names.length} more`);
  return `Not found ${place}: no query of ${names.join(", ")} ranks its video first.`;
}

/** Show the faults of the service and the open alerts, and return the faults. */
function drawHealth(overview) {
  const faults = findFaults(overview);
  const { alerts, open_alerts: number } = overview;
  const parts = [faults.length && count(faults.length, "fault"), number && count(number, "alert")];
  const verdict = parts.filter(Boolean).join(", ");
  const rating = faults.length ? "bad" : "warn";
  setText($("healthy"), verdict || "Good", `big ${verdict ? rating : "good"}`);
  setText($("healthy-note"), [...faults, ...alerts.map(({ message }) => message)][0] ?? wellNote(overview));
  return faults;
}

function findFaults(overview) {
  const faults = Object.entries(overview.degraded).map(([name, reason]) => `${name}: ${reason}`);
  for (const part of ["database", "broker"]) if (overview[part] !== "ok") faults.push(overview[part]);
  if (overview.missing_workers) faults.push("No worker is running: tasks wait, and alerts aren't evaluated.");
  if (overview.open_failures) faults.push(`${count(overview.open_failures, "task")} failed.`);
  return faults;
}

function wellNote({
  workers,
  live_workers: live,
  generation,
  bytes_shards: shards,
  bytes_releases: releases,
}) {
  const state = workers.length
    ? `${count(workers.length, "worker")} busy`
    : `${live ? count(live, "worker") : "No worker"}, no task in progress`;
  return `${state}. Generation ${generation} is served, ${bytes(shards + releases)} on disk.`;
}

/** Find the most important next step, with a button if the page can do it. */
function findAdvice(measures, overview, faults, actions) {
  return (
    adviseOnFaults(overview) ??
    adviseOnPin(overview) ??
    adviseOnTasks(overview, actions) ??
    adviseOnUnfoundDomains(measures) ??
    adviseOnSimilarDomains(measures) ??
    adviseOnAlerts(overview) ??
    (faults.length ? { text: faults[0] } : adviseOnCaptions(overview)) ?? {
      text: "Nothing. Everything is in order.",
    }
  );
}

function adviseOnFaults(overview) {
  const shards = Object.keys(overview.degraded);
  if (shards.length) {
    return {
      text: `${shards.join(", ")} can't be searched: “cinestrata doctor” names the cause. The other domains stay searchable.`,
    };
  }
  if (overview.database !== "ok") return { text: "Start the database. Searches continue without it." };
  if (overview.broker !== "ok")
    return { text: "Start the broker; tasks are waiting for it. Searches continue without it." };
  if (overview.missing_workers) return { text: `${START_WORKERS} Searches continue without them.` };
  return null;
}

function adviseOnPin({ pinned }) {
  if (!pinned) return null;
  const { domains } = pinned.unsearchable;
  const lost = domains ? ` ${count(domains, "domain")} ${domains === 1 ? "is" : "are"} not searched.` : "";
  return { text: `Serve a later release once the reason for the rollback is gone.${lost}` };
}

function adviseOnAlerts({ alerts }) {
  return alerts.length ? { text: `Look at the alerts above: ${alerts[0].message}` } : null;
}

function adviseOnCaptions({ uncaptioned: domain }) {
  if (!domain) return null;
  const { task_id: id, task, videos, uncaptioned } = domain;
  const none = `${uncaptioned.toLocaleString()} of its ${count(videos, "video")}`;
  return {
    text: `Add captions to “${task}”: ${none} ${uncaptioned === 1 ? "has" : "have"} none. They improve search most.`,
    actions: [el("a", { href: domainPath(id), textContent: "Open its videos" })],
  };
}

function adviseOnTasks(overview, { refresh, add }) {
  const { failed } = overview;
  if (failed) return adviseOnFailure(failed, refresh);
  const [active] = overview.active;
  if (active) return { text: activeTaskAdvice(active, overview) };
  if (Object.values(overview.tasks).some((number) => number > 0)) return null;
  if (!isPermitted("ingest")) return { text: "Nothing. The library is empty." };
  return {
    text: "Add your first domain of videos.",
    actions: [button("Add videos", add, { className: "primary" })],
  };
}

/** Explain a failure with its first rejected file, and offer to retry or delete the task. */
function adviseOnFailure(failed, refresh) {
  const retry = () => retryTask(failed).then(refresh, refresh);
  const actions = [
    button(retryText(failed), retry, { className: "primary" }),
    button("Delete", () => confirmTaskDeletion(failed, refresh), { "aria-label": `Delete ${failed.name}` }),
  ];
  const sentences = [
    `“${domainName(failed)}” failed.`,
    failed.error,
    ...rejectedSentences(failed),
    remedyText(failed) || "See the reason below, then retry it.",
  ];
  return { text: sentences.filter(Boolean).join(" "), actions: isPermitted("ingest") ? actions : [] };
}

function rejectedSentences({ rejected, counts }) {
  const others = counts.rejected - rejected.length;
  if (!rejected.length) return [];
  const [{ uri, reason }] = rejected;
  const text = rejectionReason(reason);
  const named = text.includes(fileName(uri)) ? text : `${fileName(uri)}: ${text}`;
  return [others > 0 ? `${named} (and ${count(others, "more file")}).` : `${named}.`.replace("..", ".")];
}

function activeTaskAdvice(task, overview) {
  const name = domainName(task);
  if (task.state === "queued" && !overview.workers.length) {
    return `“${name}” is next. If it doesn't start: ${START_WORKERS}`;
  }
  if (task.progress.outages) {
    return `Check the source of “${name}”: it doesn't respond. The task continues when it does.`;
  }
  return `Nothing. “${name}” is being ${task.upgrades ? "upgraded" : "learned"}.`;
}

function adviseOnUnfoundDomains({ served }) {
  const domain = unfoundDomains(served).first.find(({ queries }) => queries >= FEW_QUERIES);
  if (!domain) return null;
  return {
    text: `Open “${domain.task}”: none of its ${domain.queries} queries finds its video. Its page lists them.`,
  };
}

function adviseOnSimilarDomains({ served }) {
  if ((served.loss.global?.loss ?? 0) <= SIMILAR_DOMAINS_LOSS) return null;
  return { text: "Some domains are similar: searching one domain at a time finds more." };
}
