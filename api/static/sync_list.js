// The table of registered syncs, in pages: domains that follow a folder of videos. Those that failed come first.

import { api } from "./api_client.js";
import { $, announce, button, el, replaceRows, restoreFocus, setText } from "./dom.js";
import { badge } from "./domain_layers.js";
import { count, duration, timeAgo } from "./formatting.js";
import { PagedList } from "./paged_list.js";
import { isPermitted } from "./permissions.js";

const PAGE = 10; // rows
const KINDS = [
  "new",
  "changed",
  "moved",
  "recaptioned",
  "unchanged",
  "vanished",
  "deleted",
  "rejected",
  "left_out",
];

let syncs = [];

const pages = new PagedList({
  label: "followed folders",
  read: async (first) => {
    const next = (first ?? 0) + PAGE;
    return { entries: syncs.slice(first ?? 0, next), next: next < syncs.length ? next : null };
  },
  draw: (entries) => replaceRows($("syncs").tBodies[0], entries.map(syncRow)),
});
$("syncs").parentElement.after(pages.node);

/** Draw the shown page again, whose times change. */
export const drawSyncs = () => pages.refresh();

/** Read the registered syncs and draw them; without any, the section is hidden. */
export async function refreshSyncs() {
  const read = await api("/syncs");
  const failed = read.filter((sync) => sync.error);
  syncs = [...failed, ...read.filter((sync) => !sync.error)];
  $("syncs-section").hidden = !syncs.length;
  setText(
    $("syncs-note"),
    failed.length ? `${count(failed.length, "sync")} failed` : count(syncs.length, "folder"),
  );
  await drawSyncs();
}

function syncRow(sync) {
  const remove = button("Remove", () => removeSync(sync), {
    "aria-label": `Remove the sync of ${sync.name}; its videos stay`,
    title: "Stop following the folder; the videos stay",
  });
  const problem = sync.error ?? sync.counts?.notice;
  const error = problem ? el("div", { className: "wrong", textContent: problem }) : null;
  return el(
    "tr",
    { "data-testid": `sync-${sync.name}` },
    el("td", {}, badge(sync.name)),
    el("td", {}, el("code", { textContent: sync.source }), error),
    el("td", { textContent: duration(sync.every_seconds) }),
    el("td", { textContent: lastRun(sync) }),
    el("td", { textContent: nextRun(sync) }),
    el("td", { textContent: filesText(sync.counts) }, ...leftOutLines(sync.counts)),
    el("td", { className: "act" }, isPermitted("ingest") ? remove : null),
  );
}

function lastRun(sync) {
  if (sync.running) return "running";
  return sync.finished_at ? timeAgo(sync.finished_at) : "–";
}

function nextRun(sync) {
  const seconds = (new Date(sync.next_run_at) - Date.now()) / 1000;
  return seconds > 0 ? `in ${duration(seconds)}` : "due";
}

function filesText(counts) {
  if (!counts) return "–";
  const shown = KINDS.filter((kind) => counts[kind]).map(
    (kind) => `${counts[kind].toLocaleString()} ${kind.replace("_", " ")}`,
  );
  return shown.join(", ") || "none";
}

/** List the first files that the last run could not use, with reasons. */
function leftOutLines(counts) {
  return (counts?.left_out_files ?? [])
    .slice(0, 3)
    .map((file) => el("div", { className: "wrong", textContent: `${file.path}: ${file.reason}` }));
}

async function removeSync(sync) {
  try {
    await api(`/syncs/${encodeURIComponent(sync.id)}`, { method: "DELETE" });
    await refreshSyncs();
    announce($("tasks-done"), `“${sync.name}” no longer follows its folder.`);
    restoreFocus($("follow")); // without syncs, their table is hidden
  } catch (error) {
    setText($("syncs-note"), error.message);
  }
}
