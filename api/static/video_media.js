// Elements that show a video: player, moments and thumbnail.

import { el } from "./dom.js";
import { timeRange } from "./formatting.js";

const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export const prefersReducedMotion = () => reducedMotion.matches;

/**
 * Create a video; an image if the file is an animation, or a download link if the browser supports neither.
 *
 * @param video object with stream_url, thumbnail_url and captions
 * @param autoplay whether to play at once, unless the user prefers reduced motion
 */
export function videoElement(video, { autoplay } = { autoplay: true }) {
  const node = el("video", {
    src: video.stream_url,
    controls: true,
    loop: true,
    playsInline: true,
    autoplay: autoplay && !prefersReducedMotion(),
    poster: video.thumbnail_url,
  });
  const replace = () => {
    const image = el("img", { src: video.stream_url, alt: video.captions[0] || "" });
    image.addEventListener("error", () => image.replaceWith(downloadNote(video)));
    node.replaceWith(image);
  };
  node.addEventListener("error", replace, { once: true });
  // A browser that knows only the codec of the sound would play a black picture.
  node.addEventListener("loadedmetadata", () => node.videoWidth || replace(), { once: true });
  return node;
}

function downloadNote(video) {
  const link = el("a", { href: video.stream_url, download: "", textContent: "Download it" });
  return el("p", {}, "This browser can't play the file, or the file is no longer on disk. ", link);
}

/** The part of a video that its URL selects; null for the whole video. */
export function playedPart({ stream_url: url }) {
  const found = /#t=([\d.]+),([\d.]+)$/.exec(url);
  return found && { start: Number(found[1]), end: Number(found[2]) };
}

/** Create a button that plays a moment in the screen element. */
export function momentButton(moment, screen) {
  const score = moment.score == null ? null : `Score ${moment.score.toFixed(3)}`;
  const node = el("button", { type: "button", title: score, textContent: timeRange(moment) });
  node.addEventListener("click", () => playFrom(screen, moment.start));
  return node;
}

/** Play the video in the screen element from a time in seconds. */
export function playFrom(screen, start) {
  const video = screen.querySelector("video");
  if (!video) return;
  video.currentTime = start;
  video.play().catch(() => {});
}

/** Create a thumbnail, or a note if there is none. */
export function thumbnail(url, alt = "") {
  const properties = { src: url, alt, loading: "lazy", decoding: "async", draggable: false };
  const image = el("img", properties);
  const note = el("span", { className: "gone", textContent: "no thumbnail" });
  image.addEventListener("error", () => image.replaceWith(note), { once: true });
  return image;
}
