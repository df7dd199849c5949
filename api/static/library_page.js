// The library page: what was learned, what was forgotten, is it healthy, what to do.

import { wireForm } from "./add_domain_form.js";
import { drawCharts } from "./charts.js";
import { $ } from "./dom.js";
import { glance } from "./library_summary.js";
import { api } from "./api_client.js";
import { tone } from "./domain_layers.js";
import { drawFigures, drawMatrix } from "./recall_matrix.js";
import { watchHealth } from "./health_indicator.js";
import { drawStore } from "./storage_tables.js";
import { drawTasks } from "./task_list.js";

const view = { gallery: "local", videos: "held", mode: null };
let drawn = "";
let measures = null;

wire();
watchHealth();
await refresh().catch(unreachable);
setInterval(() => document.hidden || refresh().catch(unreachable), 4000);
document.addEventListener("visibilitychange", () => document.hidden || refresh().catch(unreachable));
document.addEventListener("themechange", () => measures && drawCharts(measures, view));

async function refresh() {
  const [tasks, fresh, overview] = await Promise.all([api("/tasks"), api(`/forgetting${view.mode ? `?mode=${view.mode}` : ""}`), api("/overview")]);
  [...tasks].sort((a, b) => (a.learned_order ?? 1e9) - (b.learned_order ?? 1e9)).forEach((task) => tone(task.name));
  measures = fresh;
  drawTasks(tasks, refresh);
  glance(tasks, measures, overview, { refresh, add: () => $("add").click() });
  drawStore(overview);
  const next = JSON.stringify([measures, view]);
  if (next !== drawn) { drawn = next; redraw(); }
}

function redraw() {
  $("memory").hidden = !measures.tasks.length;
  if (!measures.tasks.length) return;
  for (const node of document.querySelectorAll("#mode-switch button")) {
    node.setAttribute("aria-pressed", String(node.dataset.mode === measures.mode));
    node.disabled = !measures.modes.includes(node.dataset.mode);
    node.dataset.means ??= node.title;
    node.title = node.disabled ? `${node.dataset.means}. Not measured` : node.dataset.means;
  }
  drawMatrix(measures, view);
  drawFigures(measures);
  drawCharts(measures, view);
}

function unreachable(error) {
  $("healthy").textContent = "No answer";
  $("healthy").className = "big bad";
  $("healthy-note").textContent = error.message;
  $("advice").textContent = "See whether the server runs: cinestrata doctor";
}

function wire() {
  for (const group of document.querySelectorAll(".segmented")) {
    group.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (!pressed) return;
      Object.assign(view, pressed.dataset);
      for (const other of group.children) other.setAttribute("aria-pressed", String(other === pressed));
      if (pressed.dataset.mode) refresh().catch(unreachable); else redraw();
    });
  }
  $("as-table").addEventListener("click", () => {
    const table = $("matrix-table").classList.toggle("hidden") === false;
    $("heat").hidden = table;
    $("as-table").setAttribute("aria-pressed", String(table));
    $("as-table").textContent = table ? "Show as map" : "Show as table";
    if (!table) redraw();
  });
  wireForm(refresh);
}
