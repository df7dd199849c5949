// The page of API keys, users, sessions and the audit log.

import { api, sendJson } from "./api_client.js";
import { $, button, el, replaceRows, setText } from "./dom.js";
import { count, shortId, timeAgo } from "./formatting.js";
import { watchHealth } from "./health_indicator.js";
import { PagedList } from "./paged_list.js";
import { servicePath } from "./service_paths.js";

const AUDIT_PAGE = 20; // entries
const MAX_ROWS = 20; // of the other tables, until the user asks for more

const audit = new PagedList({
  read: readAudit,
  draw: (entries) => {
    setText($("audit-note"), count(entries.length, "entry", "entries"));
    fill("audit", entries.map(auditRow), "No entries.");
  },
  onError: showFailure,
  label: "the audit log",
});

let isOpen = false; // the service has neither keys nor users

async function refresh() {
  const [access, keys, users, sessions] = await Promise.all(
    ["/access/current", "/keys", "/users", "/sessions"].map((path) => api(path)),
  );
  isOpen = access.kind === "anonymous";
  $("open-note").hidden = !isOpen;
  if (isOpen) for (const id of ["key-scope", "user-scope"]) $(id).value = "admin";
  const active = keys.filter((key) => key.state === "active").length;
  setText($("keys-note"), keys.length ? count(active, "active key") : "");
  fill("keys", keys.map(keyRow), "No keys.");
  setText($("users-note"), users.length ? count(users.length, "user") : "");
  fill("users", users.map(userRow), "No users.");
  $("sessions-section").hidden = !sessions.length;
  fill("sessions", sessions.map(sessionRow), "No sessions.");
  await audit.refresh();
}

const expanded = new Set(); // IDs of tables that show all rows

function fill(id, rows, none) {
  const body = $(id).tBodies[0];
  const spanned = (content) =>
    el("tr", {}, el("td", { className: "muted", colSpan: $(id).tHead.rows[0].cells.length }, content));
  const shown = expanded.has(id) ? rows : rows.slice(0, MAX_ROWS);
  const rest = rows.length - shown.length;
  const expand = () => {
    expanded.add(id);
    body.replaceChildren(...rows);
    rows[MAX_ROWS].querySelector("button")?.focus(); // the pressed button is gone
  };
  const more = rest > 0 ? [spanned(button(`Show ${rest} more`, expand))] : [];
  replaceRows(body, rows.length ? [...shown, ...more] : [spanned(none)]);
}

function keyRow(key) {
  const path = `/keys/${encodeURIComponent(key.id)}`;
  const revoke = button("Revoke", () => change(path, `The key ${key.name} was revoked.`), {
    "aria-label": `Revoke the key ${key.name}`,
  });
  return el(
    "tr",
    { "data-testid": `key-${key.name}` },
    el("td", { textContent: key.name }),
    el("td", {}, el("code", { textContent: key.id })),
    el("td", { textContent: key.scope }),
    el("td", { textContent: key.state, className: key.state === "active" ? "" : "muted" }),
    timeCell(key.expires_at, "never", (time) => new Date(time).toLocaleDateString()),
    timeCell(key.last_used_at, "never"),
    el("td", { textContent: key.created_by }),
    el("td", { className: "act" }, key.state === "revoked" ? null : revoke),
  );
}

function userRow(user) {
  const path = `/users/${encodeURIComponent(user.id)}`;
  const remove = button(
    "Remove",
    () => {
      if (confirm(`Remove the user ${user.name}? All of the user's sessions end.`))
        change(path, `The user ${user.name} was removed.`);
    },
    { "aria-label": `Remove the user ${user.name}` },
  );
  return el(
    "tr",
    { "data-testid": `user-${user.name}` },
    el("td", { textContent: user.name }),
    el("td", { textContent: user.scope }),
    el("td", { textContent: user.provider ?? "password" }),
    timeCell(user.last_sign_in_at, "never"),
    el("td", { className: "number", textContent: user.sessions }),
    el("td", { className: "act" }, remove),
  );
}

function sessionRow(session) {
  const owner = session.user ?? `key ${session.key}`;
  const path = `/sessions/${encodeURIComponent(session.id)}`;
  const end = button("End", () => change(path, `A session of ${owner} was ended.`), {
    "aria-label": `End the session of ${owner} since ${new Date(session.created_at).toLocaleString()}`,
  });
  return el(
    "tr",
    {},
    el("td", { textContent: session.current ? `${owner} (this browser)` : owner }),
    el("td", { textContent: session.address ?? "–" }),
    timeCell(session.last_seen_at, "–"),
    timeCell(session.expires_at, "–", (time) => new Date(time).toLocaleDateString()),
    el("td", { className: "details", textContent: session.user_agent }),
    el("td", { className: "act" }, end),
  );
}

const DIGEST = /\b[0-9a-f]{64}\b/g;

/** Create a cell with shortened digests; its title has the whole text. */
function digestCell(text, create) {
  const short = text.replaceAll(DIGEST, (digest) => `${shortId(digest)}…`);
  return create({ textContent: short, ...(short === text ? {} : { title: text }) });
}

function auditRow(entry) {
  const details = Object.entries(entry.details)
    .map(([name, value]) => `${name}: ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", ");
  return el(
    "tr",
    {},
    timeCell(entry.at, "–", (time) => new Date(time).toLocaleString()),
    el("td", { textContent: entry.actor, title: entry.actor_kind }),
    el("td", { textContent: entry.address ?? "–" }),
    el("td", { textContent: entry.action }),
    el(
      "td",
      {},
      digestCell(entry.target, (shown) => el("code", shown)),
    ),
    digestCell(details, (shown) => el("td", { className: "details", ...shown })),
  );
}

function timeCell(time, none, format = timeAgo) {
  return time
    ? el("td", { textContent: format(time), title: new Date(time).toISOString() })
    : el("td", { className: "muted", textContent: none });
}

async function readAudit(cursor) {
  const query = new URLSearchParams({ limit: AUDIT_PAGE });
  for (const name of ["text", "action"]) {
    const value = $(`audit-${name}`).value.trim();
    if (value) query.set(name, value);
  }
  if (cursor) query.set("cursor", cursor);
  const page = await api(`/audit?${query}`);
  return { entries: page.entries, next: page.next_cursor };
}

/** Delete a resource, show the lists again, and say what was done. */
async function change(path, text) {
  await attempt(text, async () => {
    const response = await fetch(servicePath(path), { method: "DELETE" });
    if (!response.ok) throw new Error((await response.json()).detail);
  });
}

async function attempt(text, action) {
  $("failure").hidden = true;
  try {
    await action();
    await refresh();
    setText($("done"), text);
  } catch (error) {
    showFailure(error);
  }
}

function showFailure(error) {
  $("failure").textContent = error.message;
  $("failure").hidden = false;
}

$("new-key").addEventListener("submit", (event) => {
  event.preventDefault();
  const days = $("key-days").valueAsNumber;
  const body = { name: $("key-name").value, scope: $("key-scope").value };
  if (!Number.isNaN(days)) body.expires_in_days = days;
  attempt("", async () => {
    const created = await sendJson("/keys", body);
    $("created-key-text").textContent = created.key;
    $("created-key").hidden = false;
    event.target.reset();
    if (isOpen) throw new Error("The service now requires a key: save this one, then sign in with it.");
  });
});

$("new-user").addEventListener("submit", (event) => {
  event.preventDefault();
  const body = {
    name: $("user-name").value,
    password: $("user-password").value,
    scope: $("user-scope").value,
  };
  attempt(`The user ${body.name} was created.`, async () => {
    await sendJson("/users", body);
    event.target.reset();
  });
});

$("audit-filter").addEventListener("submit", (event) => {
  event.preventDefault();
  audit.restart();
});

$("copy-key").addEventListener("click", async () => {
  await navigator.clipboard.writeText($("created-key-text").textContent);
  $("copy-key").textContent = "Copied";
});

$("audit-pages").append(audit.node);
watchHealth();
attempt("", async () => {});
