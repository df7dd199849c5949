// Tables of shards and releases.

import { $, el, setText } from "./dom.js";
import { badge } from "./domain_layers.js";
import { bytes, count, percent, shortId, timeAgo } from "./formatting.js";

let drawnState = "";

export function drawStorage(overview) {
  $("store").hidden = !overview.shards.length && !overview.releases.length;
  // The minute is part of the state, because the tables show relative times.
  const state = JSON.stringify([overview.shards, overview.releases, new Date().getMinutes()]);
  if (state === drawnState) return;
  drawnState = state;
  const vectors = count(overview.vectors, "vector");
  setText(
    $("shards-note"),
    `${vectors}, ${bytes(overview.bytes_shards)}; published shards are never rewritten`,
  );
  const releases = count(overview.releases.length, "release");
  setText($("releases-note"), `${releases}, ${bytes(overview.bytes_releases)}`);
  $("shards").tBodies[0].replaceChildren(...overview.shards.map(shardRow));
  $("releases").tBodies[0].replaceChildren(...[...overview.releases].reverse().map(releaseRow));
}

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
  );
}

const numberCell = (text) => el("td", { className: "number", textContent: text });
const idCell = (id) => el("td", {}, el("code", { textContent: shortId(id), title: id }));
const timeCell = (time) => el("td", { textContent: timeAgo(time), title: new Date(time).toLocaleString() });
