// The form that adds a domain. What the server finds wrong is shown at the field it names.

import { $, closable, el, say } from "./dom.js";
import { bytes } from "./formatting.js";
import { upload } from "./api_client.js";

let key = "";

export function wireForm(added) {
  $("add").addEventListener("click", () => { key = fresh(); clear(); $("dialog").showModal(); $("f-name").focus(); });
  closable($("dialog"));
  $("form").addEventListener("input", (event) => { key = fresh(); unmark(event.target); });
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    clear();
    if (!complete()) return;
    $("send").disabled = true;
    $("upload").hidden = false;
    try {
      // The same key for the same form: pressed twice, or sent again after a broken connection, it is added once.
      await upload("/tasks", new FormData($("form")), { "Idempotency-Key": key }, (sent, total) => {
        $("upload-bar").value = sent / total;
        say($("upload-text"), sent < total ? `${bytes(sent)} of ${bytes(total)}` : "The archive is being unpacked and checked …");
      });
      $("form").reset();
      $("dialog").close();
      await added();
    } catch (error) {
      show(error);
    } finally {
      $("send").disabled = false;
      $("upload").hidden = true;
    }
  });
}

function complete() {
  const missing = [[$("f-name"), "Give the domain a name."], [$("f-archive"), "Choose an archive."]].filter(([input]) => !input.value);
  missing.forEach(([input, text]) => mark(input, text));
  missing[0]?.[0].focus();
  return !missing.length;
}

function show(error) {
  // A conflict names its field at the beginning of the sentence.
  const [, field, text] = /^(\w+): (.*)$/s.exec(error.message) ?? [];
  const wrong = error.fields.length ? error.fields : field ? [{ field, message: text, hint: "" }] : [{ field: "", message: error.message, hint: "" }];
  const elsewhere = wrong.filter(({ field: name, message, hint }) => {
    const input = $("form").elements.namedItem(name);
    if (input instanceof HTMLElement) mark(input, `${message} ${hint}`.trim());
    return !(input instanceof HTMLElement);
  });
  $("form").querySelector("[aria-invalid]")?.closest("details")?.setAttribute("open", "");
  $("form").querySelector("[aria-invalid]")?.focus();
  if (!elsewhere.length) return;
  $("form-errors").replaceChildren(el("ul", {}, ...elsewhere.map(({ field: name, message, hint }) => el("li", {}, name ? el("code", { textContent: name }) : null, ` ${message} ${hint}`))));
  $("form-errors").hidden = false;
}

function mark(input, text) {
  const id = `${input.id}-error`;
  unmark(input);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-describedby", id);
  input.after(el("p", { className: "field-error", id, textContent: text }));
}

function unmark(input) {
  $(`${input.id}-error`)?.remove();
  input.removeAttribute("aria-invalid");
  input.removeAttribute("aria-describedby");
}

function clear() {
  for (const input of $("form").querySelectorAll("[aria-invalid]")) unmark(input);
  $("form-errors").hidden = true;
  $("upload-bar").value = 0;
  say($("upload-text"), "");
}

const fresh = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
