// The dialog that edits a video's captions and metadata.

import { readIfChanged, sendJson } from "./api_client.js";
import { button, dialogFormParts, el, makeClosable, setText } from "./dom.js";
import { clearFieldError, clearFormErrors, placeFieldErrors, showFieldError } from "./form_errors.js";
import { formatMetadata, metadataPatch, parseMetadata } from "./metadata_values.js";

/**
 * Read a video, open the dialog, and save the changes.
 *
 * @param id ID of the video
 * @param onSaved called with the saved video, after the dialog is closed
 */
export async function openEditor(id, onSaved) {
  const path = `/videos/${encodeURIComponent(id)}`;
  const { body: video, tag } = await readIfChanged(path, null);
  const parts = createParts(video);
  const { dialog, form, failure } = parts;
  makeClosable(dialog, () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearFormErrors(form, failure);
    const patch = readPatch(parts, video);
    if (!patch) return;
    setBusy(parts, true);
    try {
      const saved = await sendJson(path, patch, { method: "PATCH", headers: { "If-Match": tag } });
      dialog.close();
      onSaved(saved);
    } catch (error) {
      setBusy(parts, false);
      showFailure(parts, error);
    }
  });
  form.addEventListener("input", ({ target }) => clearFieldError(target));
  document.body.append(dialog);
  dialog.showModal();
  form.querySelector("textarea, .add-row").focus();
  failure.hidden = true;
}

function createParts(video) {
  const captions = el("ul", { className: "edit-rows" });
  const fields = el("ul", { className: "edit-rows" });
  const { failure, status, cancel } = dialogFormParts();
  const save = el("button", { type: "submit", className: "primary", textContent: "Save" });
  const form = el(
    "form",
    { noValidate: true },
    el("h2", { id: "edit-title", textContent: "Edit captions and metadata" }),
    rowGroup(
      "Captions",
      "Add a caption",
      "The next search finds their words; captions that aren't held out also route queries. Nothing is retrained.",
      captions,
      () => addCaption(captions, ""),
    ),
    rowGroup(
      "Metadata",
      "Add a field",
      'Numbers, true, false and JSON are stored as such; "3" in quotes is a text.',
      fields,
      () => addField(fields, "", ""),
    ),
    failure,
    el("div", { className: "sheet-foot" }, status, cancel, save),
  );
  for (const caption of video.captions) addCaption(captions, caption);
  for (const [name, value] of Object.entries(video.metadata)) addField(fields, name, formatMetadata(value));
  const dialog = el(
    "dialog",
    { id: "edit-dialog", className: "sheet", "aria-labelledby": "edit-title" },
    form,
  );
  return { dialog, form, captions, fields, failure, status, cancel, save };
}

function rowGroup(title, addText, note, list, onAdd) {
  const add = button(addText, () => onAdd().querySelector("textarea, input").focus(), {
    className: "small add-row",
  });
  return el(
    "fieldset",
    { className: "field" },
    el("legend", { textContent: title }),
    list,
    el("div", {}, add),
    el("small", { textContent: note }),
  );
}

function addCaption(list, caption) {
  const label = `Caption ${list.children.length + 1}`;
  return addRow(list, "caption-row", label, [
    el("textarea", { value: caption, rows: 2, "aria-label": label }),
  ]);
}

function addField(list, name, value) {
  const number = list.children.length + 1;
  return addRow(list, "field-row", `Field ${number}`, [
    el("input", {
      type: "text",
      value: name,
      placeholder: "place",
      autocomplete: "off",
      "aria-label": `Field ${number}`,
    }),
    el("input", {
      type: "text",
      value,
      placeholder: "kitchen",
      autocomplete: "off",
      "aria-label": `Value ${number}`,
    }),
  ]);
}

function addRow(list, className, label, inputs) {
  const remove = el("button", {
    type: "button",
    className: "icon-button",
    textContent: "✕",
    "aria-label": `Remove ${label.toLowerCase()}`,
  });
  const row = el("li", { className }, ...inputs, remove);
  remove.addEventListener("click", () => {
    const next = row.nextElementSibling ?? row.previousElementSibling;
    row.remove();
    (next ?? list.parentElement).querySelector("textarea, input, .add-row").focus();
  });
  list.append(row);
  return row;
}

/** Build a JSON Merge Patch from the changes; null if a field has no name or two fields have the same name. */
function readPatch({ captions, fields }, video) {
  const patch = {};
  const texts = [...captions.querySelectorAll("textarea")].map((input) => input.value.trim()).filter(Boolean);
  if (JSON.stringify(texts) !== JSON.stringify(video.captions)) patch.captions = texts;
  const metadata = new Map();
  for (const row of fields.children) {
    const [name, value] = row.querySelectorAll("input");
    const key = name.value.trim();
    if (!key && !value.value.trim()) continue;
    if (!key || metadata.has(key)) {
      showFieldError(
        name,
        key ? "Another field has this name." : "Enter a name for the field, or remove it.",
      );
      name.focus();
      return null;
    }
    metadata.set(key, parseMetadata(value.value, video.metadata[key]));
  }
  const changes = metadataPatch(video.metadata, Object.fromEntries(metadata));
  if (Object.keys(changes).length) patch.metadata = changes;
  return patch;
}

function showFailure(parts, error) {
  const unplaced = placeFieldErrors(error.fields, (field) => inputOf(parts, field));
  const isPlaced = error.fields.length > 0 && !unplaced.length;
  const text =
    error.status === 412
      ? "The video has changed in the meantime. Close the dialog and edit it again."
      : error.message;
  setText(parts.failure, isPlaced ? "" : text);
  parts.failure.hidden = isPlaced;
  (parts.form.querySelector("[aria-invalid]") ?? parts.save).focus();
}

/** Find the input for a field such as captions[2] or metadata.place. */
function inputOf({ captions, fields }, field) {
  const [, number] = /^captions\[(\d+)\]/.exec(field) ?? [];
  if (number) {
    const filled = [...captions.querySelectorAll("textarea")].filter((input) => input.value.trim());
    return filled[Number(number)];
  }
  if (field === "captions") return captions.querySelector("textarea");
  const name = field.startsWith("metadata.") ? field.slice("metadata.".length) : null;
  const row = [...fields.children].find((other) => other.querySelector("input").value.trim() === name);
  return row?.querySelectorAll("input")[1];
}

function setBusy({ form, status, cancel, save }, isBusy) {
  save.disabled = isBusy;
  cancel.disabled = isBusy;
  setText(status, isBusy ? "Saving …" : "");
  form.setAttribute("aria-busy", String(isBusy));
}
