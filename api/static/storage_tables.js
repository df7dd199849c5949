// Shards and releases as they lie on disk.

import { $, el, say } from "./dom.js";
import { ago, bytes, count, short } from "./formatting.js";
import { badge } from "./domain_layers.js";

let drawn = "";

export function drawStore(overview) {
  $("store").hidden = !overview.shards.length && !overview.releases.length;
  const next = JSON.stringify([overview.shards, overview.releases, new Date().getMinutes()]);
  if (next === drawn) return;
  drawn = next;
  say($("shards-note"), `${count(overview.vectors, "vector")}, ${bytes(overview.bytes_shards)}; none of them is ever written again`);
  say($("releases-note"), `${count(overview.releases.length, "release")}, ${bytes(overview.bytes_releases)}`);
  $("shards").tBodies[0].replaceChildren(...overview.shards.map((shard) => el("tr", {},
    el("td", {}, badge(shard.task), shard.degraded ? el("div", { className: "wrong", textContent: shard.degraded }) : null),
    number(shard.count.toLocaleString() + (shard.deleted ? ` (${shard.deleted.toLocaleString()} deleted)` : "")), number(shard.dim), number(bytes(shard.bytes)), fingerprint(shard.id), fingerprint(shard.release), date(shard.created_at))));
  $("releases").tBodies[0].replaceChildren(...[...overview.releases].reverse().map((release) => el("tr", {},
    number(release.learned_order), el("td", {}, badge(release.task), release.current ? el("span", { className: "pill", textContent: "current" }) : null),
    el("td", { textContent: release.method }), el("td", { textContent: release.backbone }), number(bytes(release.bytes)), number(release.calibration_error == null ? "–" : `${(100 * release.calibration_error).toFixed(1)} %`), fingerprint(release.id), date(release.created_at))));
}

const number = (text) => el("td", { className: "number", textContent: text });
const fingerprint = (id) => el("td", {}, el("code", { textContent: short(id), title: id }));
const date = (time) => el("td", { textContent: ago(time), title: new Date(time).toLocaleString() });
