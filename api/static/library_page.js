// The library page: summary, tasks, recall matrix, shards and releases.

import "./search_shortcut.js";
import { openUploadForm, setUpAddDomainForm } from "./add_domain_form.js";
import { api, readIfChanged } from "./api_client.js";
import { $, el, restoreFocus, setText } from "./dom.js";
import { colorFirstDomains } from "./domain_layers.js";
import { setUpFirstDomain } from "./first_domain.js";
import { setUpFollowFolderForm } from "./follow_folder_form.js";
import { watchHealth } from "./health_indicator.js";
import { drawSummary } from "./library_summary.js";
import { drawNotices } from "./operations/operation_notices.js";
import { watchOperations } from "./operations/operations_section.js";
import { drawCurves } from "./recall_curves.js";
import { drawMeasures, drawTable, galleryName, matrixCsv } from "./recall_matrix.js";
import { drawStorageNotes, refreshStorage } from "./storage_tables.js";
import { drawSyncs, refreshSyncs } from "./sync_list.js";
import { drawTasks, refreshTasks, setUpTasks, updateTimes } from "./task_list.js";

const REFRESH_MILLISECONDS = 4000;
const TIMES_MILLISECONDS = 60_000;
const MAX_ANSWERS = 20; // of resources, to show them again without a transfer
const PAGE = 20; // rows, and columns, of the matrix
const MAX_PART = 1000; // the same in a response of the API
const view = { gallery: "local", videos: "held", firstDomain: 1, firstRelease: null };
const answers = new Map(); // path of a resource → its newest body and entity tag
const shown = { tasks: null, measures: null, storage: null, syncs: null }; // versions of the page's parts
let drawnMatrix = null;
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
  for (const node of document.querySelectorAll("[data-turn]")) node.addEventListener("click", turnPage);
  $("matrix-csv").addEventListener("click", downloadCsv);
  document.addEventListener("visibilitychange", refreshIfVisible);
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
  drawSyncs();
}

/** Read the library's state, and those of its parts that have changed. */
async function refresh() {
  const status = await read("/library");
  colorFirstDomains(status);
  const { versions } = status;
  const readers = {
    tasks: refreshTasks,
    measures: refreshMatrix,
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
  drawSummary(status, drawnMatrix, { refresh, add: () => openUploadForm() });
  drawnStatus = status;
}

/** Read a resource; an unchanged one is not transferred again. */
async function read(path) {
  const earlier = answers.get(path);
  const changed = await readIfChanged(path, earlier?.tag);
  if (answers.size > MAX_ANSWERS) answers.clear();
  if (changed) answers.set(path, changed);
  return (changed ?? earlier).body;
}

function matrixPath() {
  const parameters = new URLSearchParams({
    rows: PAGE,
    limit: PAGE,
    first_domain: view.firstDomain,
    ...(view.firstRelease && { first_release: view.firstRelease }),
  });
  return `/forgetting?${parameters}`;
}

async function refreshMatrix() {
  let path, matrix;
  do {
    path = matrixPath();
    matrix = await read(path);
  } while (path !== matrixPath()); // another page
  if (matrix === drawnMatrix) return;
  drawnMatrix = matrix;
  $("memory").hidden = !matrix.domains;
  if (matrix.domains) drawMemory();
}

function drawMemory() {
  drawTable(drawnMatrix, view);
  drawPager("domain", drawnMatrix.first_domain, drawnMatrix.tasks.length, drawnMatrix.domains);
  const releases = drawnMatrix.router_accuracy.length;
  drawPager("release", drawnMatrix.first_release, drawnMatrix.releases.length, releases);
  drawMeasures(drawnMatrix, view);
  drawCurves(drawnMatrix, view);
}

function drawPager(axis, first, shown, all) {
  const last = first + shown - 1;
  $(`${axis}-pager`).hidden = shown === all;
  setText($(`${axis}-window`), `${axis === "domain" ? "Domains" : "Releases"} ${first}–${last} of ${all}`);
  const [back, forward] = $(`${axis}-pager`).querySelectorAll("button");
  back.disabled = first === 1;
  forward.disabled = last >= all;
}

async function turnPage({ target }) {
  const step = PAGE * Number(target.dataset.turn);
  if (target.closest("#domain-pager")) view.firstDomain = Math.max(1, drawnMatrix.first_domain + step);
  else view.firstRelease = Math.max(1, drawnMatrix.first_release + step);
  await refreshMatrix().catch(showUnreachable);
  restoreFocus(target.parentElement.querySelector("button:enabled"));
}

function select(group, pressed) {
  if (!pressed) return;
  for (const key of ["gallery", "videos"]) if (pressed.dataset[key]) view[key] = pressed.dataset[key];
  for (const other of group.children) other.setAttribute("aria-pressed", String(other === pressed));
  if (drawnMatrix?.domains) drawMemory();
}

async function downloadCsv() {
  try {
    const parts = [];
    for (let release = 1; release <= drawnMatrix.router_accuracy.length; release += MAX_PART)
      for (let domain = 1; domain <= drawnMatrix.domains; domain += MAX_PART) {
        const size = `rows=${MAX_PART}&limit=${MAX_PART}`;
        parts.push(await api(`/forgetting?${size}&first_release=${release}&first_domain=${domain}`));
      }
    const href = URL.createObjectURL(new Blob([matrixCsv(parts, view)], { type: "text/csv" }));
    el("a", { href, download: `recall-${galleryName(view)}.csv` }).click();
    URL.revokeObjectURL(href);
  } catch (error) {
    showUnreachable(error);
  }
}

function showUnreachable(error) {
  drawnStatus = null; // the next answer is drawn even if it is unchanged
  $("healthy").textContent = "No response";
  $("healthy").className = "big bad";
  $("healthy-note").textContent = error.message;
  $("advice").textContent = "Start the service (cinestrata up), or look into its log.";
}
