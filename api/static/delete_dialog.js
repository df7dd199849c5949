// Asking before something goes for good. Nothing happens until its name has been typed.

import { closable, el, say } from "./dom.js";
import { api } from "./api_client.js";

/** Ask, then delete.
 *
 * @param title what is done, as a heading
 * @param name to be typed
 * @param lost, stays what goes for good and what does not, in sentences
 * @param path of the API
 * @param done called with the API's answer, once the dialog is closed
 */
export function askToDelete({ title, name, lost, stays, path, done }) {
  const input = el("input", { id: "delete-name", autocomplete: "off", autocapitalize: "off", spellcheck: false, "aria-describedby": "delete-lost" });
  const failure = el("p", { className: "form-errors", role: "alert", hidden: true });
  const cancel = el("button", { type: "button", className: "quiet", textContent: "Cancel", "data-close": "" });
  const send = el("button", { type: "submit", className: "danger", textContent: "Delete for good", disabled: true });
  const running = el("p", { className: "muted", role: "status" });
  const form = el("form", { noValidate: true },
    el("h2", { id: "delete-title", textContent: title }),
    el("div", { id: "delete-lost", className: "lost" }, el("p", {}, el("strong", { textContent: "This cannot be undone." })), list(lost)),
    el("div", { className: "stays" }, el("p", { textContent: "What stays" }), list(stays)),
    el("div", { className: "field" }, el("label", { htmlFor: input.id }, "Type ", el("code", { textContent: name }), " to confirm"), input),
    failure, el("div", { className: "sheet-foot" }, running, cancel, send));
  const dialog = el("dialog", { id: "delete", className: "sheet", "aria-labelledby": "delete-title" }, form);
  closable(dialog, () => dialog.remove());
  // Closed while it runs, nobody would see how it ended.
  dialog.addEventListener("cancel", (event) => cancel.disabled && event.preventDefault());
  dialog.addEventListener("click", (event) => cancel.disabled && event.stopImmediatePropagation(), true);
  input.addEventListener("input", () => { send.disabled = input.value.trim() !== name.trim(); });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (send.disabled) return;
    busy(true);
    failure.hidden = true;
    try {
      const answer = await api(path, { method: "DELETE" });
      dialog.close();
      done(answer);
    } catch (error) {
      busy(false);
      say(failure, error.message);
      failure.hidden = false;
      input.focus();
    }
  });
  function busy(is) {
    send.disabled = cancel.disabled = input.readOnly = is;
    say(running, is ? "Deleting …" : "");
    form.setAttribute("aria-busy", String(is));
  }
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

const list = (sentences) => el("ul", {}, ...sentences.filter(Boolean).map((textContent) => el("li", { textContent })));
