// The library page: summary, tasks, recall matrix, shards and releases.

import "./search_shortcut.js";
import { openUploadForm, setUpAddDomainForm } from "./add_domain_form.js";
import { readIfChanged } from "./api_client.js";
import { $, setText } from "./dom.js";
import { colorFirstDomains } from "./domain_layers.js";
import { setUpFirstDomain } from "./first_domain.js";
import { setUpFollowFolderForm } from "./follow_folder_form.js";
import { watchHealth } from "./health_indicator.js";
import { drawSummary } from "./library_summary.js";
import { drawNotices } from "./operations/operation_notices.js";
import { watchOperations } from "./operations/operations_section.js";
import { drawCurves } from "./recall_curves.js";
import { drawMap, fittingBins, mapNote, setUpMap } from "./recall_map.js";
import { drawMeasures, drawTable } from "./recall_matrix.js";
import { drawStorageNotes, refreshStorage } from "./storage_tables.js";
import { refreshSyncs } from "./sync_list.js";
import { drawTasks, refreshTasks, setUpTasks, updateTimes } from "./task_list.js";

const REFRESH_MILLISECONDS = 4000;
const TIMES_MILLISECONDS = 60_000;
const MAX_KNOWN = 20; // windows of the map that are shown again without a transfer
const view = { gallery: "local", videos: "held", window: null };
const known = new Map(); // path of a resource → its newest body and entity tag
const shown = { tasks: null, measures: null, storage: null, syncs: null }; // versions of the parts of the page
let drawnMap = null;
let drawnStatus = null;

setUp();
watchHealth();
watchOperations();
await refreshIfVisible();
setInterval(refreshIfVisible, REFRESH_MILLISECONDS);
setInterval(refreshTimes, TIMES_MILLISECONDS);

function setUp() {
  for (const group of document.querySelectorAll("#memory .segmented")) {
    group.addEventListener("click", (event) => select(group, event.target.closest("button")));
  }
  $("as-table").addEventListener("click", toggleTable);
  document.addEventListener("visibilitychange", refreshIfVisible);
  setUpMap(zoom, redrawMap);
  setUpTasks(refresh, showUnreachable);
  setUpAddDomainForm(refresh);
  setUpFollowFolderForm(refresh);
  setUpFirstDomain(() => openUploadForm(), refresh);
}

async function refreshIfVisible() {
  if (!document.hidden) await refresh().catch(showUnreachable);
}

function refreshTimes() {
  if (document.hidden) return;
  updateTimes();
  if (!$("syncs-section").hidden) refreshSyncs().catch(showUnreachable); // times of the next runs
}

/** Read the state of the library, and the parts of it that have changed. */
async function refresh() {
  const status = await read("/library");
  colorFirstDomains(status);
  const { versions } = status;
  const readers = {
    tasks: refreshTasks,
    measures: refreshMap,
    storage: refreshStorage,
    syncs: refreshSyncs,
  };
  const changed = Object.keys(readers).filter((part) => shown[part] !== versions[part]);
  if (status === drawnStatus && !changed.length) return;
  drawNotices(status, refresh);
  drawTasks(status, refresh);
  drawStorageNotes(status);
  await Promise.all(
    changed.map(async (part) => {
      await readers[part]();
      shown[part] = versions[part];
    }),
  );
  drawSummary(status, drawnMap, { refresh, add: () => openUploadForm() });
  drawnStatus = status;
}

/** Read a resource; an unchanged one is not transferred again. */
async function read(path) {
  const earlier = known.get(path);
  const changed = await readIfChanged(path, earlier?.tag);
  if (known.size > MAX_KNOWN) known.clear();
  if (changed) known.set(path, changed);
  return (changed ?? earlier).body;
}

function mapPath() {
  const parameters = new URLSearchParams({
    gallery: view.gallery + (view.videos === "all" ? "_all" : ""),
    bins: fittingBins(),
    ...view.window,
  });
  return `/forgetting/map?${parameters}`;
}

function drawMemory(map) {
  if (map === drawnMap) return;
  drawnMap = map;
  $("memory").hidden = !map.domains;
  if (!map.domains) return;
  setText($("matrix-note"), mapNote(map, view));
  drawMap(map);
  drawTable(map);
  drawMeasures(map, view);
  drawCurves(map);
}

async function select(group, pressed) {
  if (!pressed) return;
  for (const key of ["gallery", "videos"]) if (pressed.dataset[key]) view[key] = pressed.dataset[key];
  for (const other of group.children) other.setAttribute("aria-pressed", String(other === pressed));
  await redrawMap();
}

/** Show a part of the map, or all of it if the window is null. */
async function zoom(window) {
  view.window = window;
  await redrawMap();
}

function redrawMap() {
  return refreshMap().catch(showUnreachable);
}

async function refreshMap() {
  let path, map;
  do {
    path = mapPath();
    map = await read(path);
  } while (path !== mapPath()); // another selection, or another width of the page
  drawMemory(map);
}

function toggleTable() {
  const isTable = $("matrix-table").classList.toggle("hidden") === false;
  $("heat").hidden = isTable;
  $("as-table").setAttribute("aria-pressed", String(isTable));
  $("as-table").textContent = isTable ? "Show as map" : "Show as table";
  if (!isTable) drawMap(drawnMap);
}

function showUnreachable(error) {
  drawnStatus = null; // the next answer is drawn even if it is unchanged
  $("healthy").textContent = "No answer";
  $("healthy").className = "big bad";
  $("healthy-note").textContent = error.message;
  $("advice").textContent = "Check whether the server runs: cinestrata doctor";
}
