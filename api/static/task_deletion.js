// Confirmation of the deletion of a task, with the data that is deleted and kept.

import { openDeleteDialog } from "./delete_dialog.js";
import { count } from "./formatting.js";

/**
 * Ask for the name of a task, and delete the task.
 *
 * @param task its details
 * @param onDeleted called with the response
 */
export function confirmTaskDeletion({ id, name, learned_order: learned, counts }, onDeleted) {
  openDeleteDialog({
    title: `Delete “${name}”?`,
    name,
    path: `/tasks/${encodeURIComponent(id)}`,
    lost: [
      `${count(counts.videos, "video")} with captions, metadata and thumbnails, and uploaded files. Searches no longer find them.`,
      learned && "The evaluation of the domain: its column of the recall matrix.",
    ],
    kept: [
      "Your own files below the media root.",
      learned && "Its effect on the encoders, and its place in the order of learning.",
      learned && "Its vectors use disk space until the library is compacted; searches cannot reach them.",
      "Earlier backups.",
    ],
    onDeleted,
  });
}
