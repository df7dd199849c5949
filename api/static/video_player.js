// The player: a dialog with a video, its captions, moments and metadata.

import { api } from "./api_client.js";
import { openDeleteDialog } from "./delete_dialog.js";
import { $, button, el, makeClosable } from "./dom.js";
import { badge } from "./domain_layers.js";
import { bytes, percent, timeRange } from "./formatting.js";

const MAX_METADATA_FIELDS = 12;
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

if ($("player")) makeClosable($("player"), () => $("screen").replaceChildren());

export const prefersReducedMotion = () => reducedMotion.matches;

export async function openPlayer(result) {
  $("screen").replaceChildren(videoElement(result));
  $("player-title").textContent = result.captions[0] || result.video_id;
  const captions = result.captions.slice(1).map((caption) => el("li", { textContent: caption }));
  $("player-captions").replaceChildren(...captions);
  $("player-facts").replaceChildren(...resultFacts(result));
  $("player-act").replaceChildren(button("Delete this video", () => confirmDeletion(result)));
  $("player").showModal();
  const video = await api(`/videos/${encodeURIComponent(result.video_id)}`).catch(() => null);
  if (video) $("player-facts").append(...videoFacts(video));
}

/** The video, an image if the file is an animation, or a download link if the browser supports neither. */
function videoElement(result) {
  const video = el("video", {
    src: result.stream_url,
    controls: true,
    loop: true,
    playsInline: true,
    autoplay: !prefersReducedMotion(),
    poster: result.thumbnail_url,
  });
  const replace = () => {
    const image = el("img", { src: result.stream_url, alt: result.captions[0] || "" });
    image.addEventListener("error", () => image.replaceWith(downloadNote(result)));
    video.replaceWith(image);
  };
  video.addEventListener("error", replace, { once: true });
  return video;
}

function downloadNote(result) {
  const link = el("a", { href: result.stream_url, download: "", textContent: "Download it" });
  return el("p", {}, "This browser cannot play the file, or the file is no longer on disk. ", link);
}

function resultFacts(result) {
  const facts = [
    fact("Domain", badge(result.task)),
    fact("Rank and score", `${result.rank} · ${result.score.toFixed(3)}`),
  ];
  if (result.confidence != null) facts.push(fact("Confidence", percent(result.confidence)));
  if (result.moments.length) {
    facts.push(
      fact("Best moments", el("span", { className: "moments" }, ...result.moments.map(momentButton))),
    );
  }
  return facts;
}

function videoFacts(video) {
  const metadata = Object.entries(video.metadata).slice(0, MAX_METADATA_FIELDS);
  const values = [
    ["Length", video.duration && `${video.duration.toFixed(1)} s, ${video.frames ?? "?"} frames`],
    ["Picture", video.width && `${video.width} × ${video.height}, ${video.codec}`],
    ["File", video.bytes && bytes(video.bytes)],
    ["Split", video.effective_split],
    ["Id", video.id],
    ...metadata.map(([name, value]) => [
      name,
      typeof value === "object" ? JSON.stringify(value) : String(value),
    ]),
  ];
  return values.filter(([, value]) => value).map(([name, value]) => fact(name, value));
}

const fact = (name, value) => el("div", {}, el("dt", { textContent: name }), el("dd", {}, value));

function momentButton(moment) {
  const properties = {
    type: "button",
    title: `Score ${moment.score.toFixed(3)}`,
    textContent: timeRange(moment),
  };
  const node = el("button", properties);
  node.addEventListener("click", () => {
    const video = $("screen").querySelector("video");
    if (!video) return;
    video.currentTime = moment.start;
    video.play().catch(() => {});
  });
  return node;
}

/** Delete after confirmation; the event `videodeleted` tells the page to refresh its results. */
function confirmDeletion({ video_id: id, captions }) {
  const video = captions.length ? `The video “${captions[0]}” with its captions` : "The video with its";
  openDeleteDialog({
    title: "Delete this video?",
    name: id,
    path: `/videos/${encodeURIComponent(id)}`,
    lost: [
      `${video}${captions.length ? "," : ""} metadata and thumbnail. No search finds it any more.`,
      "Its file, if it was uploaded.",
    ],
    kept: [
      "Your own file below the media root.",
      "Its effect on the encoders, and evaluations that used it.",
      "Its vector uses disk space until the domain is compacted; searches cannot reach it.",
      "Earlier backups.",
    ],
    onDeleted: () => {
      $("player").close();
      document.dispatchEvent(new CustomEvent("videodeleted", { detail: captions[0] || id }));
    },
  });
}
