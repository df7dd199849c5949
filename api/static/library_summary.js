// Four questions, answered from facts.

import { $, button, say } from "./dom.js";
import { bytes, count, duration, percent, points } from "./formatting.js";
import { api } from "./api_client.js";
import { searchable, stackBar } from "./domain_layers.js";

const FINAL = ["ready", "failed", "cancelled"];
let advised = "";

export function glance(tasks, measures, overview, actions) {
  learned(tasks, measures, overview);
  forgotten(measures);
  const faults = health(overview);
  const advice = advise(tasks, measures, overview, faults, actions);
  say($("advice"), advice.text);
  // Replaced only when it changes, or the keyboard's focus would be lost with it.
  if (advice.text !== advised) $("advice-action").replaceChildren(...(advice.action ? [advice.action] : []));
  advised = advice.text;
}

function learned(tasks, measures, overview) {
  const ready = tasks.filter(searchable);
  const held = overview.shards.filter((shard) => shard.count > shard.deleted);
  say($("learned"), count(ready.length, "domain"));
  $("learned-bar").hidden = !held.length;
  stackBar($("learned-bar"), "Vectors by domain", held.map((shard) => ({ name: shard.task, share: shard.count - shard.deleted })));
  const recall = measures.recall_over_time_local.at(-1);
  say($("learned-note"), !ready.length ? "Nothing yet."
    : `${count(overview.searchable, "video")} can be searched.` + (recall == null ? "" : ` Asked in their own shard, ${percent(recall, 0)} of queries find the right video first.`));
}

function forgotten(measures) {
  const lost = measures.bwf_local;
  if (lost === null) {
    say($("forgotten"), "–", "big");
    say($("forgotten-note"), "Shown from the second domain on.");
    return;
  }
  say($("forgotten"), lost <= 0.0005 ? "Nothing" : `${points(lost)} points`, `big ${lost <= 0.005 ? "good" : lost <= 0.03 ? "warn" : "bad"}`);
  const union = measures.bwf_global;
  say($("forgotten-note"), `Earlier domains, each in its own shard: BWF ${points(lost)}. ` + (union === null ? ""
    : union <= 0.0005 ? "Among all shards: nothing lost either." : `Among all shards: ${points(union)} points.`));
}

function health(overview) {
  const faults = Object.entries(overview.degraded).map(([name, reason]) => `${name}: ${reason}`);
  for (const part of ["database", "broker"]) if (overview[part] !== "ok") faults.push(overview[part]);
  say($("healthy"), faults.length ? (faults.length === 1 ? "One fault" : `${faults.length} faults`) : "Yes", `big ${faults.length ? "bad" : "good"}`);
  const work = overview.workers.length ? `${count(overview.workers.length, "worker")} at work` : "Workers idle";
  say($("healthy-note"), faults[0] || `${work}. Generation ${overview.generation} answers, ${bytes(overview.bytes_shards + overview.bytes_releases)} on disk.`);
  return faults;
}

function advise(tasks, measures, overview, faults, { refresh, add }) {
  const failed = tasks.find((task) => task.state === "failed");
  const live = tasks.find((task) => !FINAL.includes(task.state));
  const broken = Object.keys(overview.degraded);
  if (broken.length) return { text: `Repair ${broken.join(", ")}: run “cinestrata doctor”. The other domains are searched meanwhile.` };
  if (overview.database !== "ok") return { text: "Start the database. Searches go on meanwhile." };
  if (overview.broker !== "ok") return { text: "Start the broker, or tasks will wait. Searches go on meanwhile." };
  if (failed) {
    return {
      text: `“${failed.name}” failed. ${failed.error_hint || "Read why below, then try it again."}`,
      action: button("Retry", () => api(`/tasks/${encodeURIComponent(failed.id)}/retry`, { method: "POST" }).then(refresh, refresh), { className: "primary" }),
    };
  }
  if (live && !overview.workers.length && live.state === "queued") return { text: `“${live.name}” is next. If it does not start, see that a worker runs: cinestrata worker` };
  if (live) return { text: `Nothing. “${live.name}” is being learned${live.eta_seconds ? `, about ${duration(live.eta_seconds)} left` : ""}.` };
  if (!tasks.length) return { text: "Add your first domain of videos.", action: button("Add a domain", add, { className: "primary" }) };
  if ((measures.bwf_global ?? 0) > 0.15) return { text: "Domains look alike: searching one domain at a time finds more." };
  return faults.length ? { text: faults[0] } : { text: "Nothing. All is well." };
}
