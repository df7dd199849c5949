// Choose the domain to search: one radio button per domain, with its number of results.

import { api } from "./api_client.js";
import { $, el } from "./dom.js";
import { dot } from "./domain_layers.js";
import { count } from "./formatting.js";
import { isSearched, NOT_SEARCHED } from "./served_release.js";
import { isSearchable } from "./task_states.js";

const MAX_CHIPS = 40; // newest domains that are offered without a search for their name
const MAX_NEWEST = 8; // of them that are shown before a search
const MAX_UNFOLDED = 3; // domains that are shown rather than folded
const TYPING_MILLISECONDS = 250;
const CHIP_STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

/** Name or ID of the selected domain ("" for all), the newest domains (newest last), and the pinned release. */
export const choice = { task: "", learned: [], pinned: null };
let offered = []; // domains
let counts = new Map(); // domain → number of results
let countedSearch = null; // parameters of the counted search without the domain; null if it had a domain
let showsOthers = false;
let typing = null;
let searchAgain = () => {};

/** @param onChange called when another domain was selected */
export function setUpDomainChoice(onChange) {
  searchAgain = onChange;
  $("domains").addEventListener("keydown", moveBetweenChips);
  $("other-domains").addEventListener("click", () => {
    const first = chips().find(({ hidden }) => hidden).dataset.task;
    showsOthers = true;
    drawDomainChoice();
    focusChip(first);
  });
  $("domain-text").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(findDomains, TYPING_MILLISECONDS);
  });
}

/** Read the newest domains that can be searched, newest last. */
export async function readNewestDomains() {
  return (await readDomains({ sort: "-learned", searched: true })).reverse();
}

/**
 * Offer the newest domains and the selected one. A library with more than MAX_CHIPS domains also gets a field to find
 * domains by name.
 */
export async function offerDomains(learned, pinned, total) {
  Object.assign(choice, { learned, pinned });
  offered = learned;
  $("domain-text").hidden = total <= learned.length;
  await addSelectedDomain();
  if (!offered.some(isNamed(choice.task))) choice.task = "";
  drawDomainChoice();
  if ($("domain-text").value) findDomains();
}

/** Read the first searchable domains of `/tasks` with these parameters. */
async function readDomains(parameters) {
  const query = new URLSearchParams({ kind: "domain", state: "ready", limit: MAX_CHIPS, ...parameters });
  return (await api(`/tasks?${query}`)).filter(isSearchable);
}

const isNamed = (nameOrId) => (task) => task.name === nameOrId || task.id === nameOrId;

/** Offer the domain in the address, if it is not offered yet. */
export async function addSelectedDomain() {
  if (!choice.task || offered.some(isNamed(choice.task))) return;
  try {
    const { releases } = await api(`/releases?${new URLSearchParams({ task: choice.task, limit: 1 })}`);
    const task = releases.length && (await api(`/tasks/${encodeURIComponent(releases[0].task_id)}`));
    if (task && isSearchable(task)) {
      choice.task = task.name;
      offered = [task, ...offered];
    }
  } catch {
    // The search reports an unknown name.
  }
}

/** Offer the domains whose name contains the typed text, and the selected one. */
async function findDomains() {
  const text = $("domain-text").value.trim();
  const matching = text ? await readDomains({ text, sort: "name" }).catch(() => []) : choice.learned;
  if (text !== $("domain-text").value.trim()) return; // typed on
  const selected = offered.find(isNamed(choice.task));
  offered = selected && !matching.some(isNamed(selected.id)) ? [selected, ...matching] : matching;
  drawDomainChoice();
}

/** ID of the selected domain; undefined if all are searched. */
export const selectedId = () => offered.find(isNamed(choice.task))?.id;

/** The selected domain's name if the served release does not search it; otherwise undefined. */
export function unsearchedSelection() {
  const selected = offered.find(isNamed(choice.task));
  return selected && !isSearched(selected, choice.pinned) ? selected.name : undefined;
}

/** Select one of the newest domains, even while others are offered. */
export function selectNewestDomain(name) {
  if (!offered.some(isNamed(name))) {
    $("domain-text").value = "";
    offered = choice.learned;
    drawDomainChoice();
  }
  selectDomain(name);
}

export function selectDomain(nameOrId) {
  showSelection(nameOrId);
  searchAgain();
}

function showSelection(nameOrId) {
  choice.task = offered.find(({ id }) => id === nameOrId)?.name ?? nameOrId;
  for (const chip of chips()) {
    const isSelected = chip.dataset.task === choice.task;
    chip.setAttribute("aria-checked", String(isSelected));
    chip.tabIndex = isSelected ? 0 : -1;
  }
}

/** Draw the domains: first those with results, with counts, then the others, of which some are folded. */
export function drawDomainChoice() {
  const focused = document.activeElement?.dataset.task;
  const names = new Map(offered.map((task) => [task.name, isSearched(task, choice.pinned)]));
  if (!$("domain-text").value) {
    for (const { task } of choice.pinned?.unsearchable.first ?? []) names.set(task, false);
    for (const name of counts.keys()) names.set(name, true); // old domains, too
  }
  const counted = [...counts.keys()].filter((name) => names.get(name));
  const others = [...names.keys()].filter((name) => !counted.includes(name));
  const drawn = [...counted, ...others].map((name) => domainChip(name, name, names.get(name)));
  $("domains").replaceChildren(domainChip("", "All domains"), ...drawn);
  showSelection(choice.task);
  fold(others);
  if (focused !== undefined) focusChip(focused);
}

/** Hide domains without results, or older ones before a search, behind a button that counts them. */
function fold(others) {
  const isCounted = countedSearch !== null && counts.size > 0;
  const older = new Set(choice.learned.slice(0, -MAX_NEWEST).map(({ name }) => name));
  const names = others.filter((name) => name !== choice.task && (isCounted || older.has(name)));
  const isFolded = !showsOthers && !$("domain-text").value && names.length > MAX_UNFOLDED;
  $("other-domains").hidden = !isFolded;
  $("other-domains").textContent = count(names.length, "more domain");
  for (const chip of chips()) chip.hidden = isFolded && names.includes(chip.dataset.task);
}

/** Show the number of results per domain; counts over all domains stay while the same search selects one domain. */
export function countDomains(facets, query) {
  const search = new URLSearchParams(query);
  search.delete("task");
  if (choice.task && countedSearch === search.toString()) return;
  const values = facets.find(({ field }) => field === "task")?.values ?? [];
  counts = new Map(values.map(({ value, count: videos }) => [value, videos]));
  countedSearch = choice.task ? null : search.toString();
  showsOthers = false;
  drawDomainChoice();
}

function domainChip(value, text, isOffered = true) {
  const properties = {
    type: "button",
    role: "radio",
    "data-task": value,
    disabled: !isOffered,
    title: isOffered ? "" : `${text}: ${NOT_SEARCHED}`,
  };
  const number = counts.has(value) ? el("small", { textContent: counts.get(value).toLocaleString() }) : null;
  const chip = el("button", properties, value ? dot(value) : null, text, number);
  chip.addEventListener("click", () => selectDomain(value === choice.task ? "" : value));
  return chip;
}

const chips = () => [...$("domains").children];

const focusChip = (name) =>
  chips()
    .find(({ dataset }) => dataset.task === name)
    ?.focus();

function moveBetweenChips(event) {
  const step = CHIP_STEPS[event.key];
  if (!step) return;
  event.preventDefault();
  const enabled = chips().filter(({ disabled, hidden }) => !disabled && !hidden);
  const next = enabled[(enabled.indexOf(document.activeElement) + step + enabled.length) % enabled.length];
  next.focus();
  selectDomain(next.dataset.task);
}
