// A dialog that plays a video, with its captions, moments and metadata.

import { api } from "./api_client.js";
import { confirmVideoDeletion } from "./delete_dialog.js";
import { $, button, el, makeClosable } from "./dom.js";
import { matchList } from "./matched_texts.js";
import { domainLink, videoPath } from "./page_links.js";
import { videoTitle } from "./page_texts.js";
import { fact, fileFacts, metadataFacts } from "./video_facts.js";
import { momentButton, videoElement } from "./video_media.js";

const MAX_METADATA_FIELDS = 12;

if ($("player")) makeClosable($("player"), () => $("screen").replaceChildren());

/** Open the dialog, or the video's page if this page has no dialog. */
export async function openPlayer(result) {
  if (!$("player")) {
    location.assign(videoPath(result.video_id));
    return;
  }
  $("screen").replaceChildren(videoElement(result));
  $("player-title").textContent = videoTitle(result);
  const captions = result.captions.slice(1).map((caption) => el("li", { textContent: caption }));
  $("player-captions").replaceChildren(...captions);
  $("player-facts").replaceChildren(...resultFacts(result));
  $("player-act").replaceChildren(
    pageLink(result),
    button("Delete this video", () => confirmDeletion(result)),
  );
  $("player").showModal();
  const video = await api(`/videos/${encodeURIComponent(result.video_id)}`).catch(() => null);
  if (!video) return;
  $("player-facts").append(
    ...fileFacts(video),
    ...metadataFacts(video.metadata).slice(0, MAX_METADATA_FIELDS),
  );
}

function resultFacts(result) {
  const facts = [
    fact("Domain", domainLink(result.task, result.task_id)),
    fact("Rank and score", `${result.rank} · ${result.score.toFixed(3)}`),
  ];
  if (result.words.length) facts.push(fact("Words found in", matchList(result.words)));
  if (result.moments.length) {
    facts.push(
      fact(
        "Best moments",
        el(
          "span",
          { className: "moments" },
          ...result.moments.map((moment) => momentButton(moment, $("screen"))),
        ),
      ),
    );
  }
  return facts;
}

function pageLink(result) {
  const href = videoPath(result.video_id, new URLSearchParams(location.search));
  return el("a", { className: "button small", href, textContent: "Open its page" });
}

/** Delete a video after confirmation; the event `videodeleted` tells the page to refresh its results. */
function confirmDeletion({ video_id: id, captions, uri }) {
  confirmVideoDeletion({ id, captions, uri }, (detail) => {
    $("player").close();
    document.dispatchEvent(new CustomEvent("videodeleted", { detail }));
  });
}
