// Retries of failed tasks, with the method and the settings that fit the library where those of the task do not.

import { api } from "./api_client.js";

/** Label of the button that retries a task. */
export function retryText({ remedy, method }) {
  if (!remedy) return "Retry";
  return remedy.method === method ? "Retry with the library's settings" : `Retry with ${remedy.method}`;
}

/** Sentence that describes the retry that can succeed. */
export const remedyText = ({ remedy, method }) =>
  remedy.method === method
    ? "Its settings do not fit the library. A retry with the settings of the library does; the videos are kept."
    : `Its method, ${method}, does not fit the library. A retry with ${remedy.method} does; the videos are kept.`;

/** Queue a task again. */
export const retryTask = ({ id, remedy }) =>
  api(`/tasks/${encodeURIComponent(id)}/retry`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(remedy ?? {}),
  });
