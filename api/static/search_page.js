// The search page: search box, domains, options and requests.

import "./search_shortcut.js";
import { api } from "./api_client.js";
import { $, announce, button, closeOnLeave, el, moveFocus, restoreFocus } from "./dom.js";
import {
  addSelectedDomain,
  choice,
  countDomains,
  drawDomainChoice,
  offerDomains,
  readNewestDomains,
  selectDomain,
  selectedId,
  selectNewestDomain,
  setUpDomainChoice,
  unsearchedSelection,
} from "./domain_choice.js";
import { colorFirstDomains, domainLayers } from "./domain_layers.js";
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
import {
  appendResults,
  showClipResponse,
  showMessage,
  showSearchResponse,
  showUnread,
} from "./search_response.js";
import { closeSuggestions, setUpSuggestions } from "./search_suggestions.js";
import { unsearchedMessage, unsearchedText } from "./served_release.js";
import { servicePath } from "./service_paths.js";

const DEFAULT_RESULTS = "24";
const MAX_EXAMPLES = 3;
const MAX_EXAMPLE_LENGTH = 90; // characters
const POLL_MILLISECONDS = 4000;
const SKELETONS = 8;
const state = { clip: null, query: null, cursor: null };
let activeRequest = null;

readAddress();
setUp();
watchHealth();
const domainsLoaded = loadDomains();
if (choice.task) await domainsLoaded; // an earlier release may not search the domain
if ($("q").value) search({ addToHistory: false });

function readAddress() {
  const parameters = new URLSearchParams(location.search);
  $("q").value = parameters.get("q") || "";
  choice.task = parameters.get("task") || "";
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
  setUpDomainChoice(repeatIfSearching);
  $("more-button").addEventListener("click", loadMore);
  $("skip-facets").addEventListener("click", () => $("results").querySelector("button")?.focus());
  for (const popover of [$("filter"), $("options")]) setUpPopover(popover);
  $("answer").addEventListener("click", ({ target }) => {
    if (target.closest("#message button, #headline-note button")) moveFocus($("answer")); // the search replaces it
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
  closeOnLeave(popover, () => popover.removeAttribute("open"));
  popover.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    popover.open = false;
    popover.firstElementChild.focus();
  });
}

async function showDeletion(video) {
  announce($("search-done"), `“${video}” was deleted.`);
  $("search-done").focus(); // the player with the focused button is closed
  await repeat({ addToHistory: false });
  await loadDomains();
}

async function restoreAddress() {
  readAddress();
  await addSelectedDomain();
  drawDomainChoice();
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
  if (addToHistory) history.pushState(null, "", servicePath("/"));
}

// -- domains ---------------------------------------------------------------------------------------------

/** Load the library's state and newest domains. */
async function loadDomains() {
  let status;
  let learned;
  try {
    [status, learned] = await Promise.all([api("/library"), readNewestDomains()]);
  } catch (error) {
    showMessage("The library couldn't be loaded.", error.message);
    return;
  }
  const { pinned, searchable_domains: domains } = status;
  colorFirstDomains(status);
  drawUnsearched(pinned);
  $("options").hidden = !domains;
  $("filter").hidden = !domains;
  if (!domains) {
    showEmptyLibrary(status);
    setTimeout(loadDomains, POLL_MILLISECONDS);
    return;
  }
  if (!isSearching()) $("answer").hidden = true;
  await offerDomains(learned, pinned, domains);
  drawLibrary(status);
  if (!$("q").value) drawExamples(); // their searches would delay the search in the address
}

/** Say that an earlier release is served, and which domains it does not search. */
function drawUnsearched(pinned) {
  const lost = pinned?.unsearchable.domains;
  $("unsearched").hidden = !lost;
  if (lost) $("unsearched").textContent = `An earlier release is served. ${unsearchedText(pinned)}`;
}

function drawLibrary({ searchable_domains: domains, searchable }) {
  $("lead").textContent =
    `${count(searchable, "video")} in ${count(domains, "domain")}, learned one by one and indexed once.`;
  const selectLayer = (name) => {
    selectNewestDomain(name);
    $("q").focus();
  };
  $("layers").replaceChildren(...domainLayers(choice.learned, selectLayer));
  $("layers").hidden = false;
}

function showEmptyLibrary({ active: [active], domains, release_count: releases }) {
  $("lead").textContent = "Text-to-video search that keeps learning and never re-indexes.";
  if (domains) {
    showMessage("No videos can be searched.", "An earlier release without videos is served.");
    return;
  }
  if (active) {
    const link = el("a", { href: servicePath("/admin"), textContent: "Show its progress" });
    const text = "You can search it once it is ready. The library page shows its progress.";
    showMessage(`“${active.name}” is being learned.`, text, link);
    return;
  }
  showMessage(
    releases ? "All videos were deleted." : "Nothing has been learned yet.",
    "Go to the library page to add the first domain: your videos, a folder on the server, or sample videos.",
    el("a", { href: servicePath("/admin"), textContent: "Open the library" }),
  );
}

/** Offer captions of existing videos as example queries. */
async function drawExamples() {
  const found = await Promise.all(choice.learned.slice(-MAX_EXAMPLES).map(findExample));
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
  if (choice.task) query.set("task", choice.task);
  if (selectedMode()) query.set("mode", selectedMode());
  if ($("k").value !== DEFAULT_RESULTS) query.set("k", $("k").value);
  writeFilters(query);
  const address = servicePath(`/?${query}`);
  if (addToHistory && address !== location.pathname + location.search) history.pushState(null, "", address);
  query.set("k", $("k").value);
  document.title = `${$("q").value || "Search"} · Cinestrata`;
  return request(`/search?${query}&facets=true`, {}, (response) => {
    state.query = query.toString();
    countDomains(response.facets, query);
    showSearchResponse(response, widerSearches());
    if (!response.matches) countUnread();
  });
}

/** Say how many of the searched videos are still to be read, unless another search begins meanwhile. */
async function countUnread() {
  const current = activeRequest;
  const task = selectedId();
  const status = await api(task ? `/tasks/${encodeURIComponent(task)}` : "/library").catch(() => ({}));
  const unread = task ? status.reading?.remaining : status.unread;
  if (unread && activeRequest === current) showUnread(unread);
}

/** Create buttons that remove the search's restrictions. */
function widerSearches() {
  const all = choice.task ? button("Search all domains", () => selectDomain("")) : null;
  const unfiltered = () => {
    removeFilters();
    repeatIfSearching();
  };
  const filters = hasFilters() ? button("Remove the filters", unfiltered) : null;
  return [all, filters].filter(Boolean);
}

/** Search with a file. The address stays that of the start page, because it cannot contain a file. */
function searchByClip(file) {
  state.clip = file;
  $("q").value = "";
  document.title = `${file.name} · Cinestrata`;
  const query = new URLSearchParams({ k: $("k").value, captions: 3 });
  if (choice.task) query.set("task", choice.task);
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
  const unsearched = unsearchedSelection();
  if (unsearched !== undefined) {
    showUnsearched(unsearched);
    return;
  }
  const controller = new AbortController();
  activeRequest = controller;
  if (document.activeElement !== $("search-done")) $("search-done").hidden = true;
  showProgress();
  try {
    const sent = api(path, { ...options, signal: controller.signal });
    const response = await sent.finally(() => domainsLoaded); // so that domains have their colors
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
    restoreFocus($("more-button"));
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
  if (error.status === 503 && !choice.learned.length) {
    const link = el("a", { href: servicePath("/admin"), textContent: "Open the library" });
    showMessage("Nothing has been learned yet.", error.message, link);
  } else if (error.status === 409 && choice.task) {
    showUnsearched(choice.task); // the served release has changed since the page was loaded
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
