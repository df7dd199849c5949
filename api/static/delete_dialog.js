// Delete tasks and videos after confirmation: typing the name enables the button.

import { api } from "./api_client.js";
import { dialogFormParts, el, makeClosable, setText } from "./dom.js";
import { count } from "./formatting.js";
import { videoTitle } from "./page_texts.js";

/**
 * Delete a task once its name has been typed.
 *
 * @param task details of the task
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
    remaining: [
      "Your own files below the media root.",
      learned && "Its effect on the encoders, and its place in the learning order.",
      learned && "Its vectors take disk space until the library is compacted, but searches can't reach them.",
      "Earlier backups.",
    ],
    onDeleted,
  });
}

/**
 * Delete a video once its ID has been typed.
 *
 * @param onDeleted called with the video's title
 */
export function confirmVideoDeletion({ id, captions, uri }, onDeleted) {
  const video = captions.length ? `The video “${captions[0]}” with its captions,` : "The video with its";
  openDeleteDialog({
    title: "Delete this video?",
    name: id,
    path: `/videos/${encodeURIComponent(id)}`,
    lost: [`${video} metadata and thumbnail. Searches no longer find it.`, "Its file, if it was uploaded."],
    remaining: [
      "Your own file below the media root.",
      "Its effect on the encoders, and evaluations that used it.",
      "Its vector takes disk space until the domain is compacted, but searches can't reach it.",
      "Earlier backups.",
    ],
    onDeleted: () => onDeleted(videoTitle({ captions, uri })),
  });
}

/**
 * Open the dialog, and delete after confirmation.
 *
 * @param title heading
 * @param name text that must be typed to confirm
 * @param lost sentences about data that is deleted; false entries are skipped
 * @param remaining sentences about data that stays; false entries are skipped
 * @param path API path for the DELETE request
 * @param onDeleted called with the response, after the dialog is closed
 */
function openDeleteDialog({ title, name, lost, remaining, path, onDeleted }) {
  const parts = createParts(title, name, lost, remaining);
  const { dialog, form, input, cancel, send, failure } = parts;
  makeClosable(dialog, () => dialog.remove());
  // The dialog stays open while the request runs, so that its result is visible.
  dialog.addEventListener("cancel", (event) => cancel.disabled && event.preventDefault());
  dialog.addEventListener("click", (event) => cancel.disabled && event.stopImmediatePropagation(), true);
  input.addEventListener("input", () => {
    send.disabled = input.value.trim() !== name.trim();
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled) return;
    setBusy(parts, true);
    failure.hidden = true;
    try {
      const response = await api(path, { method: "DELETE" });
      dialog.close();
      onDeleted(response);
    } catch (error) {
      setBusy(parts, false);
      setText(failure, error.message);
      failure.hidden = false;
      input.focus();
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

function createParts(title, name, lost, remaining) {
  const input = el("input", {
    id: "delete-name",
    autocomplete: "off",
    autocapitalize: "off",
    spellcheck: false,
    "aria-describedby": "delete-lost",
  });
  const { failure, status, cancel } = dialogFormParts();
  const send = el("button", {
    type: "submit",
    className: "danger",
    textContent: "Delete permanently",
    disabled: true,
  });
  const warning = el("p", {}, el("strong", { textContent: "This can't be undone." }));
  const label = el("label", { htmlFor: input.id }, "Type ", el("code", { textContent: name }), " to confirm");
  const form = el(
    "form",
    { noValidate: true },
    el("h2", { id: "delete-title", textContent: title }),
    el("div", { id: "delete-lost", className: "lost" }, warning, list(lost)),
    el("div", { className: "stays" }, el("p", { textContent: "Not deleted:" }), list(remaining)),
    el("div", { className: "field" }, label, input),
    failure,
    el("div", { className: "sheet-foot" }, status, cancel, send),
  );
  const dialog = el("dialog", { id: "delete", className: "sheet", "aria-labelledby": "delete-title" }, form);
  return { dialog, form, input, failure, status, cancel, send };
}

function setBusy({ form, input, status, cancel, send }, isBusy) {
  send.disabled = isBusy;
  cancel.disabled = isBusy;
  input.readOnly = isBusy;
  setText(status, isBusy ? "Deleting …" : "");
  form.setAttribute("aria-busy", String(isBusy));
}

const list = (sentences) =>
  el("ul", {}, ...sentences.filter(Boolean).map((textContent) => el("li", { textContent })));
