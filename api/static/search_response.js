// Display of search responses: routing, timing, results and messages.

import { $, el } from "./dom.js";
import { dot, stackBar } from "./domain_layers.js";
import { count, roundPercent, shortId } from "./formatting.js";
import { resultCard } from "./result_card.js";
import { filterValue, hasFilters } from "./search_filters.js";

const LOW_CONFIDENCE = 0.3; // of responses that do not tell whether the library has a match
const MIN_SHOWN_WEIGHT = 0.005;
const MAX_SHOWN_DOMAINS = 8;

export function showSearchResponse(response) {
  $("facts").hidden = false;
  $("bar").hidden = false;
  const shares = response.routing.map(({ task, weight }) => ({ name: task, share: weight }));
  stackBar($("bar"), "Share of each domain in the routing of this query", shares);
  $("legend").replaceChildren(...routingLegend(response.routing));
  showTiming(response, ["encode", "route", "search", "merge"]);
  $("timing").append(` · ${response.mode} queries`);
  showResults(response);
}

export function showClipResponse(response, fileName) {
  $("facts").hidden = false;
  $("bar").hidden = true; // routing needs a text
  const captions = response.captions.map((caption) => el("li", {}, dot(caption.task), caption.text));
  $("legend").replaceChildren(el("li", { textContent: `Similar to ${fileName}` }), ...captions);
  showTiming(response, ["decode", "encode", "search"]);
  showResults(response);
}

export function appendResults(response) {
  const cards = resultCards(response);
  $("results").append(...cards);
  cards
    .find((card) => card.matches(".result"))
    ?.querySelector("button")
    .focus();
}

export function showMessage(title, text, ...actions) {
  $("answer").hidden = false;
  const paragraph = actions.length ? [el("p", { className: "act" }, ...actions)] : [];
  $("message").replaceChildren(el("strong", { textContent: title }), text, ...paragraph);
  $("message").hidden = false;
}

function routingLegend(routing) {
  const shown = routing.filter(({ weight }) => weight >= MIN_SHOWN_WEIGHT).slice(0, MAX_SHOWN_DOMAINS);
  const items = shown.map(({ task, weight }) =>
    el("li", {}, dot(task), `${task} ${Math.round(100 * weight)} %`),
  );
  const rest = routing.length - shown.length;
  if (!rest) return items;
  const text = items.length ? `and ${count(rest, "other")}` : count(rest, "domain");
  return [...items, el("li", { textContent: text })];
}

function showTiming({ results, release, timing_ms: timing }, stages) {
  const parts = stages.map((name) => `${name} ${timing[name].toFixed(1)}`).join(" · ");
  const text = `${count(results.length, "result")} in ${timing.total.toFixed(1)} ms (${parts}) · release `;
  $("timing").replaceChildren(text, el("code", { textContent: shortId(release), title: release || "" }));
}

function showResults(response) {
  $("results").replaceChildren();
  $("results").append(...resultCards(response));
  const explanation = explainResults(response);
  if (explanation) showMessage(...explanation);
  else $("message").hidden = true;
}

/** Cards of results; a heading precedes the first one that does not belong to the answer. */
function resultCards({ results, matches }) {
  const cards = results.map(resultCard);
  const isFirstEnd = matches && !$("results").querySelector(".answer-end");
  const end = isFirstEnd ? results.findIndex((result) => !result.matches) : -1;
  if (end >= 0)
    cards.splice(end, 0, el("li", { className: "answer-end", textContent: "Less similar videos" }));
  return cards;
}

/** Title and text of a message about incomplete or doubtful results, or null. */
function explainResults(response) {
  const explanation = explainOutcome(response);
  if (!response.metadata_as_of) return explanation;
  const time = new Date(response.metadata_as_of).toLocaleString(undefined, {
    dateStyle: "medium",
    timeStyle: "medium",
  });
  const note = `The catalog database cannot be reached: captions are those of ${time}, and later videos are missing.`;
  if (!explanation) return ["The results come from a copy of the catalog.", note];
  const [title, text, ...actions] = explanation;
  return [title, `${text} ${note}`, ...actions];
}

function explainOutcome({ results, degraded, confidence, matches }) {
  const faults = Object.entries(degraded);
  if (faults.length) {
    const names = faults.map(([name]) => name).join(", ");
    return [`${names} could not be searched.`, `${faults[0][1].replace(/\.$/, "")}.`];
  }
  if (!results.length) return explainNoResults(confidence);
  const hasMatch = matches ?? (confidence == null || confidence >= LOW_CONFIDENCE);
  if (hasMatch) return null;
  return ["No video matches this text.", `${matchNote(confidence)} The most similar videos are shown.`];
}

function explainNoResults(confidence) {
  const minimum = filterValue("min_confidence");
  if (minimum && !filterValue("min_score") && confidence != null) {
    const text = `${matchNote(confidence)} No single result reaches ${minimum}: lower the minimum, or use other words.`;
    return ["No result has this confidence.", text];
  }
  if (hasFilters()) return ["No video was found.", "Relax the filters, or use other words."];
  return ["No video was found.", "Use other words, or search all domains."];
}

const matchNote = (confidence) =>
  `The library contains a matching video with a probability of ${roundPercent(confidence)}.`;
