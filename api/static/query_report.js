// How well a domain is found: its worst queries, and the domains of the first results.

import { api } from "./api_client.js";
import { $, el, setText } from "./dom.js";
import { badge } from "./domain_layers.js";
import { count, percent } from "./formatting.js";
import { domainLink, videoPath } from "./page_links.js";
import { videoTitle } from "./page_texts.js";
import { FEW_QUERIES } from "./recall_matrix.js";
import { servicePath } from "./service_paths.js";
import { thumbnail } from "./video_media.js";

const MAX_WORST = 50;
const FIRST_SHOWN = 5;
const MAX_DOMAINS = 8;

// Captions that the release has learned are found more often than new queries.
const CAPTION_KINDS = {
  test: ["held-out caption", "Neither the encoders nor the routing profiles have learned them."],
  val: [
    "validation caption",
    "They weren't learned, but helped to select and calibrate the release. No video is held out.",
  ],
  fold: [
    "cross-fitted caption",
    "Their own videos have the visual score of a release that has not learned them.",
  ],
  appended: [
    "caption of an appended video",
    "They weren't learned, but they route queries to the domain. No video is held out.",
  ],
  train: [
    "training caption",
    "The release has learned them, so it finds their videos more often than new queries would. No video is held out.",
  ],
};

/** Search with a domain's captions, and show how well their videos are found. */
export async function showQueryReport(task) {
  $("queries").hidden = false;
  setText($("queries-note"), "Searching with the domain's captions …");
  $("found").setAttribute("aria-busy", "true");
  try {
    const report = await api(`/tasks/${encodeURIComponent(task.id)}/queries?worst=${MAX_WORST}`);
    drawReport(report);
  } catch (error) {
    setText($("queries-note"), `The domain's captions can't be searched. ${error.message}`);
    setText($("found"), "–");
    setText($("found-note"), "");
    $("measures").hidden = false;
    setText($("confusion-note"), "Not measured.");
  } finally {
    $("found").removeAttribute("aria-busy");
  }
}

function drawReport(report) {
  drawFound(report);
  drawWorst(report);
  drawConfusion(report);
}

const captionCount = ({ queries, split }) => {
  const [one] = CAPTION_KINDS[split];
  const many = split === "appended" ? "captions of appended videos" : `${one}s`;
  return count(queries, one, many);
};

const fewNote = (queries) => (queries < FEW_QUERIES ? " (too few for a reliable share)" : "");

function drawFound(report) {
  if (!report.queries) {
    setText($("found"), "–");
    setText($("found-note"), "No video in the domain has a caption to search with.");
    return;
  }
  const stored = report.measured.global;
  if (!stored) {
    setText($("found"), percent(report.recall_at_1, 0));
    const few = fewNote(report.queries);
    setText($("found-note"), `of ${captionCount(report)}${few}, searched among all videos in the library.`);
    return;
  }
  const all = report.measured.global_all;
  const shown = all ?? stored;
  setText($("found"), percent(shown.r1, 0));
  const among = all ? "among all videos in the library" : "among the held-out videos of all domains";
  const held = all
    ? ` Among the held-out videos of all domains: ${percent(stored.r1, 0)} first, ${percent(stored.r10, 0)} within the first ten.`
    : "";
  setText(
    $("found-note"),
    `of ${count(shown.queries, "held-out caption")}${fewNote(shown.queries)}, ${among}; ${percent(shown.r10, 0)} within the first ten.${held}`,
  );
}

function drawWorst(report) {
  $("worst").hidden = !report.worst.length;
  $("more-queries").hidden = report.worst.length <= FIRST_SHOWN;
  setText($("queries-note"), worstNote(report));
  const rows = report.worst.map((outcome) => queryRow(outcome, report));
  $("worst").replaceChildren(...rows.slice(0, FIRST_SHOWN));
  $("more-queries-button").onclick = () => {
    $("worst").append(...rows.slice(FIRST_SHOWN));
    $("more-queries").hidden = true;
    rows[FIRST_SHOWN].querySelector("a").focus();
  };
}

function worstNote(report) {
  if (!report.queries) return "No video in the domain has a caption to search with.";
  const [, note] = CAPTION_KINDS[report.split];
  const searched = `${captionCount(report)} searched among all videos in the library.`;
  const failed = Math.round(report.queries * (1 - report.recall_at_1));
  if (!failed) return `${searched} Each finds its own video first. ${note}`;
  const training = report.held_out
    ? " Results contain training videos, which the recall matrix leaves out."
    : "";
  return `${searched} ${count(failed, "caption does", "captions do")} not find their video first. ${note}${training}`;
}

function queryRow(outcome, report) {
  const rank = outcome.rank ? `Rank ${outcome.rank}` : `Not among ${report.depth}`;
  const first = outcome.results[0];
  return el(
    "li",
    { "data-testid": "worst-query" },
    el(
      "div",
      { className: "worst-text" },
      el("p", { className: "pill", textContent: rank }),
      el("p", { className: "worst-caption clamped" }, queryLink(outcome)),
      el("p", { className: "muted", textContent: explainOutcome(outcome, first, report) }),
    ),
    videoTile(outcome.video_id, outcome.thumbnail_url, "Described", outcome.caption, "described"),
    el("span", { className: "arrow", "aria-hidden": "true", textContent: "→" }),
    el(
      "ol",
      { className: "instead" },
      ...outcome.results.map((result) => el("li", {}, resultTile(result, outcome))),
    ),
  );
}

function queryLink({ caption }) {
  return el("a", { href: servicePath(`/?${new URLSearchParams({ q: caption })}`), textContent: caption });
}

/** Give the most likely reason why another video comes first. */
function explainOutcome({ caption, domain_weight: weight }, first, { task_id: own }) {
  if (!first) return "The search has no results.";
  if (first.captions.includes(caption)) return "The first result has the same caption.";
  if (first.task_id === own) return "Another video in the domain is nearer.";
  return `The first result is in ${first.task}; the routing weight of this domain is ${percent(weight, 0)}.`;
}

function resultTile(result, { caption }) {
  const title = videoTitle(result);
  const label = `${result.rank}. ${result.task}`;
  const href = videoPath(result.video_id, new URLSearchParams({ q: caption }));
  return tile(
    href,
    result.thumbnail_url,
    title,
    el("span", {}, `${result.rank} `, badge(result.task)),
    label,
  );
}

function videoTile(id, url, label, caption, className) {
  const href = videoPath(id, new URLSearchParams({ q: caption }));
  return tile(href, url, label, label, label, className);
}

function tile(href, url, title, text, label, className = "") {
  const frame = el("span", { className: "frame" }, thumbnail(url));
  return el(
    "a",
    { href, className: `tile ${className}`.trim(), title, "aria-label": `${label}: ${title}` },
    frame,
    el("span", { className: "tile-text" }, text),
  );
}

function drawConfusion(report) {
  $("measures").hidden = false;
  if (!report.queries) {
    setText($("confusion-note"), "Not measured: no video in the domain has a caption to search with.");
    return;
  }
  setText($("confusion-note"), `Domain of the first result, for ${captionCount(report)} of this domain.`);
  const shown = report.first_results.slice(0, MAX_DOMAINS);
  const rest = report.first_results.slice(MAX_DOMAINS);
  const bars = shown.map((share) => shareBar(share, share.task_id === report.task_id));
  const queries = rest.reduce((sum, share) => sum + share.queries, 0);
  if (rest.length)
    bars.push(
      el("li", { textContent: `${count(rest.length, "other domain")}: ${count(queries, "caption")}` }),
    );
  $("confusion").replaceChildren(...bars);
}

function shareBar({ task, task_id: id, share, queries }, isOwn) {
  const fill = el("i");
  fill.style.width = `${100 * share}%`;
  return el(
    "li",
    { "data-testid": "confusion" },
    el(
      "span",
      { className: "share-name" },
      isOwn ? badge(task) : domainLink(task, id),
      isOwn ? el("small", { textContent: "this domain" }) : null,
    ),
    el("span", { className: isOwn ? "share-bar own" : "share-bar", "aria-hidden": "true" }, fill),
    el("span", { className: "share-value", textContent: `${percent(share, 0)} (${queries})` }),
  );
}
