// The section "Operations" of the library page: queue, running tasks, workers, maintenance and webhooks.

import { api, sendJson } from "../api_client.js";
import { $, el, restoreFocus, setText } from "../dom.js";
import { bytes, count, percent, timeAgo } from "../formatting.js";
import { isPermitted } from "../permissions.js";
import { drawRunning } from "./live_curves.js";
import { drawQueue } from "./queue_list.js";
import { showSnapshots } from "./snapshot_list.js";
import { setUpWebhooks, showWebhooks } from "./webhook_panel.js";

const REFRESH_MILLISECONDS = 5000;
const LISTS_EVERY = 6; // refreshes: lists that change rarely
let isVisible = false;
let rounds = 0;
let lastWritten = null; // the newest job that has written a snapshot

/** Show the section, and refresh it while it is on the screen. */
export async function watchOperations() {
  if (!isPermitted("admin")) return; // the page has no section
  $("operations").hidden = false;
  $("op-compact").addEventListener("click", () => start({ kind: "compact" }));
  $("op-snapshot").addEventListener("click", () => start({ kind: "snapshot" }));
  new IntersectionObserver(([entry]) => {
    isVisible = entry.isIntersecting;
    if (isVisible) refresh();
  }).observe($("operations"));
  setInterval(() => isVisible && !document.hidden && refresh(), REFRESH_MILLISECONDS);
  await Promise.all([refresh(), setUpWebhooks()]).catch(showProblem);
}

async function refresh() {
  try {
    const status = await api("/operations");
    draw(status);
    await showNewSnapshots(status);
    rounds += 1;
    if (rounds % LISTS_EVERY === 0) await Promise.all([showWebhooks(), showSnapshots()]);
    setText($("operations-note"), "");
  } catch (error) {
    showProblem(error);
  }
}

/** Read the list of snapshots again when a job has written one. */
async function showNewSnapshots({ jobs }) {
  const written = jobs.find((job) => job.kind === "snapshot" && job.state === "done")?.id ?? null;
  if (written === lastWritten) return;
  lastWritten = written;
  await showSnapshots();
}

const showProblem = (error) => setText($("operations-note"), error.message);

function draw(status) {
  drawTiles(status);
  drawRunning($("op-running"), status.running);
  drawQueue(status, refresh);
  drawWorkers(status.workers);
  drawJobs(status);
}

function drawTiles({ waiting, messages, free_bytes: free, total_bytes: total, workers }) {
  setText($("op-waiting"), waiting.toLocaleString());
  const lengths = Object.entries(messages).map(([name, length]) => `${name} ${length ?? "no response"}`);
  setText($("op-messages"), `broker: ${lengths.join(", ")}`);
  setText($("op-disk"), free === null ? "–" : bytes(free));
  setText($("op-disk-note"), total ? `${percent(free / total, 0)} of ${bytes(total)}` : "");
  const alive = workers.filter((worker) => worker.alive);
  const failed = workers.filter((worker) => worker.error).length;
  setText($("op-workers"), alive.length.toLocaleString());
  setText($("op-workers-note"), failed ? `${failed} with an error` : "no errors");
}

/** List running workers and those with an error; others seen within a day have ended, mostly by a restart. */
function drawWorkers(workers) {
  const listed = workers.filter((worker) => worker.alive || worker.error);
  const ended = workers.filter((worker) => !listed.includes(worker)); // newest first
  const rows = listed.map((worker) =>
    el(
      "tr",
      {},
      el("td", {}, el("code", { textContent: worker.name })),
      el("td", { className: worker.alive ? "" : "warn", textContent: timeAgo(worker.seen_at) }),
      el("td", { textContent: worker.task ?? "–" }),
      el("td", {
        className: "number",
        textContent: worker.free_bytes === null ? "–" : bytes(worker.free_bytes),
      }),
      el("td", { className: "number" }, ...(worker.gpus.length ? worker.gpus.map(gpuMemory) : ["–"])),
      el(
        "td",
        {},
        worker.error ? el("div", { className: "wrong", textContent: worker.error }) : "none",
        worker.error ? el("small", { textContent: timeAgo(worker.error_at) }) : null,
      ),
    ),
  );
  const note = ended.length
    ? `${count(ended.length, "worker")} ended within the last day, last report ${timeAgo(ended[0].seen_at)}`
    : "No worker has reported within the last day.";
  if (ended.length || !rows.length)
    rows.push(el("tr", {}, el("td", { className: "muted", colSpan: 6, textContent: note })));
  $("op-worker-table").tBodies[0].replaceChildren(...rows);
}

const gpuMemory = ({ device, used_bytes: used, total_bytes: total }) =>
  el("div", { textContent: `${bytes(used)} of ${bytes(total)}`, title: `GPU ${device}` });

function drawJobs({ jobs, compactable_bytes: compactable }) {
  const isActive = (kind) =>
    jobs.some((job) => job.kind === kind && ["queued", "running"].includes(job.state));
  setText($("op-compact"), compactable ? `Compact shards (${bytes(compactable)})` : "Compact shards");
  $("op-compact").disabled = !compactable || isActive("compact");
  $("op-compact").title = compactable ? "" : "No shard has deleted vectors or several segments";
  $("op-snapshot").disabled = isActive("snapshot");
  $("op-jobs").hidden = !jobs.length;
  $("op-jobs-none").hidden = jobs.length > 0;
  $("op-jobs").tBodies[0].replaceChildren(
    ...jobs.map((job) =>
      el(
        "tr",
        { "data-testid": `job-${job.id}` },
        el("td", { textContent: job.kind === "compact" ? "Compaction" : "Snapshot" }),
        el("td", {}, el("span", { className: job.state === "failed" ? "bad" : "", textContent: job.state })),
        el("td", { textContent: timeAgo(job.created_at) }),
        el("td", {}, job.error ? el("div", { className: "wrong", textContent: job.error }) : resultText(job)),
      ),
    ),
  );
}

function resultText({ kind, result }) {
  if (!result) return "";
  if (kind === "snapshot")
    return `${result.path.split("/").pop()}: ${count(result.files, "file")}, ${bytes(result.bytes)}, verified`;
  return `${count(result.domains, "domain")}, ${count(result.deleted, "vector")} dropped, ${bytes(result.bytes_before)} → ${bytes(result.bytes_after)}`;
}

async function start(spec) {
  try {
    await sendJson("/maintenance", spec);
    await refresh();
    restoreFocus($("op-jobs").parentElement);
  } catch (error) {
    showProblem(error);
  }
}
