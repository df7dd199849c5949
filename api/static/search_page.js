// The search page: the search box, the choice of domains and options, and requests.

import "./search_shortcut.js";
import { api } from "./api_client.js";
import { $, button, el } from "./dom.js";
import { colorFirstDomains, domainLayers, dot } from "./domain_layers.js";
import { setUpFacets } from "./facet_filters.js";
import { count } from "./formatting.js";
import { watchHealth } from "./health_indicator.js";
import {
  hasFilters,
  readFilters,
  removeFilters,
  setUpFilters,
  showFieldErrors,
  writeFilters,
} from "./search_filters.js";
import { appendResults, showClipResponse, showMessage, showSearchResponse } from "./search_response.js";
import { closeSuggestions, setUpSuggestions } from "./search_suggestions.js";
import { isSearched, NOT_SEARCHED, unsearchedMessage, unsearchedText } from "./served_release.js";
import { isSearchable } from "./task_states.js";

const DEFAULT_RESULTS = "24";
const MAX_CHIPS = 40; // newest domains that are offered without a search for their name
const MAX_EXAMPLES = 3;
const MAX_EXAMPLE_LENGTH = 90; // characters
const POLL_MILLISECONDS = 4000;
const TYPING_MILLISECONDS = 250;
const SKELETONS = 8;
const CHIP_STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
const MAX_UNCOUNTED = 3; // domains without a result that are shown beside those with results
const state = {
  task: "",
  learned: [],
  found: [],
  counts: new Map(), // domain → number of results of the search `countedSearch`
  countedSearch: null, // its parameters without the domain; null where only the selected domain is counted
  showsOthers: false,
  pinned: null,
  clip: null,
  query: null,
  cursor: null,
};
let activeRequest = null;
let typing = null;

readAddress();
setUp();
watchHealth();
await loadDomains();
if ($("q").value) search({ addToHistory: false });

function readAddress() {
  const parameters = new URLSearchParams(location.search);
  $("q").value = parameters.get("q") || "";
  state.task = parameters.get("task") || "";
  readFilters(parameters);
  const mode = CSS.escape(parameters.get("mode") || "");
  const input = document.querySelector(`#modes input[value="${mode}"]`);
  if (input) input.checked = true;
  const k = parameters.get("k");
  if ([...$("k").options].some((option) => option.value === k)) $("k").value = k;
}

function setUp() {
  $("search").addEventListener("submit", (event) => {
    event.preventDefault();
    searchTyped();
  });
  setUpSuggestions(searchTyped);
  $("q").addEventListener("search", () => {
    if (!$("q").value) showStart();
  });
  setUpClipInput();
  $("modes").addEventListener("change", repeatIfSearching);
  $("k").addEventListener("change", repeatIfSearching);
  setUpFilters(repeatIfSearching);
  setUpFacets(repeatIfSearching);
  $("other-domains").addEventListener("click", () => {
    state.showsOthers = true;
    const [first] = hiddenChips();
    drawChips();
    $("domains")
      .querySelector(`[data-task="${CSS.escape(first.dataset.task)}"]`)
      .focus();
  });
  $("more-button").addEventListener("click", loadMore);
  for (const popover of [$("filter"), $("options")]) setUpPopover(popover);
  $("domains").addEventListener("keydown", moveBetweenChips);
  $("domain-text").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(findDomains, TYPING_MILLISECONDS);
  });
  document.addEventListener("videodeleted", ({ detail }) => showDeletion(detail));
  addEventListener("popstate", restoreAddress);
}

function searchTyped() {
  closeSuggestions();
  if (matchMedia("(pointer: coarse)").matches) $("q").blur(); // the keyboard of a phone would cover the results
  search();
}

function setUpClipInput() {
  $("by-clip").addEventListener("click", () => $("clip").click());
  $("clip").addEventListener("change", () => {
    if ($("clip").files[0]) searchByClip($("clip").files[0]);
    $("clip").value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    $("search").addEventListener(kind, (event) => {
      event.preventDefault();
      $("search").classList.toggle("dropping", kind === "dragover");
      if (kind === "drop" && event.dataTransfer.files[0]) searchByClip(event.dataTransfer.files[0]);
    });
  }
}

function setUpPopover(popover) {
  document.addEventListener("click", (event) => {
    // A button that removed itself is no longer connected, but it was inside the popover.
    if (event.target.isConnected && !popover.contains(event.target)) popover.open = false;
  });
  popover.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    popover.open = false;
    popover.firstElementChild.focus();
  });
}

function moveBetweenChips(event) {
  const step = CHIP_STEPS[event.key];
  if (!step) return;
  event.preventDefault();
  const chips = [...$("domains").children].filter((other) => !other.disabled && !other.hidden);
  const next = chips[(chips.indexOf(document.activeElement) + step + chips.length) % chips.length];
  next.focus();
  selectDomain(next.dataset.task);
}

async function showDeletion(video) {
  $("search-done").hidden = false;
  $("search-done").textContent = `“${video}” was deleted.`;
  $("search-done").focus(); // the player with the focused button is closed
  await repeat({ addToHistory: false });
  await loadDomains();
}

async function restoreAddress() {
  readAddress();
  await addSelectedDomain();
  drawChips();
  if ($("q").value) search({ addToHistory: false });
  else showStart({ addToHistory: false });
}

function isSearching() {
  return document.body.dataset.searching !== undefined;
}

function showStart({ addToHistory = true } = {}) {
  activeRequest?.abort();
  delete document.body.dataset.searching;
  $("answer").hidden = true;
  countDomains([], "");
  if ($("examples").hidden) drawExamples();
  document.title = "Search · Cinestrata";
  if (addToHistory) history.pushState(null, "", "/");
}

// -- domains ---------------------------------------------------------------------------------------------

/**
 * Load the newest domains, newest last, and the selected one. A library of up to MAX_CHIPS domains is shown completely;
 * others have a search field for the names of domains.
 */
async function loadDomains() {
  let status;
  let domains;
  try {
    [status, domains] = await Promise.all([
      api("/library"),
      readDomains({ sort: "-learned", searched: true }),
    ]);
    domains.reverse();
  } catch (error) {
    showMessage("The library cannot be loaded.", error.message);
    return;
  }
  colorFirstDomains(status);
  state.pinned = status.pinned;
  state.learned = domains;
  state.found = domains;
  $("options").hidden = !status.searchable_domains;
  $("filter").hidden = !status.searchable_domains;
  drawUnsearched();
  if (!status.searchable_domains) {
    showEmptyLibrary(status);
    setTimeout(loadDomains, POLL_MILLISECONDS);
    return;
  }
  if (!isSearching()) $("answer").hidden = true;
  await addSelectedDomain();
  drawDomains(status);
  if ($("domain-text").value) findDomains();
  if (!$("q").value) drawExamples(); // its searches would delay the search of the address
}

/** The first searchable domains of the list of tasks with some parameters. */
async function readDomains(parameters) {
  const query = new URLSearchParams({ kind: "domain", state: "ready", limit: MAX_CHIPS, ...parameters });
  return (await api(`/tasks?${query}`)).filter(isSearchable);
}

function isNamed(nameOrId) {
  return (task) => task.name === nameOrId || task.id === nameOrId;
}

/** Add the domain that the address names, if it is not shown. */
async function addSelectedDomain() {
  if (!state.task || state.found.some(isNamed(state.task))) return;
  try {
    const { releases } = await api(`/releases?${new URLSearchParams({ task: state.task, limit: 1 })}`);
    const task = releases.length && (await api(`/tasks/${encodeURIComponent(releases[0].task_id)}`));
    if (task && isSearchable(task)) {
      state.task = task.name;
      state.found = [task, ...state.found];
    }
  } catch {
    // The search reports an unknown name.
  }
}

/** Offer the domains whose name contains the typed text, and the selected one. */
async function findDomains() {
  const text = $("domain-text").value.trim();
  const found = text ? await readDomains({ text, sort: "name" }).catch(() => []) : state.learned;
  if (text !== $("domain-text").value.trim()) return; // typed on
  const selected = state.found.find(isNamed(state.task));
  state.found = selected && !found.some(isNamed(selected.id)) ? [selected, ...found] : found;
  drawChips();
}

/** Tell that an earlier release is served, and which domains it does not search. */
function drawUnsearched() {
  const lost = state.pinned?.unsearchable.domains;
  $("unsearched").hidden = !lost;
  if (lost) $("unsearched").textContent = `An earlier release is served. ${unsearchedText(state.pinned)}`;
}

function drawDomains({ searchable_domains: domains, searchable }) {
  const { learned } = state;
  $("lead").textContent =
    `${count(searchable, "video")} in ${count(domains, "domain")}, learned one after the other and indexed once.`;
  $("domain-text").hidden = domains <= learned.length;
  const isKnown = state.found.some(isNamed(state.task));
  if (!isKnown) state.task = "";
  drawChips();
  const selectLayer = (name) => {
    if (!state.found.some(isNamed(name))) {
      $("domain-text").value = "";
      state.found = state.learned;
      drawChips();
    }
    selectDomain(name);
    $("q").focus();
  };
  $("layers").replaceChildren(...domainLayers(learned, selectLayer));
  $("layers").hidden = false;
}

/** Draw the domains: those with results first, with their number; of the others only a few until they are asked for. */
function drawChips() {
  const focused = document.activeElement?.dataset.task;
  const names = new Map(state.found.map((task) => [task.name, isSearched(task, state.pinned)]));
  if (!$("domain-text").value) {
    for (const { task } of state.pinned?.unsearchable.first ?? []) names.set(task, false);
    for (const name of state.counts.keys()) names.set(name, true); // also of an old domain
  }
  const counted = [...state.counts.keys()].filter((name) => names.get(name));
  const others = [...names.keys()].filter((name) => !counted.includes(name));
  const chips = [...counted, ...others].map((name) => chip(name, name, names.get(name)));
  $("domains").replaceChildren(chip("", "All domains"), ...chips);
  foldOthers(others);
  selectDomain(state.task, { repeatSearch: false });
  if (focused !== undefined)
    [...$("domains").children].find(({ dataset }) => dataset.task === focused)?.focus();
}

function foldOthers(others) {
  const isFolded =
    state.countedSearch !== null &&
    state.counts.size > 0 &&
    !state.showsOthers &&
    !$("domain-text").value &&
    others.length > MAX_UNCOUNTED;
  $("other-domains").hidden = !isFolded;
  $("other-domains").textContent = count(others.length, "other domain");
  if (!isFolded) return;
  for (const node of $("domains").children) {
    node.hidden = others.includes(node.dataset.task) && node.dataset.task !== state.task;
  }
}

const hiddenChips = () => [...$("domains").children].filter(({ hidden }) => hidden);

/** Keep the results per domain of a search of all domains while the same search selects one of them. */
function countDomains(facets, query) {
  const search = new URLSearchParams(query);
  search.delete("task");
  const isKnown = state.task && state.countedSearch === search.toString();
  if (isKnown) return;
  const values = facets.find(({ field }) => field === "task")?.values ?? [];
  state.counts = new Map(values.map(({ value, count: videos }) => [value, videos]));
  state.countedSearch = state.task ? null : search.toString();
  state.showsOthers = false;
  drawChips();
}

function showEmptyLibrary({ active: [active], domains, release_count: releases }) {
  $("lead").textContent = "Text-to-video search that keeps learning and never re-indexes.";
  if (domains) {
    showMessage("No video can be searched.", "An earlier release without videos is served.");
    return;
  }
  if (active) {
    const link = el("a", { href: "/admin", textContent: "Show its progress" });
    const text = "Search becomes available when the task is ready. The library page shows its progress.";
    showMessage(`“${active.name}” is being learned.`, text, link);
    return;
  }
  showMessage(
    releases ? "All videos were deleted." : "Nothing has been learned yet.",
    "The library page leads to the first domain: with your videos, with a folder on the server, or with sample videos.",
    el("a", { href: "/admin", textContent: "Open the library" }),
  );
}

function chip(value, text, isOffered = true) {
  const node = el(
    "button",
    {
      type: "button",
      role: "radio",
      "data-task": value,
      disabled: !isOffered,
      title: isOffered ? "" : `${text}: ${NOT_SEARCHED}`,
    },
    value ? dot(value) : null,
    text,
    state.counts.has(value) ? el("small", { textContent: state.counts.get(value).toLocaleString() }) : null,
  );
  node.addEventListener("click", () => selectDomain(value === state.task ? "" : value));
  return node;
}

function selectDomain(nameOrId, { repeatSearch = true } = {}) {
  const task = state.found.find(({ id }) => id === nameOrId);
  state.task = task ? task.name : nameOrId;
  for (const other of $("domains").children) {
    const isSelected = other.dataset.task === state.task;
    other.setAttribute("aria-checked", String(isSelected));
    other.tabIndex = isSelected ? 0 : -1;
  }
  if (repeatSearch) repeatIfSearching();
}

/** Offer captions of existing videos as example queries. */
async function drawExamples() {
  const found = await Promise.all(state.learned.slice(-MAX_EXAMPLES).map(findExample));
  const captions = [...new Set(found.filter(Boolean))];
  const examples = captions.map((caption) => {
    const node = el("button", { type: "button", textContent: caption });
    node.addEventListener("click", () => {
      $("q").value = caption;
      search();
    });
    return node;
  });
  $("examples").hidden = !captions.length;
  $("examples").replaceChildren(el("span", { textContent: "Try" }), ...examples);
}

async function findExample(task) {
  const query = new URLSearchParams({ q: task.name, task: task.id, k: 5 });
  const response = await api(`/search?${query}`).catch(() => null);
  const captions = response?.results.flatMap((result) => result.captions) ?? [];
  return captions.find((caption) => caption.length < MAX_EXAMPLE_LENGTH);
}

// -- searches --------------------------------------------------------------------------------------------

function repeatIfSearching() {
  markChangedOptions();
  if (isSearching()) repeat();
}

function repeat(options) {
  return state.clip ? searchByClip(state.clip) : search(options);
}

function selectedMode() {
  return document.querySelector("#modes input:checked").value;
}

function markChangedOptions() {
  const isChanged = Boolean(selectedMode()) || $("k").value !== DEFAULT_RESULTS;
  $("options").firstElementChild.toggleAttribute("data-set", isChanged);
}

function search({ addToHistory = true } = {}) {
  state.clip = null;
  const query = new URLSearchParams({ q: $("q").value });
  if (state.task) query.set("task", state.task);
  if (selectedMode()) query.set("mode", selectedMode());
  if ($("k").value !== DEFAULT_RESULTS) query.set("k", $("k").value);
  writeFilters(query);
  const address = `/?${query}`;
  if (addToHistory && address !== location.pathname + location.search) history.pushState(null, "", address);
  query.set("k", $("k").value);
  document.title = `${$("q").value || "Search"} · Cinestrata`;
  return request(`/search?${query}&facets=true`, {}, (response) => {
    state.query = query.toString();
    countDomains(response.facets, query);
    showSearchResponse(response, widerSearches());
  });
}

/** Buttons that remove the restrictions of the search. */
function widerSearches() {
  const all = state.task ? button("Search all domains", () => selectDomain("")) : null;
  const unfiltered = () => {
    removeFilters();
    repeatIfSearching();
  };
  const filters = hasFilters() ? button("Remove the filters", unfiltered) : null;
  return [all, filters].filter(Boolean);
}

/** Search with a file. The file is not part of the address, which stays that of the start page. */
function searchByClip(file) {
  state.clip = file;
  $("q").value = "";
  document.title = `${file.name} · Cinestrata`;
  const query = new URLSearchParams({ k: $("k").value, captions: 3 });
  if (state.task) query.set("task", state.task);
  writeFilters(query, ["min_confidence"]);
  const form = new FormData();
  form.append("clip", file);
  const options = { method: "POST", body: form };
  return request(`/search/clip?${query}`, options, (response) => {
    countDomains([], query);
    showClipResponse(response, file.name);
  });
}

/** Send a request in place of the active one, and show its response. */
async function request(path, options, show) {
  document.body.dataset.searching = "";
  markChangedOptions();
  activeRequest?.abort();
  const selected = state.found.find(isNamed(state.task));
  if (selected && !isSearched(selected, state.pinned)) {
    showUnsearched(selected.name);
    return;
  }
  const controller = new AbortController();
  activeRequest = controller;
  if (document.activeElement !== $("search-done")) $("search-done").hidden = true;
  showProgress();
  try {
    const response = await api(path, { ...options, signal: controller.signal });
    if (activeRequest !== controller) return;
    show(response);
    setCursor(response.next_cursor);
  } catch (error) {
    if (error.name !== "AbortError" && activeRequest === controller) showFailure(error);
  } finally {
    if (activeRequest === controller) $("answer").setAttribute("aria-busy", "false");
  }
}

/** Append the next page of results, from the release of the first page. */
async function loadMore() {
  const controller = activeRequest;
  $("more-button").disabled = true;
  try {
    const query = new URLSearchParams(state.query);
    query.set("cursor", state.cursor);
    const response = await api(`/search?${query}`, { signal: controller.signal });
    if (activeRequest !== controller) return;
    appendResults(response);
    setCursor(response.next_cursor);
  } catch (error) {
    if (error.name !== "AbortError" && activeRequest === controller) showPageFailure(error);
  } finally {
    $("more-button").disabled = false;
  }
}

function setCursor(cursor) {
  state.cursor = cursor;
  $("more").hidden = !cursor;
}

function showProgress() {
  $("answer").hidden = false;
  $("answer").setAttribute("aria-busy", "true");
  $("message").hidden = true;
  $("more").hidden = true;
  $("timing").hidden = true;
  showFieldErrors([]);
  if ($("results").children.length) return;
  $("results").replaceChildren(...Array.from({ length: SKELETONS }, skeleton));
}

function skeleton() {
  const parts = ["frame", "line", "line"].map((className) => el("div", { className }));
  return el("li", { className: "skeleton", "aria-hidden": "true" }, ...parts);
}

function showUnsearched(name) {
  activeRequest = null;
  $("facts").hidden = true;
  $("timing").hidden = true;
  $("more").hidden = true;
  $("results").replaceChildren();
  const all = button("Search all domains", () => selectDomain(""), { className: "" });
  $("message").replaceChildren(...unsearchedMessage(name, all));
  $("message").hidden = false;
  $("answer").hidden = false;
  $("answer").setAttribute("aria-busy", "false");
}

function showFailure(error) {
  $("facts").hidden = true;
  $("results").replaceChildren();
  if (error.status === 503 && !state.learned.length) {
    const link = el("a", { href: "/admin", textContent: "Open the library" });
    showMessage("Nothing has been learned yet.", error.message, link);
  } else if (error.status === 409 && state.task) {
    showUnsearched(state.task); // the served release has changed since the page was loaded
    loadDomains();
  } else if (error.status === 422) {
    showFieldErrors(error.fields);
    showMessage(error.fields[0]?.message || error.title, error.fields[0]?.hint || "");
  } else {
    const retry = button("Try again", () => repeat({ addToHistory: false }), { className: "" });
    showMessage(error.title || "The search failed.", error.message, retry);
  }
}

function showPageFailure(error) {
  const isExpired = error.status === 410;
  const title = isExpired ? "This list has ended: the library has changed." : "The next page failed to load.";
  const searchAgain = button("Search again", () => search({ addToHistory: false }), { className: "" });
  showMessage(title, error.message, searchAgain);
  $("message").scrollIntoView({ block: "nearest" });
}
