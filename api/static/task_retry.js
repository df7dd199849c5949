// Retries of failed tasks, with the method and the settings that fit the library where those of the task do not.

import { api } from "./api_client.js";

/** Label of the button that retries a task. */
export function retryText({ remedy, method }) {
  if (!remedy?.body) return "Retry";
  return remedy.body.method === method
    ? "Retry with the library's settings"
    : `Retry with ${remedy.body.method}`;
}

/** Sentence that describes what ends the failure of a task. */
export function remedyText({ remedy, method, error_hint }) {
  if (!remedy?.body) return error_hint ?? "";
  return remedy.body.method === method
    ? "Its settings do not fit the library. A retry with the settings of the library does; the videos are kept."
    : `Its method, ${method}, does not fit the library. A retry with ${remedy.body.method} does; the videos are kept.`;
}

/** Queue a task again. */
export const retryTask = ({ id, remedy }) =>
  api(`/tasks/${encodeURIComponent(id)}/retry`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(remedy?.body ?? {}),
  });
