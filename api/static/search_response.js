// Show search responses: headline, correction, results, messages and timing.

import { $, el } from "./dom.js";
import { dot } from "./domain_layers.js";
import { showFacets } from "./facet_filters.js";
import { readVerdicts } from "./feedback_controls.js";
import { count, shortId } from "./formatting.js";
import { foundCard, resultCard } from "./result_card.js";
import { hasFilters } from "./search_filters.js";
import { servicePath } from "./service_paths.js";

const UNSURE_CONFIDENCE = 0.3; // without matches, the first result may still be right above this; as in the CLI

/**
 * Show a text search's response.
 *
 * @param widerSearches controls that search without this search's restrictions
 */
export function showSearchResponse(response, widerSearches) {
  showHeadline(headlineOf(response), ...noteOf(response, widerSearches));
  showCorrection(response);
  $("clip-captions").hidden = true;
  showFacets(response.facets);
  showTiming(response, ["encode", "route", "search", "merge"], ` · ${response.mode} queries`);
  showResults(response, foundCards(response));
}

export function showClipResponse(response, fileName) {
  showHeadline(response.results.length ? `Similar to ${fileName}` : "");
  $("corrected").hidden = true;
  $("clip-captions").hidden = false;
  $("clip-captions").replaceChildren(
    ...response.captions.map((caption) => el("li", {}, dot(caption.task), caption.text)),
  );
  showFacets([]);
  showTiming(response, ["decode", "encode", "search"]);
  showResults(response, resultCard);
}

/** Append a page of results, and focus its first one. */
export function appendResults(response) {
  const [first] = addResults(response, foundCards(response));
  first?.querySelector("button").focus();
}

export function showMessage(title, text, ...actions) {
  $("answer").hidden = false;
  const paragraph = actions.length ? [el("p", { className: "act" }, ...actions)] : [];
  $("message").replaceChildren(el("strong", { textContent: title }), text, ...paragraph);
  $("message").hidden = false;
}

/** Word the headline; empty if the release can't tell what matches, or thresholds leave no result. */
function headlineOf({ matches, matching, confidence, results }) {
  const isUnsure = results.length && confidence >= UNSURE_CONFIDENCE;
  if (matches === false)
    return isUnsure ? "No sure match; the first result may be right" : "No video matches this query";
  if (matching === null || !results.length) return "";
  return `${count(matching, "video")} ${matching === 1 ? "matches" : "match"}`;
}

/** Advise below the headline what to do if no video matches, or say why the release can't tell what matches. */
function noteOf({ matches, results }, widerSearches) {
  if (matches === false) {
    const advice = "Check the spelling, or describe what the video shows in other words.";
    return [advice, ...widerSearches.flatMap((control) => [" ", control])];
  }
  const hasChosenMode = new URLSearchParams(location.search).has("mode"); // modes other than the default can't tell
  if (matches !== null || !results.length || hasChosenMode) return [];
  return [
    "The library has too few captions to tell which videos match. Add captions to more videos: 30 are enough.",
  ];
}

function showHeadline(text, ...note) {
  $("facts").hidden = false;
  $("headline").hidden = !text;
  $("headline").textContent = text;
  $("headline-note").hidden = !note.length;
  $("headline-note").replaceChildren(...note);
}

/** Add to the note below the headline that some videos are still to be read. */
export function showUnread(videos) {
  const text = `Words that are said or shown in ${count(videos, "video")} aren't found yet: they are still to be read.`;
  $("headline-note").append(" ", text);
  $("headline-note").hidden = false;
}

/** Say which text was searched instead of the query, and link to a search for the words as typed. */
function showCorrection({ query, corrected }) {
  $("corrected").hidden = corrected === null;
  if (corrected === null) return;
  const typed = query.trim().split(/\s+/);
  const searched = corrected.trim().split(/\s+/);
  const isComparable = typed.length === searched.length;
  const unknown = isComparable ? typed.filter((word, position) => word !== searched[position]) : typed;
  const asTyped = typed.map((word) => (unknown.includes(word) ? `"${bareWord(word)}"` : word)).join(" ");
  const parameters = new URLSearchParams(location.search);
  parameters.set("q", asTyped);
  $("corrected").replaceChildren(
    "Showing results for ",
    el("strong", { textContent: corrected }),
    `. No video has the ${unknown.length === 1 ? "word" : "words"} ${unknown.map(bareWord).join(", ")}. `,
    el("a", { href: servicePath(`/?${parameters}`), textContent: `Search for ${asTyped}` }),
  );
}

/** Strip punctuation around a word, such as quotation marks. */
const bareWord = (word) => word.replace(/^[^\p{L}\p{M}\p{N}]+|[^\p{L}\p{M}\p{N}]+$/gu, "");

function showTiming({ results, release, timing_ms: timing }, stages, note = "") {
  const parts = stages.map((name) => `${name} ${timing[name].toFixed(1)}`).join(" · ");
  const text = `${count(results.length, "result")} in ${timing.total.toFixed(1)} ms (${parts}) · release `;
  const id = el("code", { textContent: shortId(release), title: release || "" });
  $("timing").replaceChildren(text, id, note);
  $("timing").hidden = false;
}

function showResults(response, createCard) {
  $("results").replaceChildren();
  addResults(response, createCard);
  const explanation = explainResults(response);
  if (explanation) showMessage(...explanation);
  else $("message").hidden = true;
}

function foundCards({ results, query, corrected }) {
  const text = corrected ?? query;
  const verdicts = results.length ? readVerdicts(text) : null;
  return (result) => foundCard(result, text, verdicts);
}

/** Add cards: matches above a heading, other videos below it. Returns the cards in page order. */
function addResults({ results, matches }, createCard) {
  const others = results.filter((result) => result.matches === false).map(createCard);
  const matching = results.filter((result) => result.matches !== false).map(createCard);
  let heading = $("results").querySelector(".answer-end");
  if (others.length && !heading) {
    const text = matches === false ? "Most similar videos" : "Other videos";
    heading = el("li", { className: "answer-end" }, el("h3", { textContent: text }));
    $("results").append(heading);
  }
  if (heading) heading.before(...matching);
  else $("results").append(...matching);
  $("results").append(...others);
  return [...matching, ...others];
}

/** Word the title and text of a message about incomplete or missing results; null if there is none. */
function explainResults(response) {
  const explanation = explainOutcome(response);
  if (!response.metadata_as_of) return explanation;
  const time = new Date(response.metadata_as_of).toLocaleString(undefined, {
    dateStyle: "medium",
    timeStyle: "medium",
  });
  const note = `The catalog database can't be reached: captions are from ${time}, and later videos are missing.`;
  if (!explanation) return ["The results come from a copy of the catalog.", note];
  const [title, text] = explanation;
  return [title, `${text} ${note}`];
}

function explainOutcome({ results, degraded }) {
  const faults = Object.entries(degraded);
  if (faults.length) {
    const names = faults.map(([name]) => name).join(", ");
    return [`${names} couldn't be searched.`, `${faults[0][1].replace(/\.$/, "")}.`];
  }
  if (results.length) return null;
  if (hasFilters()) return ["No videos found.", "Relax the filters, or use other words."];
  return ["No videos found.", "Use other words, or search all domains."];
}
