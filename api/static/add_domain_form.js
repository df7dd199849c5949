// The form that adds a domain. Errors of the server are shown at the fields that they name.

import { upload } from "./api_client.js";
import { $, el, makeClosable, setText } from "./dom.js";
import { bytes } from "./formatting.js";

let idempotencyKey = "";

export function setUpAddDomainForm(onAdded) {
  $("add").addEventListener("click", openDialog);
  makeClosable($("dialog"));
  $("form").addEventListener("input", (event) => {
    idempotencyKey = newKey();
    clearFieldError(event.target);
  });
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    clearErrors();
    if (requireFields()) await send(onAdded);
  });
}

function openDialog() {
  idempotencyKey = newKey();
  clearErrors();
  $("dialog").showModal();
  $("f-name").focus();
}

async function send(onAdded) {
  $("send").disabled = true;
  $("upload").hidden = false;
  try {
    // The key is the same for repeated submissions of an unchanged form, so the domain is added once.
    await upload("/tasks", new FormData($("form")), { "Idempotency-Key": idempotencyKey }, showProgress);
    $("form").reset();
    $("dialog").close();
    await onAdded();
  } catch (error) {
    showErrors(error);
  } finally {
    $("send").disabled = false;
    $("upload").hidden = true;
  }
}

function showProgress(sent, total) {
  $("upload-bar").value = sent / total;
  const isSent = sent >= total;
  setText(
    $("upload-text"),
    isSent ? "Unpacking and checking the archive …" : `${bytes(sent)} of ${bytes(total)}`,
  );
}

/** Whether all required fields are filled; marks those that are not. */
function requireFields() {
  const required = [
    [$("f-name"), "Enter a name for the domain."],
    [$("f-archive"), "Choose an archive."],
  ];
  const missing = required.filter(([input]) => !input.value);
  for (const [input, text] of missing) showFieldError(input, text);
  missing[0]?.[0].focus();
  return !missing.length;
}

function showErrors(error) {
  const unplaced = fieldErrors(error).filter(({ field, message, hint }) => {
    const input = $("form").elements.namedItem(field);
    if (!(input instanceof HTMLElement)) return true;
    showFieldError(input, `${message} ${hint}`.trim());
    return false;
  });
  const invalid = $("form").querySelector("[aria-invalid]");
  invalid?.closest("details")?.setAttribute("open", "");
  invalid?.focus();
  if (!unplaced.length) return;
  const items = unplaced.map(({ field, message, hint }) =>
    el("li", {}, field ? el("code", { textContent: field }) : null, ` ${message} ${hint}`),
  );
  $("form-errors").replaceChildren(el("ul", {}, ...items));
  $("form-errors").hidden = false;
}

function fieldErrors(error) {
  if (error.fields.length) return error.fields;
  // The detail of a conflict starts with the name of its field.
  const [, field, text] = /^(\w+): (.*)$/s.exec(error.message) ?? [];
  return [field ? { field, message: text, hint: "" } : { field: "", message: error.message, hint: "" }];
}

function showFieldError(input, text) {
  const id = `${input.id}-error`;
  clearFieldError(input);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-describedby", id);
  input.after(el("p", { className: "field-error", id, textContent: text }));
}

function clearFieldError(input) {
  $(`${input.id}-error`)?.remove();
  input.removeAttribute("aria-invalid");
  input.removeAttribute("aria-describedby");
}

function clearErrors() {
  for (const input of $("form").querySelectorAll("[aria-invalid]")) clearFieldError(input);
  $("form-errors").hidden = true;
  $("upload-bar").value = 0;
  setText($("upload-text"), "");
}

function newKey() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
