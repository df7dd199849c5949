import { api, bytes, css, dot, duration, el, tone } from "./common.js";

const $ = (id) => document.getElementById(id);
const FINAL = ["ready", "failed", "cancelled"];
const view = { gallery: "local", videos: "held", mode: null };
const streams = new Map();
let tasks = [];
let figures = null;

wire();
await refresh();
setInterval(() => refresh().catch(() => {}), 5000);
document.addEventListener("themechange", () => drawCharts());

async function refresh() {
  const query = view.mode ? `?mode=${view.mode}` : "";
  const [list, measures, overview] = await Promise.all([api("/tasks"), api(`/forgetting${query}`), api("/overview")]);
  const before = JSON.stringify(figures);
  tasks = list;
  figures = measures;
  tasks.forEach((task) => tone(task.name));
  drawTasks();
  drawGlance(overview);
  drawShards(overview);
  if (JSON.stringify(figures) !== before) { drawMatrix(); drawCharts(); }
}

// -- at a glance ---------------------------------------------------------------------------------------

function drawGlance(overview) {
  const ready = tasks.filter((task) => task.state === "ready");
  $("learned").textContent = `${ready.length} ${ready.length === 1 ? "domain" : "domains"}`;
  $("learned-note").textContent = `${overview.vectors} videos can be searched` + (figures.recall_over_time_local.length ? `; R@1 ${percent(figures.recall_over_time_local.at(-1))} in their own shard` : "");
  const lost = figures.bwf_local;
  $("forgotten").textContent = lost === null ? "–" : points(lost);
  $("forgotten").className = `big ${lost === null ? "" : lost <= 0.005 ? "good" : lost <= 0.03 ? "warn" : "bad"}`;
  $("forgotten-note").textContent = lost === null ? "shown from the second domain on"
    : lost <= 0.0005 ? `nothing: earlier domains are found as well as on their first day (${figures.mode} queries)`
      : `of R@1 on earlier domains, on average (${figures.mode} queries)`;
  const broken = [...Object.values(overview.degraded)];
  if (overview.database !== "ok") broken.push(overview.database);
  if (overview.broker !== "ok") broken.push(overview.broker);
  $("healthy").textContent = broken.length ? "No" : "Yes";
  $("healthy").className = `big ${broken.length ? "bad" : "good"}`;
  $("healthy-note").textContent = broken[0] || `generation ${overview.generation}, ${overview.workers.length ? `${overview.workers.length} worker busy` : "workers idle"}, ${bytes(overview.bytes_shards + overview.bytes_releases)} on disk`;
  advise(overview, broken);
}

function advise(overview, broken) {
  const failed = tasks.find((task) => task.state === "failed");
  const live = tasks.find((task) => !FINAL.includes(task.state));
  let text = "Nothing. All is well.";
  let action = null;
  if (Object.keys(overview.degraded).length) text = "A shard is broken: run `cinestrata doctor`, then restore it from a snapshot.";
  else if (broken.length) text = "Check the database and the broker; searches go on meanwhile.";
  else if (failed) {
    text = `“${failed.name}” failed. ${failed.error_hint || failed.error || ""}`;
    action = button("Retry", () => act(failed.id, "retry"));
  } else if (live) text = `Wait: “${live.name}” is ${live.state === "queued" ? "in the line" : `in ${live.state}`}${live.eta_seconds ? `, about ${duration(live.eta_seconds)} left` : ""}.`;
  else if (!tasks.length) { text = "Add your first domain of videos."; action = button("Add a domain", () => $("dialog").showModal()); }
  else if ((figures.bwf_global ?? 0) > 0.15) text = "Domains look alike to each other. Searching one domain at a time finds more.";
  $("advice").textContent = text;
  $("advice-action").replaceChildren(...(action ? [action] : []));
}

// -- domains -------------------------------------------------------------------------------------------

function drawTasks() {
  $("tasks-empty").hidden = tasks.length > 0;
  const open = new Set([...document.querySelectorAll("#tasks details[open]")].map((node) => node.dataset.task));
  $("tasks").tBodies[0].replaceChildren(...[...tasks].reverse().map((task) => row(task, open.has(task.id))));
  for (const task of tasks) if (!FINAL.includes(task.state)) watch(task.id);
}

function row(task, open) {
  const live = !FINAL.includes(task.state);
  const progress = task.progress || {};
  const facts = [
    progress.stage && progress.stage !== task.state ? progress.stage : null,
    progress.epoch ? `epoch ${progress.epoch} of ${progress.epochs}` : null,
    progress.loss !== null && progress.loss !== undefined ? `loss ${progress.loss.toFixed(3)}` : null,
    progress.videos_per_second ? `${progress.videos_per_second.toFixed(0)} videos/s` : null,
    live && task.eta_seconds ? `about ${duration(task.eta_seconds)} left` : null,
  ].filter(Boolean).join(" · ");
  const cell = el("td", { className: "grow" });
  if (live) cell.append(el("progress", { max: 1, value: progress.fraction || 0, "aria-label": `${task.name}: ${task.state}`, "data-testid": `progress-${task.name}` }));
  if (live && facts) cell.append(el("div", { className: "small-text", textContent: facts }));
  if (task.error) cell.append(el("div", { className: "error", textContent: task.error }));
  if (task.state === "ready") cell.append(el("div", { className: "small-text", textContent: `${task.trained ? `learned with ${task.method}` : "indexed without training (no captions)"}${task.held_out === "derived" ? "; a share was held out to measure with" : ""}` }));
  if (task.rejected.length) {
    cell.append(el("details", { open, "data-task": task.id },
      el("summary", { textContent: `${task.rejected.length} left out` }),
      el("ul", { className: "rejects" }, ...task.rejected.slice(0, 100).map((entry) => el("li", { textContent: `${entry.uri}: ${entry.reason}` })))));
  }
  const actions = el("td");
  if (live) actions.append(button("Cancel", () => act(task.id, "cancel"), task.cancel_requested));
  if (["failed", "cancelled"].includes(task.state)) actions.append(button("Retry", () => act(task.id, "retry")));
  const state = el("span", { className: "state", "data-state": task.state, "data-testid": `state-${task.name}`, textContent: task.state });
  if (live && task.state !== "queued") state.dataset.live = "";
  return el("tr", {}, el("td", { className: "muted", textContent: task.learned_order ?? "" }),
    el("td", {}, el("span", { className: "badge" }, dot(task.name), task.name)),
    el("td", {}, state), cell,
    el("td", { textContent: task.counts.accepted || task.counts.videos, title: `${task.counts.train} to learn from, ${task.counts.test} held out` }), actions);
}

/** Progress arrives as it happens; the five-second refresh is the safety net. */
function watch(id) {
  if (streams.has(id)) return;
  const source = new EventSource(`/tasks/${encodeURIComponent(id)}/events`);
  streams.set(id, source);
  const stop = () => { source.close(); streams.delete(id); };
  let due = null;
  const update = () => { due ??= setTimeout(async () => { due = null; await patch(id, stop); }, 250); };
  for (const kind of ["state", "progress", "rejected"]) source.addEventListener(kind, update);
  source.addEventListener("error", stop);
}

async function patch(id, stop) {
  const task = await api(`/tasks/${encodeURIComponent(id)}`).catch(() => null);
  if (!task) return;
  tasks = tasks.map((other) => (other.id === id ? task : other));
  if (FINAL.includes(task.state)) { stop(); await refresh(); } else drawTasks();
}

async function act(id, verb) {
  await api(`/tasks/${encodeURIComponent(id)}/${verb}`, { method: "POST" }).catch((error) => alert(error.message));
  await refresh();
}

// -- measures ------------------------------------------------------------------------------------------

function matrix() {
  return figures[`matrix_${view.gallery}${view.videos === "all" ? "_all" : ""}`];
}

function drawMatrix() {
  const names = figures.tasks;
  const cells = matrix();
  $("matrix-note").textContent = names.length
    ? "A[i, t]: share of queries of domain t whose video comes first, after release i. " + (figures.held_out.includes("derived") ? "Where no test split was given, a share of the videos was held out." : "Queries are captions of held-out videos.")
    : "Appears when the first domain has been learned.";
  $("matrix").tHead.replaceChildren(el("tr", {}, el("th", { scope: "col", textContent: "after" }), ...names.map((name) => el("th", { scope: "col", textContent: name }))));
  $("matrix").tBodies[0].replaceChildren(...cells.map((values, i) => el("tr", {},
    el("th", { scope: "row", textContent: `release ${i + 1}: ${names[i]}` }),
    ...values.map((value, t) => el("td", { "data-testid": `cell-${i + 1}-${t + 1}`, textContent: value === null ? "" : percent(value) })))),
  names.length ? el("tr", {}, el("th", { scope: "row", textContent: "zero-shot" }), ...figures.zero_shot.map((value) => el("td", { textContent: value === null ? "" : percent(value) }))) : "");
  for (const [id, value] of [["bwf-local", figures.bwf_local], ["bwf-global", figures.bwf_global], ["fr", figures.fr]]) $(id).textContent = value === null ? "–" : points(value);
  $("hm").textContent = figures.hm === null ? "–" : percent(figures.hm);
}

function drawCharts() {
  if (!window.Plotly) { addEventListener("load", () => drawCharts(), { once: true }); return; }
  const names = figures.tasks;
  for (const id of ["heat", "time", "router"]) $(id).hidden = !names.length;
  if (!names.length) return;
  const ink = css("--ink"), muted = css("--muted"), line = css("--line");
  const base = { paper_bgcolor: "transparent", plot_bgcolor: "transparent", font: { color: ink, family: "inherit", size: 13 }, margin: { l: 48, r: 12, t: 12, b: 40 }, showlegend: true,
    legend: { orientation: "h", y: -0.22, font: { color: muted } }, xaxis: { color: muted, gridcolor: line, zeroline: false }, yaxis: { color: muted, gridcolor: line, zeroline: false } };
  const config = { displayModeBar: false, responsive: true };
  const cells = matrix().map((row) => row.map((value) => (value === null ? null : 100 * value)));
  const rows = names.map((_, i) => `release ${i + 1}`);
  Plotly.react("heat", [{ type: "heatmap", z: cells, x: names, y: rows, texttemplate: "%{z:.1f}", hovertemplate: "%{y} on %{x}: R@1 %{z:.1f} %<extra></extra>", hoverongaps: false, xgap: 3, ygap: 3, zmin: 0,
    colorscale: [[0, css("--soft")], [0.5, "#e0795a"], [1, "#4b4a86"]], colorbar: { thickness: 10, outlinewidth: 0, tickcolor: muted, tickfont: { color: muted } } }],
  { ...base, margin: { l: 76, r: 0, t: 8, b: 48 }, yaxis: { ...base.yaxis, autorange: "reversed", showgrid: false }, xaxis: { ...base.xaxis, showgrid: false } }, config);
  const x = rows;
  const lines = names.map((name, t) => ({ x, y: matrix().map((row) => (row[t] === null ? null : 100 * row[t])), name, mode: "lines+markers", line: { color: tone(name), width: 2.5 }, hovertemplate: `${name}: %{y:.1f} %<extra></extra>` }));
  const mean = (values) => values.filter((v) => v !== null).reduce((a, b, _, all) => a + b / all.length, 0);
  if (figures.zero_shot.some((value) => value !== null)) lines.push({ x, y: x.map(() => 100 * mean(figures.zero_shot)), name: "zero-shot, mean", mode: "lines", line: { color: muted, dash: "dash", width: 1.5 } });
  Plotly.react("time", lines, { ...base, yaxis: { ...base.yaxis, rangemode: "tozero", ticksuffix: " %" } }, config);
  Plotly.react("router", [{ type: "bar", x, y: figures.router_accuracy.map((value) => (value === null ? null : 100 * value)), marker: { color: css("--accent") }, width: 0.45, hovertemplate: "%{y:.1f} %<extra></extra>" }],
    { ...base, showlegend: false, yaxis: { ...base.yaxis, range: [0, 100], ticksuffix: " %" } }, config);
}

function drawShards(overview) {
  const releases = new Map(overview.releases.map((release) => [release.id, release]));
  $("shards").tBodies[0].replaceChildren(...overview.shards.map((shard) => {
    const release = releases.get(shard.release);
    return el("tr", {}, el("td", {}, el("span", { className: "badge" }, dot(shard.task), shard.task), shard.degraded ? el("div", { className: "error", textContent: shard.degraded }) : ""),
      el("td", { textContent: shard.count }), el("td", {}, el("code", { textContent: shard.id.slice(0, 10) })), el("td", { textContent: bytes(shard.bytes) }),
      el("td", {}, el("code", { textContent: shard.release.slice(0, 10) }), release?.current ? " current" : ""), el("td", { textContent: release ? bytes(release.bytes) : "" }),
      el("td", { textContent: release ? `${release.method} on ${release.backbone}` : "" }), el("td", { textContent: new Date(shard.created_at).toLocaleString() }));
  }));
}

// -- controls ------------------------------------------------------------------------------------------

function wire() {
  for (const group of document.querySelectorAll(".segmented")) {
    group.addEventListener("click", async (event) => {
      const pressed = event.target.closest("button");
      if (!pressed) return;
      Object.assign(view, pressed.dataset);
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === pressed));
      if (pressed.dataset.mode) await refresh();
      drawMatrix();
      drawCharts();
    });
  }
  $("add").addEventListener("click", () => $("dialog").showModal());
  $("dialog-close").addEventListener("click", () => $("dialog").close());
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    const send = event.submitter;
    send.disabled = true;
    try {
      await api("/tasks", { method: "POST", body: new FormData($("form")) });
      $("form").reset();
      $("form-errors").hidden = true;
      $("dialog").close();
      await refresh();
    } catch (error) {
      const wrong = error.problem?.errors?.length ? error.problem.errors : [{ field: "", message: error.message, mend: "" }];
      $("form-errors").replaceChildren(...wrong.map((entry) => el("div", { textContent: [entry.field && `${entry.field}:`, entry.message, entry.mend].filter(Boolean).join(" ") })));
      $("form-errors").hidden = false;
    } finally {
      send.disabled = false;
    }
  });
}

function button(text, action, disabled = false) {
  const node = el("button", { type: "button", className: "small", textContent: text, disabled });
  node.addEventListener("click", action);
  return node;
}

function percent(share) { return `${(100 * share).toFixed(1)} %`; }
/** Forgetting in points of R@1; less than 0 is a gain. */
function points(share) { return (Math.abs(share) < 0.0005 ? 0 : 100 * share).toFixed(1); }
