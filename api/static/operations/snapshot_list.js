// Stored snapshots, with links that download them and buttons that delete them.

import { api } from "../api_client.js";
import { $, button, el, replaceRows, setText } from "../dom.js";
import { bytes, count, timeAgo } from "../formatting.js";
import { servicePath } from "../service_paths.js";

const path = ({ name }) => `/snapshots/${encodeURIComponent(name)}`;

/** Read the stored snapshots and draw them. */
export async function showSnapshots() {
  const snapshots = await api("/snapshots");
  const total = snapshots.reduce((sum, snapshot) => sum + snapshot.bytes, 0);
  setText(
    $("op-snapshots-note"),
    snapshots.length ? `${count(snapshots.length, "snapshot")}, ${bytes(total)}` : "",
  );
  $("op-snapshots").hidden = !snapshots.length;
  $("op-snapshots-none").hidden = snapshots.length > 0;
  replaceRows($("op-snapshots").tBodies[0], snapshots.map(row));
}

function row(snapshot) {
  const { name, created_at: at, bytes: size } = snapshot;
  const download = el("a", {
    href: path(snapshot),
    download: name,
    className: "button small",
    textContent: "Download",
    "aria-label": `Download ${name}`,
  });
  const remove = button("Delete", () => deleteSnapshot(snapshot), { "aria-label": `Delete ${name}` });
  return el(
    "tr",
    { "data-testid": `snapshot-${name}` },
    el("td", {}, el("code", { textContent: name })),
    el("td", { textContent: timeAgo(at), title: new Date(at).toLocaleString() }),
    el("td", { className: "number", textContent: bytes(size) }),
    el("td", { className: "act" }, download, " ", remove),
  );
}

async function deleteSnapshot(snapshot) {
  if (!confirm(`Delete the snapshot ${snapshot.name}? This can't be undone.`)) return;
  try {
    const response = await fetch(servicePath(path(snapshot)), { method: "DELETE" });
    if (!response.ok && response.status !== 404) throw new Error((await response.json()).detail);
    await showSnapshots();
  } catch (error) {
    setText($("op-snapshots-note"), error.message);
  }
}
