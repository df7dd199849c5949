// The parts of a video's score for the search in the address.

import { api } from "./api_client.js";
import { $, el } from "./dom.js";
import { dot, stackBar } from "./domain_layers.js";
import { percent, roundPercent, timeRange } from "./formatting.js";
import { matchList } from "./matched_texts.js";
import { servicePath } from "./service_paths.js";

const MIN_SHOWN_WEIGHT = 0.005;
const NO_EVIDENCE = 0.05; // log-odds

/** Explain a video's score for a search; returns the explanation, or null if there is none. */
export async function showExplanation(video, search) {
  $("why").hidden = false;
  const back = el("a", { href: servicePath(`/?${search}`), textContent: "Show the results" });
  $("why-query").replaceChildren(el("q", { textContent: search.get("q") }), " ", back);
  try {
    const explanation = await api(`/videos/${encodeURIComponent(video.id)}/explanation?${search}`);
    draw(explanation);
    return explanation;
  } catch (error) {
    $("why-body").replaceChildren(
      el("p", { className: "muted", textContent: `The score couldn't be explained. ${error.message}` }),
    );
    return null;
  }
}

function draw(explanation) {
  const parts = [
    part("Rank", explanation.rank ?? `over ${explanation.depth}`, rankNote(explanation)),
    part("Score", signed(explanation.score), "Log-odds of the video: the sum of the next three parts."),
    part("Visual", signed(explanation.visual_term), visualNote(explanation)),
    part("Routing", signed(explanation.routing_term), routingNote(explanation)),
    part("Words", signed(explanation.words_term), wordsNote(explanation)),
    part(
      "Confidence",
      explanation.confidence == null ? "–" : roundPercent(explanation.confidence),
      confidenceNote(explanation),
    ),
  ];
  $("why-body").replaceChildren(
    el("dl", { className: "score-parts" }, ...parts),
    ...texts(explanation),
    ...routing(explanation),
    ...words(explanation),
  );
}

const part = (name, value, note) =>
  el(
    "div",
    {},
    el("dt", { textContent: name }),
    el("dd", { textContent: String(value) }),
    el("dd", { className: "muted", textContent: note }),
  );

const signed = (value) => (Math.abs(value) < 0.0005 ? "0.000" : value.toFixed(3).replace("-", "−"));

function rankNote({ rank, depth }) {
  return rank
    ? "Position among the results of this search."
    : `The video is not among the first ${depth} results.`;
}

function visualNote({ cosine, video_cosine: whole, moments, ...explanation }) {
  const { visual_weight: weight, neutral_cosine: neutral, is_fitted } = explanation;
  const [best] = moments;
  const nearest = best && whole < cosine ? `the moment ${timeRange(best)}` : "the video";
  const source = is_fitted ? "fitted to this release" : "defaults";
  return (
    `${weight.toFixed(1)} × (${signed(cosine)} − ${signed(neutral)}): the cosine of the query and ${nearest}, ` +
    `minus the neutral cosine. The weight and the neutral cosine are ${source}.`
  );
}

const routingNote = ({ task }) => `Evidence for ${task}, compared with the likeliest domain.`;

function wordsNote({ words_term: evidence, texts: found }) {
  if (!evidence && !found.length) return "No text of the video supports or contradicts it.";
  return "Evidence of the words in its texts.";
}

function confidenceNote({ confidence, matches, rank }) {
  if (confidence == null)
    return rank ? "The release is not calibrated for this search." : "Only for results of the search.";
  if (matches === false)
    return "Probability that the video is right for the query; too low to count as a match.";
  return "Probability that the video is right for the query.";
}

function texts({ texts: found }) {
  if (!found.length) return [];
  return [el("h3", { textContent: "Words of the query in the texts of the video" }), matchList(found)];
}

function routing({ routing: weights, words: found }) {
  const bar = el("div", { className: "stack-bar", role: "img" });
  stackBar(
    bar,
    "Each domain's share in the routing of this query",
    weights.map(({ task, weight }) => ({ name: task, share: weight })),
  );
  const shown = weights.filter(({ weight }) => weight >= MIN_SHOWN_WEIGHT);
  const items = shown.map(({ task, weight }) => el("li", {}, dot(task), `${task} ${percent(weight, 0)}`));
  const hasKnownWords = found.some(({ domains }) => domains > 0);
  const note =
    "No searched domain has any of these words in its captions: the weights come from parts of words, or are equal.";
  return [
    el("h3", { textContent: hasKnownWords ? "Domains that the query is routed to" : "Routing of the query" }),
    hasKnownWords ? null : el("p", { className: "muted", textContent: note }),
    bar,
    el("ul", { className: "legend" }, ...items),
  ].filter(Boolean);
}

function words({ words: found, task }) {
  if (!found.length) return [];
  const items = found.map(({ text, known, in_texts: isInTexts, domains, evidence }) => {
    const className = wordKind(known || isInTexts, evidence);
    const title = known
      ? `Evidence for ${task}: ${evidence.toFixed(2)} log-odds above the mean of the domains`
      : `No caption of ${task} contains it`;
    const note = known ? signedLogOdds(evidence) : unknownNote(isInTexts, domains);
    return el("li", { className, title }, text, el("small", { textContent: note }));
  });
  return [
    el("h3", { textContent: `Words of the query in the captions of ${task}` }),
    el("ul", { className: "words" }, ...items),
    el("p", {
      className: "muted",
      textContent: "Log-odds, relative to the mean of the searched domains.",
    }),
  ];
}

function wordKind(isKnown, evidence) {
  if (!isKnown) return "unknown";
  return evidence > NO_EVIDENCE ? "points-here" : "";
}

function unknownNote(isInTexts, domains) {
  if (isInTexts) return "in other texts of the video";
  return domains ? "only in other domains" : "unknown";
}

const signedLogOdds = (value) => `${value > 0 ? "+" : "−"}${Math.abs(value).toFixed(2)}`;
