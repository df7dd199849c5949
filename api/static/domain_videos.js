// A domain's videos as a grid, in pages, with a filter.

import { api } from "./api_client.js";
import { confirmVideoDeletion } from "./delete_dialog.js";
import { $, button, el, replaceRows, restoreFocus, setText } from "./dom.js";
import { clock, count } from "./formatting.js";
import { videoPath } from "./page_links.js";
import { videoTitle } from "./page_texts.js";
import { isPermitted } from "./permissions.js";
import { openEditor } from "./video_editor.js";
import { splitName } from "./video_facts.js";
import { thumbnail } from "./video_media.js";

const FIRST_PAGE = 12; // small, so that the sections below stay near
const PAGE_SIZE = 24;
const TYPING_MILLISECONDS = 300;
const view = { task: null, actions: null, request: new AbortController() };
let typing = null;

if ($("video-filter")) setUpFilter();

/**
 * Show the first page of a domain's videos.
 *
 * @param task the task of the domain
 * @param actions onDeleted and onEdited are called with a message after a change, onFailed with an error
 */
export async function showVideos(task, actions) {
  Object.assign(view, { task, actions });
  $("videos").hidden = false;
  await loadPage();
}

function setUpFilter() {
  $("video-filter").addEventListener("submit", (event) => {
    event.preventDefault();
    loadPage();
  });
  $("video-text").addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(loadPage, TYPING_MILLISECONDS);
  });
  $("video-split").addEventListener("change", () => loadPage());
  $("more-button").addEventListener("click", () => loadPage($("more").dataset.cursor));
}

const isFiltered = () => Boolean($("video-text").value.trim() || $("video-split").value);

function requestPath(cursor) {
  const parameters = new URLSearchParams({
    task: view.task.id,
    status: "accepted",
    limit: cursor ? PAGE_SIZE : FIRST_PAGE,
  });
  if (cursor) parameters.set("cursor", cursor);
  if ($("video-text").value.trim()) parameters.set("text", $("video-text").value.trim());
  if ($("video-split").value) parameters.set("split", $("video-split").value);
  return `/videos?${parameters}`;
}

/** Load the page at a cursor, or the first one; an active request is aborted. */
async function loadPage(cursor = "") {
  clearTimeout(typing);
  view.request.abort();
  view.request = new AbortController();
  const { signal } = view.request;
  $("more-button").disabled = true;
  try {
    const page = await api(requestPath(cursor), { signal });
    if (signal.aborted) return;
    const cards = page.videos.map(videoCard);
    if (cursor) $("video-grid").append(...cards);
    else replaceRows($("video-grid"), cards);
    if (cursor) cards[0]?.querySelector(".caption a").focus();
    $("more").dataset.cursor = page.next_cursor ?? "";
    $("more").hidden = !page.next_cursor;
    showCount(page.next_cursor);
  } catch (error) {
    if (error.name !== "AbortError") showFailure(error, cursor);
  } finally {
    $("more-button").disabled = false;
    if (cursor) restoreFocus($("more-button"));
  }
}

function showCount(hasMore) {
  const shown = $("video-grid").children.length;
  setText($("videos-note"), isFiltered() ? filteredCount(shown, hasMore) : totalCount(shown));
  $("videos-message").hidden = shown > 0;
  if (!shown) $("videos-message").replaceChildren(...emptyMessage());
}

const filteredCount = (shown, hasMore) =>
  hasMore ? `the first ${shown} that match` : `${count(shown, "video matches", "videos match")}`;

function totalCount(shown) {
  const all = Math.max(shown, view.task.counts.accepted);
  return shown < all ? `${shown} of ${count(all, "video")}` : count(all, "video");
}

function emptyMessage() {
  if (isFiltered())
    return [el("strong", { textContent: "No video matches." }), "Change the text, or choose another use."];
  const isReady = view.task.state === "ready";
  const text = isReady ? "Append videos to fill the domain again." : "They appear here once checked.";
  return [el("strong", { textContent: "The domain has no videos." }), text];
}

function showFailure(error, cursor) {
  const retry = el(
    "p",
    { className: "act" },
    button("Try again", () => loadPage(cursor).then(() => restoreFocus($("video-text"))), { className: "" }),
  );
  $("videos-message").replaceChildren(
    el("strong", { textContent: "The videos couldn't be loaded." }),
    error.message,
    retry,
  );
  $("videos-message").hidden = false;
}

function videoCard(video) {
  const title = videoTitle(video);
  const href = videoPath(video.id);
  const frame = el("a", { className: "frame", href, tabIndex: -1, "aria-hidden": "true" });
  frame.append(thumbnail(video.thumbnail_url));
  if (video.duration) frame.append(el("span", { className: "time", textContent: clock(video.duration) }));
  const className = video.captions.length ? "caption" : "caption muted";
  const caption = el(
    "p",
    { className, title: video.captions.join("\n") || video.uri },
    el("a", { href, textContent: title }),
  );
  const others = video.captions.length - 1;
  const captions = others > 0 && count(others, "more caption");
  const facts = [splitName(video.effective_split), captions].filter(Boolean).join(" · ");
  const card = el(
    "li",
    { className: "result", "data-testid": "video", "data-video": video.id },
    frame,
    caption,
  );
  const buttons = isPermitted("ingest") ? [editButton(video, title, card), deleteButton(video, title)] : [];
  const actions = el("span", { className: "card-actions" }, ...buttons);
  card.append(el("div", { className: "meta" }, el("span", { textContent: facts }), actions));
  return card;
}

function editButton(video, title, card) {
  const edit = () => openEditor(video.id, (saved) => replaceCard(card, saved)).catch(view.actions.onFailed);
  return button("Edit", edit, { className: "small quiet edit", "aria-label": `Edit ${title}` });
}

function replaceCard(card, saved) {
  const replacement = videoCard(saved);
  card.replaceWith(replacement);
  replacement.querySelector(".edit").focus();
  view.actions.onEdited(`“${videoTitle(saved)}” was saved.`);
}

function deleteButton(video, title) {
  const confirm = () =>
    confirmVideoDeletion(video, (name) => view.actions.onDeleted(`“${name}” was deleted.`));
  return button("Delete", confirm, { className: "small quiet", "aria-label": `Delete ${title}` });
}
