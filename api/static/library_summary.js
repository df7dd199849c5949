// The summary of the library: four questions, answered from the state of tasks, measures and services.

import { api } from "./api_client.js";
import { $, button, setText } from "./dom.js";
import { stackBar } from "./domain_layers.js";
import { bytes, count, lossRating, percent, points, timeLeft } from "./formatting.js";

const NO_LOSS = 0.0005;
const SIMILAR_DOMAINS_LOSS = 0.15;
let shownAdvice = "";

export function drawSummary(overview, measures, actions) {
  drawLearned(measures, overview);
  drawForgotten(measures);
  const faults = drawHealth(overview);
  const advice = findAdvice(measures, overview, faults, actions);
  setText($("advice"), advice.text);
  // The button is replaced only when the advice changes, so that it keeps the keyboard focus.
  if (advice.text !== shownAdvice) {
    $("advice-action").replaceChildren(...(advice.action ? [advice.action] : []));
  }
  shownAdvice = advice.text;
}

function drawLearned(measures, overview) {
  setText($("learned"), count(overview.domains, "domain"));
  $("learned-bar").hidden = !overview.vectors;
  const parts = overview.first_domains.map(({ task, vectors }) => ({ name: task, share: vectors }));
  const others = overview.vectors - parts.reduce((sum, part) => sum + part.share, 0);
  if (others > 0)
    parts.push({ name: `${overview.domains - parts.length} other domains`, share: others, tone: 0 });
  stackBar($("learned-bar"), "Vectors by domain", parts);
  setText($("learned-note"), learnedNote(measures, overview));
}

function learnedNote(measures, overview) {
  if (!overview.domains) return "Nothing yet.";
  const note = `${count(overview.searchable, "video")} can be searched.`;
  const recall = measures.newest_recall_local;
  if (recall == null) return note;
  return `${note} In its own shard, ${percent(recall, 0)} of the queries rank the right video first.`;
}

function drawForgotten(measures) {
  const loss = measures.bwf_local;
  if (loss === null) {
    setText($("forgotten"), "–", "big");
    setText($("forgotten-note"), "Shown from the second domain on.");
    return;
  }
  setText($("forgotten"), loss <= NO_LOSS ? "Nothing" : `${points(loss)} points`, `big ${lossRating(loss)}`);
  const local = `Earlier domains, each in its own shard: BWF ${points(loss)}.`;
  setText($("forgotten-note"), `${local} ${globalLossNote(measures.bwf_global)}`);
}

function globalLossNote(loss) {
  if (loss === null) return "";
  return loss <= NO_LOSS ? "Among all shards: no loss either." : `Among all shards: ${points(loss)} points.`;
}

/** Show the faults of the service, and return them. */
function drawHealth(overview) {
  const faults = Object.entries(overview.degraded).map(([name, reason]) => `${name}: ${reason}`);
  for (const part of ["database", "broker"]) if (overview[part] !== "ok") faults.push(overview[part]);
  setText(
    $("healthy"),
    faults.length ? count(faults.length, "fault") : "Yes",
    `big ${faults.length ? "bad" : "good"}`,
  );
  const workers = overview.workers.length
    ? `${count(overview.workers.length, "worker")} busy`
    : "Workers idle";
  const size = bytes(overview.bytes_shards + overview.bytes_releases);
  setText(
    $("healthy-note"),
    faults[0] || `${workers}. Generation ${overview.generation} is served, ${size} on disk.`,
  );
  return faults;
}

/** The most important next step, with a button if the page can do it. */
function findAdvice(measures, overview, faults, actions) {
  return (
    adviseOnFaults(overview) ??
    adviseOnTasks(overview, actions) ??
    adviseOnSimilarDomains(measures) ?? { text: faults[0] || "Nothing. Everything is in order." }
  );
}

function adviseOnFaults(overview) {
  const shards = Object.keys(overview.degraded);
  if (shards.length) {
    return {
      text: `Repair ${shards.join(", ")}: run “cinestrata doctor”. The other domains stay searchable.`,
    };
  }
  if (overview.database !== "ok") return { text: "Start the database. Searches continue without it." };
  if (overview.broker !== "ok")
    return { text: "Start the broker; tasks wait for it. Searches continue without it." };
  return null;
}

function adviseOnTasks(overview, { refresh, add }) {
  const { failed } = overview;
  if (failed) {
    const retry = () =>
      api(`/tasks/${encodeURIComponent(failed.id)}/retry`, { method: "POST" }).then(refresh, refresh);
    return {
      text: `“${failed.name}” failed. ${failed.error_hint || "See the reason below, then retry it."}`,
      action: button("Retry", retry, { className: "primary" }),
    };
  }
  const [active] = overview.active;
  if (active) return { text: activeTaskAdvice(active, overview) };
  if (Object.values(overview.tasks).some((number) => number > 0)) return null;
  return {
    text: "Add your first domain of videos.",
    action: button("Add videos", add, { className: "primary" }),
  };
}

function activeTaskAdvice(task, overview) {
  if (task.state === "queued" && !overview.workers.length) {
    return `“${task.name}” is next. If it does not start, check that a worker runs: cinestrata worker`;
  }
  return `Nothing. ${[`“${task.name}” is being learned`, timeLeft(task)].filter(Boolean).join(", ")}.`;
}

function adviseOnSimilarDomains(measures) {
  if ((measures.bwf_global ?? 0) <= SIMILAR_DOMAINS_LOSS) return null;
  return { text: "Some domains are similar: searching one domain at a time finds more." };
}
