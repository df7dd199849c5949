// The videos of a domain as a grid, in pages.

import { api } from "./api_client.js";
import { $, button, el, setText } from "./dom.js";
import { clock, count } from "./formatting.js";
import { videoPath } from "./page_links.js";
import { confirmVideoDeletion } from "./video_deletion.js";
import { splitName } from "./video_facts.js";
import { thumbnail } from "./video_media.js";

const FIRST_PAGE = 12; // the sections below stay near
const PAGE_SIZE = 24;
let request = null;

/**
 * Show the first page of a domain's videos.
 *
 * @param task the task of the domain
 * @param onChanged called with a text after a video was deleted
 */
export async function showVideos(task, onChanged) {
  request?.abort();
  request = new AbortController();
  $("videos").hidden = false;
  $("more-button").onclick = () => loadPage(task, $("more").dataset.cursor, onChanged);
  await loadPage(task, null, onChanged);
}

async function loadPage(task, cursor, onChanged) {
  const { signal } = request;
  const parameters = new URLSearchParams({ status: "accepted", limit: cursor ? PAGE_SIZE : FIRST_PAGE });
  if (cursor) parameters.set("cursor", cursor);
  $("more-button").disabled = true;
  try {
    const page = await api(`/tasks/${encodeURIComponent(task.id)}/videos?${parameters}`, { signal });
    if (signal.aborted) return;
    const cards = page.videos.map((video) => videoCard(video, onChanged));
    if (cursor) $("video-grid").append(...cards);
    else $("video-grid").replaceChildren(...cards);
    if (cursor) cards[0]?.querySelector("a").focus();
    $("more").dataset.cursor = page.next_cursor ?? "";
    $("more").hidden = !page.next_cursor;
    showCount(task);
  } catch (error) {
    if (error.name !== "AbortError") showFailure(error, () => loadPage(task, cursor, onChanged));
  } finally {
    $("more-button").disabled = false;
  }
}

function showCount(task) {
  const shown = $("video-grid").children.length;
  const all = Math.max(shown, task.counts.accepted);
  setText($("videos-note"), shown < all ? `${shown} of ${count(all, "video")}` : count(all, "video"));
  $("videos-message").hidden = shown > 0;
  if (shown) return;
  const text =
    task.state === "ready"
      ? "Append videos to fill the domain again."
      : "They appear here once they are checked.";
  $("videos-message").replaceChildren(el("strong", { textContent: "The domain has no videos." }), text);
}

function showFailure(error, repeat) {
  const retry = el("p", { className: "act" }, button("Try again", repeat, { className: "" }));
  $("videos-message").replaceChildren(
    el("strong", { textContent: "The videos cannot be loaded." }),
    error.message,
    retry,
  );
  $("videos-message").hidden = false;
}

function videoCard(video, onChanged) {
  const title = video.captions[0] || "No captions";
  const href = videoPath(video.id);
  const frame = el("a", { className: "frame", href, tabIndex: -1, "aria-hidden": "true" });
  frame.append(thumbnail(video.thumbnail_url));
  if (video.duration) frame.append(el("span", { className: "time", textContent: clock(video.duration) }));
  const caption = el("p", { className: "caption", title: video.captions.join("\n") });
  caption.append(el("a", { href, textContent: title }));
  if (!video.captions.length) caption.classList.add("muted");
  const remove = button(
    "Delete",
    () => confirmVideoDeletion(video, (name) => onChanged(`“${name}” was deleted.`)),
    {
      className: "small quiet",
      "aria-label": `Delete ${title}`,
    },
  );
  const further = video.captions.length - 1;
  const facts = [
    splitName(video.effective_split),
    further > 0 && `${further} more ${further === 1 ? "caption" : "captions"}`,
  ];
  return el(
    "li",
    { className: "result", "data-testid": "video", "data-video": video.id },
    frame,
    caption,
    el(
      "div",
      { className: "meta" },
      el("span", { textContent: facts.filter(Boolean).join(" · ") }),
      el("span", { className: "card-actions" }, remove),
    ),
  );
}
