// What a video must be like to be found. The page's address holds the same parameters as a call of the API, so a search
// can be shared; the form is one way to write them.

import { $, el } from "./dom.js";

const NUMBERS = ["min_duration", "max_duration", "min_confidence", "min_score"];
const NAMES = [...NUMBERS, "arrived_after", "arrived_before", "where"];
let set = {};

/** Take over what an address says. */
export function readFilters(parameters) {
  set = Object.fromEntries(NAMES.filter((name) => parameters.get(name)).map((name) => [name, parameters.get(name)]));
  fill();
}

/** Add to the parameters of a search.
 *
 * @param but those that it does not know
 */
export function writeFilters(parameters, but = []) {
  for (const [name, value] of Object.entries(set)) if (!but.includes(name)) parameters.set(name, value);
}

export const chosen = (name) => set[name];
export const filtered = () => Object.keys(set).length > 0;

/** @param changed called when others are to be applied */
export function wireFilters(changed) {
  $("filter-form").addEventListener("submit", (event) => {
    event.preventDefault();
    set = written();
    mark();
    $("filter").open = false;
    $("filter").firstElementChild.focus();
    changed();
  });
  // What the browser finds wrong is said where the server's findings are, and stays there.
  $("filter-form").addEventListener("invalid", (event) => { event.preventDefault(); accuse([event.target], event.target.validationMessage); }, true);
  $("filter-form").addEventListener("input", (event) => acquit(event.target));
  $("clear-filters").addEventListener("click", () => {
    const had = filtered();
    set = {};
    fill();
    blame([]);
    $("filter").firstElementChild.focus();
    if (had) changed();
  });
  $("add-condition").addEventListener("click", () => condition().querySelector("input").focus());
  $("filter").addEventListener("toggle", () => { if ($("filter").open && !$("conditions").children.length) condition(); });
}

/** Show what the server found wrong at the fields that it names; none: all is well again. */
export function blame(fields) {
  for (const input of wrong()) acquit(input);
  for (const { field, message, hint } of fields) {
    const name = field.split(".")[0];
    const inputs = name === "where" ? [...$("conditions").querySelectorAll("input")] : [$(name)].filter((input) => input?.form === $("filter-form"));
    if (inputs.length) accuse(inputs, `${message} ${hint}`.trim());
  }
}

const wrong = () => $("filter-form").querySelectorAll("[aria-invalid]");

/** One sentence below the row of these inputs; the first that is wrong gets the focus. */
function accuse(inputs, text) {
  const said = el("p", { className: "field-error", id: `${inputs[0].id || "conditions"}-error`, textContent: text });
  for (const input of inputs) {
    acquit(input);
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", said.id);
  }
  inputs[0].closest(".two, #conditions").after(said);
  $("filter").open = true;
  wrong()[0].focus();
}

function acquit(input) {
  $(input.getAttribute("aria-describedby"))?.remove();
  input.removeAttribute("aria-invalid");
  input.removeAttribute("aria-describedby");
}

// -- the form --------------------------------------------------------------------------------------------

function fill() {
  for (const name of NUMBERS) $(name).value = set[name] ?? "";
  $("arrived_after").value = day(set.arrived_after, 0);
  $("arrived_before").value = day(set.arrived_before, -1); // a day is searched to its end
  $("conditions").replaceChildren();
  for (const [name, value] of Object.entries(parsed(set.where))) condition(name, shown(value));
  mark();
}

function written() {
  const found = {};
  for (const name of NUMBERS) if ($(name).value !== "") found[name] = $(name).value;
  if ($("arrived_after").value) found.arrived_after = midnight($("arrived_after").value, 0);
  if ($("arrived_before").value) found.arrived_before = midnight($("arrived_before").value, 1);
  const where = {};
  for (const row of $("conditions").children) {
    const [name, value] = [...row.querySelectorAll("input")].map((input) => input.value.trim());
    if (name) where[name] = meant(value);
  }
  if (Object.keys(where).length) found.where = JSON.stringify(where);
  return found;
}

function condition(name = "", value = "") {
  const number = $("conditions").children.length + 1;
  const row = el("li", {},
    el("input", { type: "text", value: name, autocomplete: "off", placeholder: "place", "aria-label": `Field ${number}` }), el("span", { textContent: "is", "aria-hidden": "true" }),
    el("input", { type: "text", value, autocomplete: "off", placeholder: "kitchen", "aria-label": `Value ${number}` }));
  const remove = el("button", { type: "button", className: "icon-button", textContent: "✕", "aria-label": `Remove condition ${number}` });
  remove.addEventListener("click", () => { row.remove(); $("add-condition").focus(); });
  row.append(remove);
  $("conditions").append(row);
  return row;
}

function mark() {
  const count = Object.keys(set).length - ("where" in set) + Object.keys(parsed(set.where)).length;
  $("filter-count").textContent = count ? ` · ${count}` : "";
  $("filter").firstElementChild.toggleAttribute("data-set", count > 0);
}

/** A field may hold the text or the number or truth value that it looks like. */
function meant(text) {
  let value;
  try { value = JSON.parse(text); } catch { return text; }
  if (value && typeof value === "object") return value; // {"min": 1}, as the API takes it
  return typeof value === "string" ? value : { any: [text, value] };
}

function shown(value) {
  if (Array.isArray(value?.any) && value.any.length === 2 && value.any[0] === String(value.any[1])) return value.any[0];
  return typeof value === "string" ? value : JSON.stringify(value);
}

function parsed(where) {
  try { return JSON.parse(where) ?? {}; } catch { return {}; }
}

// -- days, as the reader's clock has them ----------------------------------------------------------------

function midnight(date, later) {
  const [year, month, dayOfMonth] = date.split("-").map(Number);
  return new Date(year, month - 1, dayOfMonth + later).toISOString();
}

function day(instant, later) {
  const at = new Date(instant ?? "");
  if (Number.isNaN(at.getTime())) return "";
  at.setMilliseconds(at.getMilliseconds() + later);
  return [at.getFullYear(), at.getMonth() + 1, at.getDate()].map((part) => String(part).padStart(2, "0")).join("-");
}
