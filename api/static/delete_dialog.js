// Confirmation of a permanent deletion: the button is enabled once the name has been typed.

import { api } from "./api_client.js";
import { dialogFormParts, el, makeClosable, setText } from "./dom.js";

/**
 * Open the dialog, and delete after confirmation.
 *
 * @param title heading
 * @param name text that must be typed to confirm
 * @param lost sentences about data that is deleted; false entries are skipped
 * @param kept sentences about data that is kept; false entries are skipped
 * @param path path of the API for the DELETE request
 * @param onDeleted called with the response, after the dialog is closed
 */
export function openDeleteDialog({ title, name, lost, kept, path, onDeleted }) {
  const parts = createParts(title, name, lost, kept);
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

function createParts(title, name, lost, kept) {
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
  const warning = el("p", {}, el("strong", { textContent: "This cannot be undone." }));
  const label = el("label", { htmlFor: input.id }, "Type ", el("code", { textContent: name }), " to confirm");
  const form = el(
    "form",
    { noValidate: true },
    el("h2", { id: "delete-title", textContent: title }),
    el("div", { id: "delete-lost", className: "lost" }, warning, list(lost)),
    el("div", { className: "stays" }, el("p", { textContent: "Not deleted:" }), list(kept)),
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
