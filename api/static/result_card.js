// One found video: a picture that moves under the pointer, and a player for a closer look.

import { askToDelete } from "./delete_dialog.js";
import { $, button, closable, drawing, el } from "./dom.js";
import { api } from "./api_client.js";
import { bytes, span } from "./formatting.js";
import { badge } from "./domain_layers.js";

const calm = matchMedia("(prefers-reduced-motion: reduce)");

export function card(result) {
  const title = result.captions[0] || result.video_id;
  const frame = el("div", { className: "frame" });
  const play = el("button", { type: "button", className: "play", "aria-label": `Play: ${title}` }, picture(result, frame));
  const open = el("button", { type: "button", className: "icon-button open", "aria-label": `Open: ${title}`, title: "Open" }, drawing("0 0 20 20", "M12 3h5v5M17 3l-6 6M8 17H3v-5M3 17l6-6"));
  frame.append(play, el("span", { className: "rank", textContent: result.rank }), open);
  if (result.moments.length) frame.append(el("span", { className: "time", "data-testid": "time", title: "The moment that fits best", textContent: span(result.moments[0]) }));

  const start = () => { if (!frame.querySelector(".moving")) play.append(moving(result, frame)); resume(frame); };
  const stop = () => { frame.querySelector("video")?.pause(); frame.classList.remove("playing"); };
  play.addEventListener("pointerenter", (event) => { if (event.pointerType === "mouse" && !calm.matches) start(); });
  frame.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") stop(); });
  let pointer = "";
  play.addEventListener("pointerdown", (event) => { pointer = event.pointerType; });
  play.addEventListener("click", (event) => {
    if (event.detail && pointer === "mouse") show(result); // under a mouse it moves already
    else if (frame.classList.contains("playing")) stop();
    else start();
  });
  play.addEventListener("blur", stop);
  open.addEventListener("click", () => show(result));

  return el("li", { className: "result", "data-testid": "result", "data-video": result.video_id }, frame,
    el("p", { className: "caption", textContent: title, title }),
    el("div", { className: "meta" }, badge(result.task),
      el("span", { className: "sure", title: certainty(result) }, likelihood(result.confidence), result.score.toFixed(3))));
}

/** A quiet word for the probability that a result is right; nothing where it is not known. */
function likelihood(confidence) {
  if (confidence == null) return null;
  const word = confidence >= 0.5 ? "likely" : confidence >= 0.1 ? "possible" : "unlikely";
  return el("span", { className: `likelihood ${word}`, textContent: word });
}

function certainty({ confidence, score }) {
  return confidence == null ? "Similarity, raised by what routing says of the domain" : `Right with a probability of ${(100 * confidence).toFixed(confidence < 0.1 ? 1 : 0)} %; score ${score.toFixed(3)}`;
}

function picture(result, frame) {
  const image = el("img", { src: result.thumbnail_url, alt: "", loading: "lazy", decoding: "async", draggable: false });
  image.addEventListener("error", () => { image.remove(); frame.append(el("span", { className: "gone", textContent: "no picture" })); }, { once: true });
  return image;
}

/** The file in motion: a video, or a picture where the file is an animation, or nothing this browser can show. */
function moving(result, frame) {
  const video = el("video", { className: "moving", src: result.stream_url, muted: true, loop: true, playsInline: true, preload: "auto" });
  if (result.moments.length) again(video, result.moments[0], frame);
  video.addEventListener("playing", () => frame.classList.add("playing"));
  video.addEventListener("error", () => {
    const image = el("img", { className: "moving", src: result.stream_url, alt: "" });
    image.addEventListener("load", () => frame.classList.add("playing"));
    video.replaceWith(image);
  }, { once: true });
  return video;
}

/** Show a moment over and over, for as long as the frame is playing. */
function again(video, { start, end }, frame) {
  video.addEventListener("timeupdate", () => {
    if (start - 0.5 < video.currentTime && video.currentTime < end - 0.1) return;
    video.currentTime = start;
    if (frame.classList.contains("playing")) video.play().catch(() => {}); // a browser pauses where the address ends
  });
}

function resume(frame) {
  const video = frame.querySelector("video");
  if (video) video.play().catch(() => {});
  else if (frame.querySelector("img.moving")?.complete) frame.classList.add("playing");
}

// -- a closer look ---------------------------------------------------------------------------------------

if ($("player")) closable($("player"), () => $("screen").replaceChildren());

async function show(result) {
  const video = el("video", { src: result.stream_url, controls: true, loop: true, playsInline: true, autoplay: !calm.matches, poster: result.thumbnail_url });
  video.addEventListener("error", () => {
    const image = el("img", { src: result.stream_url, alt: result.captions[0] || "" });
    image.addEventListener("error", () => image.replaceWith(el("p", {}, "This browser cannot play the file, or it is gone from disk. ", el("a", { href: result.stream_url, download: "", textContent: "Download it" }))));
    video.replaceWith(image);
  }, { once: true });
  $("screen").replaceChildren(video);
  $("player-title").textContent = result.captions[0] || result.video_id;
  $("player-captions").replaceChildren(...result.captions.slice(1).map((caption) => el("li", { textContent: caption })));
  $("player-facts").replaceChildren(pair("Domain", badge(result.task)), pair("Rank and score", `${result.rank} · ${result.score.toFixed(3)}`),
    ...(result.confidence == null ? [] : [pair("Probably right", `${(100 * result.confidence).toFixed(1)} %`)]),
    ...(result.moments.length ? [pair("Best moments", el("span", { className: "moments" }, ...result.moments.map((moment) => jump(moment))))] : []));
  $("player-act").replaceChildren(button("Delete this video", () => ask(result)));
  $("player").showModal();
  const known = await api(`/videos/${encodeURIComponent(result.video_id)}`).catch(() => null);
  if (!known) return;
  const facts = [
    ["Length", known.duration && `${known.duration.toFixed(1)} s, ${known.frames ?? "?"} frames`],
    ["Picture", known.width && `${known.width} × ${known.height}, ${known.codec}`],
    ["File", known.bytes && bytes(known.bytes)],
    ["Split", known.effective_split],
    ["Id", known.id],
    ...Object.entries(known.metadata).slice(0, 12).map(([key, value]) => [key, typeof value === "object" ? JSON.stringify(value) : String(value)]),
  ];
  $("player-facts").append(...facts.filter(([, value]) => value).map(([name, value]) => pair(name, value)));
}

/** Whoever shows results hears of it by the event `videodeleted`. */
function ask({ video_id: id, captions }) {
  askToDelete({
    title: "Delete this video?",
    name: id,
    path: `/videos/${encodeURIComponent(id)}`,
    lost: [
      captions.length ? `The video “${captions[0]}”, its captions, metadata and preview. No search finds it any more.` : "The video, its metadata and preview. No search finds it any more.",
      "Its file, where it was uploaded.",
    ],
    stays: [
      "Your own file below the media root.",
      "What the encoders learned from it, and what was measured with it.",
      "Its vector takes room on disk until the domain is compacted; nobody can reach it.",
      "What snapshots hold that were made before.",
    ],
    done: () => {
      $("player").close();
      document.dispatchEvent(new CustomEvent("videodeleted", { detail: captions[0] || id }));
    },
  });
}

function jump(moment) {
  const node = el("button", { type: "button", title: `Score ${moment.score.toFixed(3)}`, textContent: span(moment) });
  node.addEventListener("click", () => {
    const video = $("screen").querySelector("video");
    if (!video) return;
    video.currentTime = moment.start;
    video.play().catch(() => {});
  });
  return node;
}

function pair(name, value) {
  return el("div", {}, el("dt", { textContent: name }), el("dd", {}, value));
}
