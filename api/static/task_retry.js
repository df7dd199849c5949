// Retry failed tasks, with a method and settings that fit the library if the task's own do not.

import { sendJson } from "./api_client.js";

/** Word the button that retries a task. */
export function retryText({ remedy, method }) {
  if (!remedy?.body) return "Retry";
  return remedy.body.method === method
    ? "Retry with the library's settings"
    : `Retry with ${remedy.body.method}`;
}

/** Say how to recover a failed task. */
export function remedyText({ remedy, method, error_hint }) {
  if (!remedy?.body) return error_hint ?? "";
  return remedy.body.method === method
    ? "These settings don't match the library. Retry with the library's settings; the uploaded files are kept."
    : `The method ${method} doesn't match the library. Retry with ${remedy.body.method}; the uploaded files are kept.`;
}

/** Queue a task again. */
export const retryTask = ({ id, remedy }) =>
  sendJson(`/tasks/${encodeURIComponent(id)}/retry`, remedy?.body ?? {});
