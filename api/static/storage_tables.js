// Tables of shards and releases, in pages, newest first.

import { api } from "./api_client.js";
import { $, button, el, replaceRows, setText } from "./dom.js";
import { badge } from "./domain_layers.js";
import { bytes, count, percent, shortId, timeAgo } from "./formatting.js";
import { openServeDialog } from "./operations/serve_release_dialog.js";
import { PagedList } from "./paged_list.js";
import { isPermitted } from "./permissions.js";

const PAGE = 10; // rows

const listOf = (path, key, drawRow) =>
  new PagedList({
    label: key,
    read: async (cursor) => {
      const parameters = new URLSearchParams({ limit: PAGE, sort: "-created", ...(cursor && { cursor }) });
      const page = await api(`${path}?${parameters}`);
      return { entries: page[key], next: page.next_cursor };
    },
    draw: (entries) => replaceRows($(key).tBodies[0], entries.map(drawRow)),
    onError: (error) => setText($(`${key}-note`), error.message),
  });

const shards = listOf("/shards", "shards", shardRow);
const releases = listOf("/releases", "releases", releaseRow);
$("shards").parentElement.after(shards.node);
$("releases").parentElement.after(releases.node);

export function drawStorageNotes(status) {
  $("store").hidden = !status.shard_count && !status.release_count;
  const vectors = `${count(status.shard_count, "shard")}, ${count(status.vectors, "searchable vector")}`;
  setText(
    $("shards-note"),
    `${vectors}, ${bytes(status.bytes_shards)}; published shards are never rewritten`,
  );
  setText($("releases-note"), `${count(status.release_count, "release")}, ${bytes(status.bytes_releases)}`);
}

export const refreshStorage = () => Promise.all([shards.refresh(), releases.refresh()]);

function shardRow(shard) {
  const fault = shard.degraded ? el("div", { className: "wrong", textContent: shard.degraded }) : null;
  const deleted = shard.deleted ? ` (${shard.deleted.toLocaleString()} deleted)` : "";
  return el(
    "tr",
    {},
    el("td", {}, badge(shard.task), fault),
    numberCell(shard.count.toLocaleString() + deleted),
    numberCell(shard.dim),
    numberCell(bytes(shard.bytes)),
    idCell(shard.id),
    idCell(shard.release),
    timeCell(shard.created_at),
  );
}

function releaseRow(release) {
  const mark = release.current ? el("span", { className: "pill", textContent: "current" }) : null;
  const error = release.calibration_error;
  return el(
    "tr",
    {},
    numberCell(release.learned_order),
    el("td", {}, badge(release.task), mark),
    el("td", { textContent: release.method }),
    el("td", { textContent: release.backbone }),
    numberCell(bytes(release.bytes)),
    numberCell(error == null ? "–" : percent(error)),
    idCell(release.id),
    timeCell(release.created_at),
    el("td", { className: "act" }, release.current || !isPermitted("admin") ? null : serveButton(release)),
  );
}

function serveButton({ id, task }) {
  return button("Serve", () => openServeDialog(id, refreshStorage), {
    "aria-label": `Serve the release after ${task}`,
    title: "Let searches use this release",
  });
}

const numberCell = (text) => el("td", { className: "number", textContent: text });
const idCell = (id) => el("td", {}, el("code", { textContent: shortId(id), title: id }));
const timeCell = (time) => el("td", { textContent: timeAgo(time), title: new Date(time).toLocaleString() });
