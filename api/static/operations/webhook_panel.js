// Webhooks: endpoints, a form for new ones, test messages and the log. Responses of endpoints are untrusted.

import { api, sendJson } from "../api_client.js";
import { $, button, el, replaceRows, setText } from "../dom.js";
import { count, timeAgo } from "../formatting.js";

const EVENTS = [
  "task.ready",
  "task.failed",
  "append.ready",
  "append.failed",
  "release.served",
  "alert.raised",
  "alert.cleared",
];
const LOGGED = 20;
const SHOWN = 5; // endpoints, until the user asks for more
const path = (webhook, rest = "") => `/webhooks/${encodeURIComponent(webhook.id)}${rest}`;
const results = new Map(); // webhook → text about its last action
let drawn = null;
let isExpanded = false;

/** Let the form register endpoints, and show the registered ones. */
export async function setUpWebhooks() {
  $("wh-events").replaceChildren(
    ...EVENTS.map((name) =>
      el("label", {}, el("input", { type: "checkbox", value: name, checked: true }), ` ${name}`),
    ),
  );
  $("wh-form").addEventListener("submit", create);
  await showWebhooks();
}

/** Show the registered endpoints; an unchanged list stays as it is. */
export async function showWebhooks() {
  const webhooks = await api("/webhooks");
  const state = JSON.stringify(webhooks);
  if (state === drawn) return;
  drawn = state;
  const open = new Set(
    [...$("wh-list").querySelectorAll("details[open]")].map((node) => node.dataset.webhook),
  );
  drawWebhooks(webhooks.toReversed(), open); // newest first
}

function drawWebhooks(webhooks, open) {
  const shown = isExpanded ? webhooks : webhooks.slice(0, SHOWN);
  const rows = shown.map((webhook) => row(webhook, open.has(webhook.id)));
  const rest = webhooks.length - shown.length;
  const expand = () => {
    isExpanded = true;
    drawWebhooks(webhooks, open);
    $("wh-list").children[SHOWN].querySelector("button").focus(); // the pressed button is gone
  };
  if (rest > 0) rows.push(el("li", {}, button(`Show ${count(rest, "earlier endpoint")}`, expand)));
  replaceRows($("wh-list"), rows);
}

async function create(event) {
  event.preventDefault();
  $("wh-error").hidden = true;
  $("wh-secret").hidden = true;
  const events = [...$("wh-events").querySelectorAll("input:checked")].map((input) => input.value);
  try {
    if (!events.length) throw new Error("Choose at least one event.");
    const { secret } = await sendJson("/webhooks", { url: $("wh-url").value.trim(), events });
    $("wh-url").value = "";
    $("wh-secret").replaceChildren("Signing secret, shown only once: ", el("code", { textContent: secret }));
    $("wh-secret").hidden = false;
    await showWebhooks();
  } catch (error) {
    setText($("wh-error"), error.message);
    $("wh-error").hidden = false;
  }
}

function row(webhook, isOpen) {
  const result = el("p", {
    className: "muted",
    role: "status",
    textContent: results.get(webhook.id) ?? "",
  });
  const log = el("ul", { className: "rejects" });
  const details = el(
    "details",
    { "data-webhook": webhook.id, open: isOpen },
    el("summary", { textContent: "Messages" }),
    log,
  );
  const readLog = () =>
    details.open && showLog(webhook, log).catch((error) => setText(result, error.message));
  details.addEventListener("toggle", readLog);
  const act = (action) => async () => {
    setText(result, "…");
    const text = await action().catch((error) => error.message);
    results.set(webhook.id, text);
    setText(result, text);
    await showWebhooks().catch((error) => setText(result, error.message));
    if (log.isConnected) readLog(); // a changed webhook has a new row, which reads its log itself
  };
  const toggle = () =>
    sendJson(path(webhook), { enabled: !webhook.enabled }, { method: "PATCH" }).then(() => "");
  const test = () => api(path(webhook, "/test"), { method: "POST" }).then(outcomeText);
  const remove = () => api(path(webhook), { method: "DELETE" }).then(() => "");
  return el(
    "li",
    { "data-testid": `webhook-${webhook.id}` },
    el("code", { className: "op-url", textContent: webhook.url }),
    el("span", { className: "muted", textContent: facts(webhook) }),
    el(
      "span",
      { className: "op-actions" },
      button("Test", act(test), { "aria-label": `Test ${webhook.url}` }),
      button(webhook.enabled ? "Disable" : "Enable", act(toggle), {
        "aria-label": `${webhook.enabled ? "Disable" : "Enable"} ${webhook.url}`,
      }),
      button("Remove", act(remove), { "aria-label": `Remove ${webhook.url}` }),
    ),
    result,
    details,
  );
}

function facts(webhook) {
  const events = webhook.events.length === EVENTS.length ? "all events" : webhook.events.join(", ");
  return [
    webhook.enabled ? null : (webhook.reason ?? "disabled"),
    events,
    webhook.pending ? `${webhook.pending} pending` : null,
    webhook.failed ? `${webhook.failed} failed` : null,
    webhook.last_delivery_at ? `delivered ${timeAgo(webhook.last_delivery_at)}` : null,
  ]
    .filter(Boolean)
    .join(" · ");
}

const outcomeText = ({ state, status, answer }) =>
  state === "delivered"
    ? `The endpoint responded with status ${status}.`
    : `Not accepted: ${[status && `status ${status}`, answer].filter(Boolean).join(", ")}`;

async function showLog(webhook, log) {
  const { deliveries } = await api(path(webhook, `/deliveries?limit=${LOGGED}`));
  const items = deliveries.map((message) =>
    el(
      "li",
      {},
      `${message.event}, ${timeAgo(message.created_at)}: ${message.state} after ${count(message.attempts, "attempt")}`,
      message.status ? `, status ${message.status} ` : " ",
      message.answer ? el("code", { textContent: message.answer.slice(0, 300) }) : null,
    ),
  );
  log.replaceChildren(...(items.length ? items : [el("li", { textContent: "No messages." })]));
}
