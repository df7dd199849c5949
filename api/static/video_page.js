// The page of a video: player, timed texts, captions, metadata, similar videos, and why a search found it.

import "./search_shortcut.js";
import { api } from "./api_client.js";
import { confirmVideoDeletion } from "./delete_dialog.js";
import { $, announce, el, setText } from "./dom.js";
import { watchHealth } from "./health_indicator.js";
import { loadLibraryState } from "./library_state.js";
import { domainLink, domainPath, pageId, searchParameters, showMissing } from "./page_links.js";
import { videoTitle } from "./page_texts.js";
import { resultCard } from "./result_card.js";
import { showExplanation } from "./result_explanation.js";
import { isSearched, NOT_SEARCHED, unsearchedMessage } from "./served_release.js";
import { drawTranscript } from "./transcript_list.js";
import { openEditor } from "./video_editor.js";
import { fileFacts, metadataFacts } from "./video_facts.js";
import { momentButton, playFrom, videoElement } from "./video_media.js";

const SIMILAR_VIDEOS = 8;

watchHealth();
let scrollTranscript = () => {};
const pinned = await loadLibraryState();
await load();

async function load() {
  let video;
  try {
    video = await api(`/videos/${encodeURIComponent(pageId())}`);
  } catch (error) {
    showMissing("video", error, "/", "Open the search page");
    return;
  }
  draw(video);
  if (video.status !== "accepted") return;
  if (pinned && !(await isDomainSearched(video))) {
    showUnsearched(video);
    return;
  }
  const search = searchParameters(new URLSearchParams(location.search));
  if (search.has("q")) showExplanation(video, search).then((explanation) => showSaid(video, explanation));
  showSimilar(video);
}

/** Start the player where the words of the search are said. */
function showSaid(video, explanation) {
  const said = explanation?.texts.find(({ start }) => start != null);
  if (!said) return;
  scrollTranscript(said.start);
  const player = $("screen").querySelector("video");
  if (player?.paused && said.start < (video.duration ?? said.end)) player.currentTime = said.start;
}

async function isDomainSearched({ task_id: id }) {
  const task = await api(`/tasks/${encodeURIComponent(id)}`).catch(() => null);
  return task === null || isSearched(task, pinned);
}

/** Say that the domain is not searched; searches with the video would be refused. */
function showUnsearched({ task }) {
  $("unsearched").replaceChildren(...unsearchedMessage(task));
  $("unsearched").hidden = false;
  $("similar").hidden = false;
  setText($("similar-note"), `The domain of the video is ${NOT_SEARCHED}.`);
}

function draw(video) {
  drawPlayer(video);
  drawTexts(video);
  $("edit").onclick = () =>
    openEditor(video.id, showEdit).catch((error) => announce($("done"), error.message));
  $("delete-video").onclick = () => confirmVideoDeletion(video, (name) => showDeletion(name, video));
}

function drawPlayer(video) {
  $("video").hidden = false;
  $("crumb-domain").hidden = false;
  $("domain-link").href = domainPath(video.task_id);
  setText($("domain-link"), video.task);
  $("domain").replaceChildren(domainLink(video.task, video.task_id));
  $("screen").replaceChildren(screenContent(video));
  $("moments").hidden = !video.moments.length;
  const moments = video.moments.map((moment) => el("li", {}, momentButton(moment, $("screen"))));
  $("moment-list").replaceChildren(...moments);
  $("file").replaceChildren(...fileFacts(video));
}

/** Draw the parts that an edit changes; the player keeps playing. */
function drawTexts(video) {
  const title = videoTitle(video);
  document.title = `${title} · Cinestrata`;
  setText($("title"), title);
  const captions = video.captions.map((caption) => el("li", { textContent: caption }));
  const play = (start) => playFrom($("screen"), start);
  scrollTranscript = drawTranscript($("transcript"), video, play, showEdit);
  $("captions").replaceChildren(...(captions.length ? captions : [emptyNote("No captions.")]));
  const metadata = metadataFacts(video.metadata);
  $("metadata").replaceChildren(...(metadata.length ? metadata : [emptyNote("No metadata.", "div")]));
}

function showEdit(video) {
  drawTexts(video);
  announce($("done"), "The video was saved.");
}

// A function, because a constant would not have its value yet when the page is drawn.
function emptyNote(textContent, tag = "li") {
  return el(tag, { className: "muted", textContent });
}

function screenContent(video) {
  if (video.status === "accepted") return videoElement(video, { autoplay: false });
  const text =
    video.status === "rejected"
      ? `The video was rejected. ${video.reason ?? ""}`
      : "The video hasn't been checked yet.";
  return el("p", { textContent: text });
}

function showDeletion(name, { task, task_id: id }) {
  $("video").hidden = true;
  $("why").hidden = true;
  $("similar").hidden = true;
  const link = el("a", { href: domainPath(id), textContent: `Open the domain “${task}”` });
  $("done").replaceChildren(`“${name}” was deleted. `, link);
  $("done").hidden = false;
  $("done").focus();
}

async function showSimilar(video) {
  const path = `/videos/${encodeURIComponent(video.id)}/similar`;
  $("similar").hidden = false;
  try {
    const response = await api(`${path}?k=${SIMILAR_VIDEOS}`);
    const scope = `Nearest stored vectors in ${response.task}.`;
    setText($("similar-note"), response.results.length ? scope : "There are no other videos to compare.");
    $("similar-grid").replaceChildren(...response.results.map(resultCard));
  } catch (error) {
    setText($("similar-note"), error.message);
  }
}
