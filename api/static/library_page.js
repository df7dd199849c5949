// The library page: summary, tasks, recall matrix, shards and releases.

import "./search_shortcut.js";
import { setUpAddDomainForm } from "./add_domain_form.js";
import { api, readIfChanged } from "./api_client.js";
import { $, setText } from "./dom.js";
import { colorNumber } from "./domain_layers.js";
import { watchHealth } from "./health_indicator.js";
import { drawSummary } from "./library_summary.js";
import { drawCurves } from "./recall_curves.js";
import { drawMap, fittingBins, mapNote, setUpMap } from "./recall_map.js";
import { drawMeasures, drawTable } from "./recall_matrix.js";
import { drawStorage } from "./storage_tables.js";
import { refreshSyncs } from "./sync_list.js";
import { drawTasks } from "./task_list.js";
import { isFinishedAppend } from "./task_states.js";

const REFRESH_MILLISECONDS = 4000;
const view = { gallery: "local", videos: "held", mode: null, window: null };
const versions = new Map(); // path of a resource → its newest body and entity tag
let drawnMap = null;

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
  setUpMap(zoom, () => refresh().catch(showUnreachable));
  setUpAddDomainForm(refresh);
}

async function refreshIfVisible() {
  if (document.hidden) return;
  await refresh().catch(showUnreachable);
  await refreshSyncs().catch(() => {}); // the summary shows that the server is unreachable
}

async function refresh() {
  const [allTasks, map, overview] = await Promise.all([api("/tasks"), read(mapPath()), read("/overview")]);
  const tasks = allTasks.filter((task) => !isFinishedAppend(task));
  assignColors(tasks);
  drawTasks(tasks, refresh);
  drawSummary(tasks, map, overview, { refresh, add: () => $("add").click() });
  drawStorage(overview);
  drawMemory(map);
}

/** Read a resource; an unchanged one is not transferred again. */
async function read(path) {
  const known = versions.get(path);
  const changed = await readIfChanged(path, known?.tag);
  if (changed) versions.set(path, changed);
  return (changed ?? known).body;
}

function mapPath() {
  const parameters = new URLSearchParams({
    gallery: view.gallery + (view.videos === "all" ? "_all" : ""),
    bins: fittingBins(),
    ...(view.mode && { mode: view.mode }),
    ...view.window,
  });
  return `/forgetting/map?${parameters}`;
}

function assignColors(tasks) {
  const order = (task) => task.learned_order ?? Number.MAX_SAFE_INTEGER;
  for (const task of [...tasks].sort((a, b) => order(a) - order(b))) colorNumber(task.name);
}

function drawMemory(map) {
  if (map === drawnMap) return;
  drawnMap = map;
  $("memory").hidden = !map.domains;
  if (!map.domains) return;
  for (const node of document.querySelectorAll("#mode-switch button")) {
    node.setAttribute("aria-pressed", String(node.dataset.mode === map.mode));
    node.disabled = !map.modes.includes(node.dataset.mode);
    node.dataset.description ??= node.title;
    node.title = node.disabled ? `${node.dataset.description}. Not measured` : node.dataset.description;
  }
  setText($("matrix-note"), mapNote(map, view));
  drawMap(map);
  drawTable(map);
  drawMeasures(map);
  drawCurves(map);
}

async function select(group, pressed) {
  if (!pressed) return;
  for (const key of ["gallery", "videos", "mode"]) if (pressed.dataset[key]) view[key] = pressed.dataset[key];
  for (const other of group.children) other.setAttribute("aria-pressed", String(other === pressed));
  await redrawMap();
}

/** Show a part of the map, or all of it if the window is null. */
async function zoom(window) {
  view.window = window;
  await redrawMap();
}

async function redrawMap() {
  const path = mapPath();
  try {
    const map = await read(path);
    if (path === mapPath()) drawMemory(map); // a later selection may have been answered first
  } catch (error) {
    showUnreachable(error);
  }
}

function toggleTable() {
  const isTable = $("matrix-table").classList.toggle("hidden") === false;
  $("heat").hidden = isTable;
  $("as-table").setAttribute("aria-pressed", String(isTable));
  $("as-table").textContent = isTable ? "Show as map" : "Show as table";
  if (!isTable) drawMap(drawnMap);
}

function showUnreachable(error) {
  $("healthy").textContent = "No answer";
  $("healthy").className = "big bad";
  $("healthy-note").textContent = error.message;
  $("advice").textContent = "Check whether the server runs: cinestrata doctor";
}
