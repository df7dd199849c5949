// The search page: a box, where to look, and what was found.

import { $, el } from "./dom.js";
import { api } from "./api_client.js";
import { blame, chosen, filtered, readFilters, wireFilters, writeFilters } from "./search_filters.js";
import { count, percent, short } from "./formatting.js";
import { dot, searchable, stackBar, strata, tone } from "./domain_layers.js";
import { card } from "./result_card.js";
import { watchHealth } from "./health_indicator.js";

const FINAL = ["ready", "failed", "cancelled"];
const FITS = 0.3; // of an answer: below it, what is asked for is hardly there
const state = { task: "", learned: [], clip: null, asked: null, cursor: null };
let running = null;

read();
wire();
watchHealth();
await domains();
if ($("q").value) search({ remember: false });

function read() {
  const parameters = new URLSearchParams(location.search);
  $("q").value = parameters.get("q") || "";
  state.task = parameters.get("task") || "";
  readFilters(parameters);
  const mode = document.querySelector(`#modes input[value="${CSS.escape(parameters.get("mode") || "")}"]`);
  if (mode) mode.checked = true;
  if ([...$("k").options].some((option) => option.value === parameters.get("k"))) $("k").value = parameters.get("k");
}

function wire() {
  $("search").addEventListener("submit", (event) => { event.preventDefault(); search(); });
  $("q").addEventListener("search", () => { if (!$("q").value) home(); });
  $("by-clip").addEventListener("click", () => $("clip").click());
  $("clip").addEventListener("change", () => { if ($("clip").files[0]) byClip($("clip").files[0]); $("clip").value = ""; });
  for (const kind of ["dragover", "dragleave", "drop"]) $("search").addEventListener(kind, (event) => {
    event.preventDefault();
    $("search").classList.toggle("dropping", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) byClip(event.dataTransfer.files[0]);
  });
  $("modes").addEventListener("change", () => again());
  $("k").addEventListener("change", () => again());
  wireFilters(() => again());
  $("more-button").addEventListener("click", more);
  document.addEventListener("videodeleted", async ({ detail }) => {
    $("search-done").hidden = false;
    $("search-done").textContent = `“${detail}” was deleted.`;
    $("search-done").focus(); // the result that was open is gone
    await repeat({ remember: false });
    await domains();
  });
  for (const popover of [$("filter"), $("options")]) {
    // A button that removes itself is nowhere by now, and was not outside.
    document.addEventListener("click", (event) => { if (event.target.isConnected && !popover.contains(event.target)) popover.open = false; });
    popover.addEventListener("keydown", (event) => { if (event.key === "Escape") { popover.open = false; popover.firstElementChild.focus(); } });
  }
  $("domains").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const chips = [...$("domains").children];
    const next = chips[(chips.indexOf(document.activeElement) + step + chips.length) % chips.length];
    next.focus();
    choose(next.dataset.task);
  });
  addEventListener("popstate", () => { read(); choose(state.task, { searching: false }); if ($("q").value) search({ remember: false }); else home({ remember: false }); });
}

// -- before a search -------------------------------------------------------------------------------------

async function domains() {
  let tasks;
  try {
    tasks = await api("/tasks");
  } catch (error) {
    message("The library cannot be read.", error.message);
    return;
  }
  state.learned = tasks.filter(searchable);
  $("options").hidden = $("filter").hidden = !state.learned.length;
  tasks.filter((task) => task.learned_order).sort((a, b) => a.learned_order - b.learned_order).forEach((task) => tone(task.name));
  if (!state.learned.length) {
    nothingLearned(tasks);
    setTimeout(domains, 4000);
    return;
  }
  if (document.body.dataset.searching === undefined) $("answer").hidden = true;
  const videos = state.learned.reduce((sum, task) => sum + task.counts.accepted, 0);
  $("lead").textContent = `${count(videos, "video")} in ${count(state.learned.length, "domain")}, learned one after the other. Nothing was ever indexed twice.`;
  $("domains").replaceChildren(chip("", "All domains"), ...state.learned.map((task) => chip(task.name, task.name)));
  choose(state.learned.some((task) => task.name === state.task || task.id === state.task) ? state.task : "", { searching: false });
  $("layers").replaceChildren(...strata(state.learned, (name) => { choose(name); $("q").focus(); }));
  $("layers").hidden = false;
  examples();
}

function nothingLearned(tasks) {
  const waiting = tasks.find((task) => !FINAL.includes(task.state));
  const emptied = tasks.some((task) => task.learned_order);
  $("lead").textContent = "Text-to-video search that keeps learning and never re-indexes.";
  message(
    waiting ? `“${waiting.name}” is being learned.` : emptied ? "All videos were deleted." : "Nothing has been learned yet.",
    waiting ? "Search opens as soon as it is laid down. The library page shows how far it is."
      : "Add a domain of videos on the library page, or send one with POST /tasks: a name, and for each video its path and what is seen in it.",
    el("a", { href: "/admin", textContent: waiting ? "Watch it being learned" : "Open the library" }),
  );
}

function chip(value, text) {
  const node = el("button", { type: "button", role: "radio", "data-task": value }, value ? dot(value) : null, text);
  node.addEventListener("click", () => choose(value));
  return node;
}

function choose(value, { searching = true } = {}) {
  const task = state.learned.find((known) => known.id === value);
  state.task = task ? task.name : value;
  for (const other of $("domains").children) {
    const chosen = other.dataset.task === state.task;
    other.setAttribute("aria-checked", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
  }
  if (searching) again();
}

/** Captions of videos that are really there make the best first queries. */
async function examples() {
  const found = await Promise.all(state.learned.slice(-3).map(async (task) => {
    const answer = await api(`/search?${new URLSearchParams({ q: task.name, task: task.id, k: 5 })}`).catch(() => null);
    return answer?.results.flatMap((result) => result.captions).filter((caption) => caption.length < 90)[0];
  }));
  const captions = [...new Set(found.filter(Boolean))];
  $("examples").hidden = !captions.length;
  $("examples").replaceChildren(el("span", { textContent: "Try" }), ...captions.map((caption) => {
    const node = el("button", { type: "button", textContent: caption });
    node.addEventListener("click", () => { $("q").value = caption; search(); });
    return node;
  }));
}

function home({ remember = true } = {}) {
  running?.abort();
  delete document.body.dataset.searching;
  $("answer").hidden = true;
  document.title = "Search · Cinestrata";
  if (remember) history.pushState(null, "", "/");
}

// -- a search --------------------------------------------------------------------------------------------

function again() {
  mark();
  if (document.body.dataset.searching !== undefined) repeat();
}

function repeat(how) {
  return state.clip ? byClip(state.clip) : search(how);
}

function chosenMode() {
  return document.querySelector("#modes input:checked").value;
}

function mark() {
  $("options").firstElementChild.toggleAttribute("data-set", Boolean(chosenMode()) || $("k").value !== "24");
}

function search({ remember = true } = {}) {
  state.clip = null;
  const query = new URLSearchParams({ q: $("q").value });
  if (state.task) query.set("task", state.task);
  if (chosenMode()) query.set("mode", chosenMode());
  if ($("k").value !== "24") query.set("k", $("k").value);
  writeFilters(query);
  const address = `/?${query}`;
  if (remember && address !== location.pathname + location.search) history.pushState(null, "", address);
  query.set("k", $("k").value);
  document.title = `${$("q").value || "Search"} · Cinestrata`;
  return ask(`/search?${query}`, {}, (answer) => draw(answer, query));
}

/** Search with a file instead of words. It cannot be kept in an address, so the page's stays that of the start. */
function byClip(file) {
  state.clip = file;
  $("q").value = "";
  document.title = `${file.name} · Cinestrata`;
  const query = new URLSearchParams({ k: $("k").value, captions: 3 });
  if (state.task) query.set("task", state.task);
  writeFilters(query, ["min_confidence"]);
  const form = new FormData();
  form.append("clip", file);
  return ask(`/search/clip?${query}`, { method: "POST", body: form }, drawClip);
}

async function ask(address, options, show) {
  document.body.dataset.searching = "";
  mark();
  running?.abort();
  const mine = (running = new AbortController());
  if (document.activeElement !== $("search-done")) $("search-done").hidden = true;
  waiting();
  try {
    const answer = await api(address, { ...options, signal: mine.signal });
    if (running === mine) show(answer);
  } catch (error) {
    if (error.name !== "AbortError" && running === mine) failed(error);
  } finally {
    if (running === mine) $("answer").setAttribute("aria-busy", "false");
  }
}

/** The results after those that are shown, by the release that found them. */
async function more() {
  const mine = running;
  $("more-button").disabled = true;
  try {
    const next = new URLSearchParams(state.asked);
    next.set("cursor", state.cursor);
    const answer = await api(`/search?${next}`, { signal: mine.signal });
    if (running !== mine) return;
    const cards = answer.results.map(card);
    $("results").append(...cards);
    follow(answer);
    cards[0]?.querySelector("button").focus();
  } catch (error) {
    if (error.name === "AbortError" || running !== mine) return;
    const anew = el("button", { type: "button", textContent: "Search again" });
    anew.addEventListener("click", () => search({ remember: false }));
    message(error.status === 410 ? "This list has ended: the library has changed." : "The next results did not come.", error.message, anew);
    $("message").scrollIntoView({ block: "nearest" });
  } finally {
    $("more-button").disabled = false;
  }
}

function follow(answer) {
  state.cursor = answer.next_cursor;
  $("more").hidden = !state.cursor;
}

function waiting() {
  $("answer").hidden = false;
  $("answer").setAttribute("aria-busy", "true");
  $("message").hidden = $("more").hidden = true;
  blame([]);
  if ($("results").children.length) return;
  $("results").replaceChildren(...Array.from({ length: 8 }, () =>
    el("li", { className: "skeleton", "aria-hidden": "true" }, el("div", { className: "frame" }), el("div", { className: "line" }), el("div", { className: "line" }))));
}

function failed(error) {
  $("facts").hidden = true;
  $("results").replaceChildren();
  const retry = el("button", { type: "button", textContent: "Try again" });
  retry.addEventListener("click", () => repeat({ remember: false }));
  if (error.status === 503 && !state.learned.length) message("Nothing has been learned yet.", error.message, el("a", { href: "/admin", textContent: "Open the library" }));
  else if (error.status === 422) {
    blame(error.fields);
    message(error.fields[0]?.message || error.title, error.fields[0]?.hint || "");
  } else message(error.title || "The search failed.", error.message, retry);
}

function draw(answer, query) {
  const { results, routing, timing_ms: time } = answer;
  $("facts").hidden = $("bar").hidden = false;
  stackBar($("bar"), "Share of each domain in the routing of this query", routing.map(({ task, weight }) => ({ name: task, share: weight })));
  const heavy = routing.filter(({ weight }) => weight >= 0.005).slice(0, 8);
  const rest = routing.length - heavy.length;
  $("legend").replaceChildren(
    ...heavy.map(({ task, weight }) => el("li", {}, dot(task), `${task} ${Math.round(100 * weight)} %`)),
    ...(rest ? [el("li", { textContent: heavy.length ? `and ${count(rest, "other")}` : count(rest, "domain") })] : []));
  const parts = ["encode", "route", "search", "merge"].map((name) => `${name} ${time[name].toFixed(1)}`).join(" · ");
  $("timing").replaceChildren(`${count(results.length, "result")} in ${time.total.toFixed(1)} ms (${parts}) · release `, el("code", { textContent: short(answer.release), title: answer.release || "" }), ` · ${answer.mode} queries`);
  state.asked = query.toString();
  listed(answer);
}

function drawClip(answer) {
  const { results, timing_ms: time } = answer;
  $("facts").hidden = false;
  $("bar").hidden = true; // routing goes by words
  $("legend").replaceChildren(
    el("li", { textContent: `Most like ${state.clip.name}` }),
    ...answer.captions.map((caption) => el("li", {}, dot(caption.task), caption.text)));
  const parts = ["decode", "encode", "search"].map((name) => `${name} ${time[name].toFixed(1)}`).join(" · ");
  $("timing").replaceChildren(`${count(results.length, "result")} in ${time.total.toFixed(1)} ms (${parts}) · release `, el("code", { textContent: short(answer.release), title: answer.release }));
  listed(answer);
}

function listed(answer) {
  const { results } = answer;
  $("results").replaceChildren(...results.map(card));
  follow(answer);
  const degraded = Object.entries(answer.degraded);
  if (degraded.length) message(`${degraded.map(([name]) => name).join(", ")} could not be searched.`, degraded[0][1]);
  else if (!results.length && chosen("min_confidence") && !chosen("min_score") && answer.confidence != null) message("No result is that likely to be right.", `${among(answer)} None of them alone reaches ${chosen("min_confidence")}: ask for less, or try other words.`);
  else if (!results.length) message("No video was found.", filtered() ? "Loosen the filters, or try other words." : "Try other words, or search all domains.");
  else if (answer.confidence != null && answer.confidence < FITS) message("Nothing fits well.", `The library may hold no such video. ${among(answer)} They are shown all the same.`);
  else $("message").hidden = true;
}

const among = ({ confidence }) => `The right one is among the ten best with a probability of ${percent(confidence, confidence < 0.1 ? 1 : 0)}.`;

function message(title, text, ...more) {
  $("answer").hidden = false;
  $("message").replaceChildren(el("strong", { textContent: title }), text, ...(more.length ? [el("p", { className: "act" }, ...more)] : []));
  $("message").hidden = false;
}
