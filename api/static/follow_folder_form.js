// The form that lets a domain follow a folder on the server.

import { sendJson } from "./api_client.js";
import { $, announce, makeClosable, restoreFocus } from "./dom.js";
import {
  clearFieldError,
  clearFormErrors,
  fieldErrors,
  showFieldError,
  showFormErrors,
} from "./form_errors.js";

const INPUTS = { name: "follow-name", source: "follow-source", every_seconds: "follow-every" };

/** @param onFollowed called after the sync is registered */
export function setUpFollowFolderForm(onFollowed) {
  const form = $("follow-form");
  $("follow").addEventListener("click", openFollowFolderForm);
  makeClosable($("follow-dialog"));
  form.addEventListener("input", ({ target }) => clearFieldError(target));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    clearFormErrors(form, $("follow-errors"));
    if (requireFields()) await send(onFollowed);
  });
}

export function openFollowFolderForm() {
  clearFormErrors($("follow-form"), $("follow-errors"));
  $("follow-dialog").showModal();
  $("follow-source").focus();
}

function requireFields() {
  const texts = { "follow-source": "Enter a folder.", "follow-name": "Enter a name for the domain." };
  const missing = Object.keys(texts).filter((id) => !$(id).value.trim());
  for (const id of missing) showFieldError($(id), texts[id]);
  if (missing.length) $(missing[0]).focus();
  return !missing.length;
}

async function send(onFollowed) {
  const sync = {
    name: $("follow-name").value,
    source: $("follow-source").value.trim(),
    every_seconds: Number($("follow-every").value),
    vanished: $("follow-vanished").checked ? "delete" : "keep",
    captions_from_names: $("follow-names").checked,
  };
  $("follow-send").disabled = true;
  try {
    const { name } = await sendJson("/syncs", sync);
    $("follow-dialog").close();
    $("follow-form").reset();
    announce($("tasks-done"), `“${name}” follows its folder.`);
    await onFollowed();
  } catch (error) {
    showFormErrors($("follow-form"), $("follow-errors"), fieldErrors(error), (field) => $(INPUTS[field]));
  } finally {
    $("follow-send").disabled = false;
    restoreFocus($("follow-dialog").open ? $("follow-send") : $("follow"));
  }
}
