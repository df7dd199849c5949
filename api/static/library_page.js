// The library page: summary, tasks, recall matrix, shards and releases.

import "./search_shortcut.js";
import { setUpAddDomainForm } from "./add_domain_form.js";
import { api } from "./api_client.js";
import { drawCharts } from "./charts.js";
import { $ } from "./dom.js";
import { colorNumber } from "./domain_layers.js";
import { watchHealth } from "./health_indicator.js";
import { drawSummary } from "./library_summary.js";
import { drawMatrix, drawMeasures } from "./recall_matrix.js";
import { drawStorage } from "./storage_tables.js";
import { drawTasks } from "./task_list.js";
import { isFinishedAppend } from "./task_states.js";

const REFRESH_MILLISECONDS = 4000;
const view = { gallery: "local", videos: "held", mode: null };
let drawnState = "";
let measures = null;

setUp();
watchHealth();
await refreshIfVisible();
setInterval(refreshIfVisible, REFRESH_MILLISECONDS);

function setUp() {
  for (const group of document.querySelectorAll(".segmented")) {
    group.addEventListener("click", (event) => select(group, event.target.closest("button")));
  }
  $("as-table").addEventListener("click", toggleTable);
  document.addEventListener("visibilitychange", refreshIfVisible);
  document.addEventListener("themechange", () => measures && drawCharts(measures, view));
  setUpAddDomainForm(refresh);
}

async function refreshIfVisible() {
  if (!document.hidden) await refresh().catch(showUnreachable);
}

async function refresh() {
  const [allTasks, newMeasures, overview] = await Promise.all([
    api("/tasks"),
    api(`/forgetting${view.mode ? `?mode=${view.mode}` : ""}`),
    api("/overview"),
  ]);
  const tasks = allTasks.filter((task) => !isFinishedAppend(task));
  assignColors(tasks);
  measures = newMeasures;
  drawTasks(tasks, refresh);
  drawSummary(tasks, measures, overview, { refresh, add: () => $("add").click() });
  drawStorage(overview);
  const state = JSON.stringify([measures, view]);
  if (state === drawnState) return;
  drawnState = state;
  drawMemory();
}

function assignColors(tasks) {
  const order = (task) => task.learned_order ?? Number.MAX_SAFE_INTEGER;
  for (const task of [...tasks].sort((a, b) => order(a) - order(b))) colorNumber(task.name);
}

function drawMemory() {
  $("memory").hidden = !measures.tasks.length;
  if (!measures.tasks.length) return;
  for (const node of document.querySelectorAll("#mode-switch button")) {
    node.setAttribute("aria-pressed", String(node.dataset.mode === measures.mode));
    node.disabled = !measures.modes.includes(node.dataset.mode);
    node.dataset.description ??= node.title;
    node.title = node.disabled ? `${node.dataset.description}. Not measured` : node.dataset.description;
  }
  drawMatrix(measures, view);
  drawMeasures(measures);
  drawCharts(measures, view);
}

function select(group, pressed) {
  if (!pressed) return;
  for (const key of ["gallery", "videos", "mode"]) if (pressed.dataset[key]) view[key] = pressed.dataset[key];
  for (const other of group.children) other.setAttribute("aria-pressed", String(other === pressed));
  if (pressed.dataset.mode) refresh().catch(showUnreachable);
  else drawMemory();
}

function toggleTable() {
  const isTable = $("matrix-table").classList.toggle("hidden") === false;
  $("heat").hidden = isTable;
  $("as-table").setAttribute("aria-pressed", String(isTable));
  $("as-table").textContent = isTable ? "Show as map" : "Show as table";
  if (!isTable) drawMemory();
}

function showUnreachable(error) {
  $("healthy").textContent = "No answer";
  $("healthy").className = "big bad";
  $("healthy-note").textContent = error.message;
  $("advice").textContent = "Check whether the server runs: cinestrata doctor";
}
