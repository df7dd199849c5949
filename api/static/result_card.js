// A search result's card: its thumbnail plays under the pointer.

import { drawing, el } from "./dom.js";
import { badge } from "./domain_layers.js";
import { feedbackControls } from "./feedback_controls.js";
import { timeRange } from "./formatting.js";
import { markedText, matchLine, startNearMark, textOrigin } from "./matched_texts.js";
import { videoPath } from "./page_links.js";
import { shortFileName, videoTitle } from "./page_texts.js";
import { playedPart, prefersReducedMotion, thumbnail } from "./video_media.js";
import { openPlayer } from "./video_player.js";

const OPEN_ICON = "M12 3h5v5M17 3l-6 6M8 17H3v-5M3 17l6-6";

export function resultCard(result) {
  return card(result, videoTitle(result), [], null);
}

/** Create a text search result's card, which says why the video was found; a matched caption is its title. */
export function foundCard(result, text, verdicts) {
  const node = describedCard(result);
  const controls = feedbackControls(text, result.video_id, videoTitle(result), verdicts);
  node.querySelector(".meta").append(controls);
  return node;
}

function describedCard(result) {
  const [best] = result.words;
  if (!best) return card(result, videoTitle(result), [], visualMatch(result));
  const shown = startNearMark(best);
  if (best.kind !== "caption")
    return card(result, videoTitle(result), [], why(...matchLine(shown)), best.kind);
  const origin = el("span", { className: "origin", textContent: textOrigin(best) });
  return card(result, best.text, markedText(shown), why(origin));
}

function card(result, title, markedTitle, reason, reasonKind) {
  const className = result.matches === false ? "result distant" : "result";
  const properties = { className, "data-testid": "result", "data-video": result.video_id };
  const hint = result.captions.length ? title : result.uri;
  const link = pageLink(result, markedTitle.length ? markedTitle : [title]);
  return el(
    "li",
    properties,
    previewFrame(result, title),
    el("p", { className: "caption clamped", title: hint }, link),
    reason,
    reasonKind === "name" ? null : fileNameLine(result),
    el("div", { className: "meta" }, badge(result.task)),
  );
}

const why = (...content) => el("p", { className: "why clamped" }, ...content);

/** Explain a result without matching words; below the cut-off, or if the release can't tell, there is no reason. */
const visualMatch = ({ matches }) => (matches ? why("Visual match") : null);

/** Show the file name below a caption; a video without captions has it as its title. */
function fileNameLine({ captions, uri }) {
  if (!captions.length) return null;
  return el("p", { className: "file-name", title: uri, textContent: shortFileName(uri) });
}

/** Link to the video's page, which explains its score for this page's search. */
function pageLink(result, content) {
  const href = videoPath(result.video_id, new URLSearchParams(location.search));
  return el("a", { href }, ...content);
}

function previewFrame(result, title) {
  const frame = el("div", { className: "frame" });
  const play = el("button", { type: "button", className: "play", "aria-label": `Play: ${title}` });
  play.append(thumbnail(result.thumbnail_url));
  const properties = {
    type: "button",
    className: "icon-button open",
    "aria-label": `Open: ${title}`,
    title: "Open",
  };
  const open = el("button", properties, drawing("0 0 20 20", OPEN_ICON));
  open.addEventListener("click", () => openPlayer(result));
  frame.append(play, el("span", { className: "rank", textContent: result.rank }), open);
  const part = playedPart(result);
  if (part) frame.append(playedTime(part));
  setUpPreview(result, frame, play);
  return frame;
}

function playedTime(part) {
  const properties = { className: "time", "data-testid": "time", title: "Best moment" };
  return el("span", { ...properties, textContent: timeRange(part) });
}

/** Play the preview on hover, on a tap and by keyboard; a mouse click opens the player. */
function setUpPreview(result, frame, play) {
  let pointerType = "";
  const start = () => {
    if (!frame.querySelector(".moving")) play.append(movingPreview(result, frame));
    resume(frame);
  };
  const stop = () => {
    frame.querySelector("video")?.pause();
    frame.classList.remove("playing");
  };
  play.addEventListener("pointerenter", (event) => {
    if (event.pointerType === "mouse" && !prefersReducedMotion()) start();
  });
  frame.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") stop();
  });
  play.addEventListener("pointerdown", (event) => {
    pointerType = event.pointerType;
  });
  play.addEventListener("click", (event) => {
    const isMouseClick = event.detail && pointerType === "mouse"; // hovering has started the preview
    if (isMouseClick) openPlayer(result);
    else if (frame.classList.contains("playing")) stop();
    else start();
  });
  play.addEventListener("blur", stop);
}

/** Create a looping video, or an image if the file is an animation; invisible if the browser supports neither. */
function movingPreview(result, frame) {
  const video = el("video", {
    className: "moving",
    src: result.stream_url,
    muted: true,
    loop: true,
    playsInline: true,
    preload: "auto",
  });
  const part = playedPart(result);
  if (part) repeatMoment(video, part, frame);
  video.addEventListener("playing", () => frame.classList.add("playing"));
  const replace = () => {
    const image = el("img", { className: "moving", src: result.stream_url, alt: "" });
    image.addEventListener("load", () => frame.classList.add("playing"));
    video.replaceWith(image);
  };
  video.addEventListener("error", replace, { once: true });
  return video;
}

/** Repeat a moment of a long video while the frame is playing. */
function repeatMoment(video, { start, end }, frame) {
  video.addEventListener("timeupdate", () => {
    if (start - 0.5 < video.currentTime && video.currentTime < end - 0.1) return;
    video.currentTime = start;
    // The browser pauses a video at the end of its fragment.
    if (frame.classList.contains("playing")) video.play().catch(() => {});
  });
}

function resume(frame) {
  const video = frame.querySelector("video");
  if (video) video.play().catch(() => {});
  else if (frame.querySelector("img.moving")?.complete) frame.classList.add("playing");
}
