// Deletion of a video after confirmation.

import { openDeleteDialog } from "./delete_dialog.js";
import { videoTitle } from "./page_texts.js";

/**
 * Open the confirmation, and delete the video.
 *
 * @param onDeleted called with a text that names the video
 */
export function confirmVideoDeletion({ id, captions, uri }, onDeleted) {
  const video = captions.length ? `The video “${captions[0]}” with its captions,` : "The video with its";
  openDeleteDialog({
    title: "Delete this video?",
    name: id,
    path: `/videos/${encodeURIComponent(id)}`,
    lost: [`${video} metadata and thumbnail. Searches no longer find it.`, "Its file, if it was uploaded."],
    kept: [
      "Your own file below the media root.",
      "Its effect on the encoders, and evaluations that used it.",
      "Its vector uses disk space until the domain is compacted; searches cannot reach it.",
      "Earlier backups.",
    ],
    onDeleted: () => onDeleted(videoTitle({ captions, uri })),
  });
}
