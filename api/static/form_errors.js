// Show form errors at the inputs that they name, or in a list.

import { $, el } from "./dom.js";

/** List a refused request's errors as {field, message, hint}. */
export function fieldErrors(error) {
  if (error.fields?.length) return error.fields;
  // A conflict's detail starts with the name of its field.
  const [, field, text] = /^(\w+): (.*)$/s.exec(error.message) ?? [];
  return [field ? { field, message: text, hint: "" } : { field: "", message: error.message, hint: "" }];
}

/**
 * Show errors at their inputs, focus the first of these inputs, and list the other errors.
 *
 * @param form element with the inputs
 * @param list element for the other errors
 * @param errors result of `fieldErrors`
 * @param inputOf maps a field name to its input, or null
 */
export function showFormErrors(form, list, errors, inputOf) {
  const others = placeFieldErrors(errors, inputOf);
  const invalid = form.querySelector("[aria-invalid]");
  invalid?.closest("details")?.setAttribute("open", "");
  invalid?.focus();
  if (!others.length) return;
  const items = others.map(({ field, message, hint }) =>
    el("li", {}, field ? el("code", { textContent: field }) : null, ` ${message} ${hint}`),
  );
  list.replaceChildren(el("ul", {}, ...items));
  list.hidden = false;
}

/** Show errors at their inputs, and return those without an input. */
export function placeFieldErrors(errors, inputOf) {
  return errors.filter(({ field, message, hint }) => {
    const input = inputOf(field);
    if (input) showFieldError(input, `${message} ${hint}`.trim());
    return !input;
  });
}

/** Remove the errors of a form. */
export function clearFormErrors(form, list) {
  for (const input of form.querySelectorAll("[aria-invalid]")) clearFieldError(input);
  list.hidden = true;
}

/** Show an error below an input, or below the row of pickers or of a list that contains it. */
export function showFieldError(input, text) {
  input.id ||= `field-${crypto.getRandomValues(new Uint32Array(1))[0]}`;
  const id = `${input.id}-error`;
  clearFieldError(input);
  input.setAttribute("aria-invalid", "true");
  input.setAttribute("aria-describedby", id);
  const last = input.closest("li")?.lastElementChild;
  (last ?? input.closest(".pick-row") ?? input).after(
    el("p", { className: "field-error", id, textContent: text }),
  );
}

export function clearFieldError(input) {
  $(`${input.id}-error`)?.remove();
  input.removeAttribute("aria-invalid");
  input.removeAttribute("aria-describedby");
}
