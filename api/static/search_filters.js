// Search filters. The page's address holds them as API parameters, so that a search can be shared; the form edits these
// parameters.

import { $, el } from "./dom.js";
import {
  conditionIncludes,
  conditionValues,
  dateToInstant,
  formatCondition,
  instantToDate,
  parseCondition,
  parseWhere,
  toggledCondition,
} from "./filter_values.js";

const NUMBERS = ["min_duration", "max_duration", "min_confidence", "min_score"];
const PARAMETERS = [...NUMBERS, "arrived_after", "arrived_before", "where"];
let filters = {};

/** Read the filters from an address's parameters. */
export function readFilters(parameters) {
  const present = PARAMETERS.filter((name) => parameters.get(name));
  filters = Object.fromEntries(present.map((name) => [name, parameters.get(name)]));
  fillForm();
}

/**
 * Add the filters to a request's parameters.
 *
 * @param unsupported names of filters that the request does not accept
 */
export function writeFilters(parameters, unsupported = []) {
  for (const [name, value] of Object.entries(filters)) {
    if (!unsupported.includes(name)) parameters.set(name, value);
  }
}

export const hasFilters = () => Object.keys(filters).length > 0;

/** List the values that metadata fields must have, as pairs of a field and its values, without ranges. */
export function selectedValues() {
  return Object.entries(parseWhere(filters.where))
    .map(([name, condition]) => [name, conditionValues(condition)])
    .filter(([, values]) => values.length);
}

/** Whether a filter requires a value of a metadata field. */
export function hasCondition(name, value) {
  const [, condition] = Object.entries(parseWhere(filters.where)).find(([other]) => other === name) ?? [];
  return conditionIncludes(condition, value);
}

/** Toggle whether a metadata field must have a value; texts are required in addition to the field's other texts. */
export function toggleCondition(name, value) {
  const conditions = new Map(Object.entries(parseWhere(filters.where)));
  const condition = toggledCondition(conditions.get(name), value);
  if (condition === undefined) conditions.delete(name);
  else conditions.set(name, condition);
  // Not by assignment: a field may be called __proto__.
  if (conditions.size) filters.where = JSON.stringify(Object.fromEntries(conditions));
  else delete filters.where;
  fillForm();
}

/** @param onChange called when the filters have changed */
export function setUpFilters(onChange) {
  const form = $("filter-form");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    filters = readForm();
    showFilterCount();
    $("filter").open = false;
    focusSummary();
    onChange();
  });
  // The browser's validation errors are shown like the server's, instead of in a bubble.
  const showInvalid = (event) => {
    event.preventDefault();
    showError([event.target], event.target.validationMessage);
  };
  form.addEventListener("invalid", showInvalid, true);
  form.addEventListener("input", (event) => clearError(event.target));
  $("clear-filters").addEventListener("click", () => clearFilters(onChange));
  $("add-condition").addEventListener("click", () => addCondition().querySelector("input").focus());
  $("filter").addEventListener("toggle", () => {
    if ($("filter").open && !$("conditions").children.length) addCondition();
  });
}

export function removeFilters() {
  filters = {};
  fillForm();
  showFieldErrors([]);
}

function clearFilters(onChange) {
  const hadFilters = hasFilters();
  removeFilters();
  focusSummary();
  if (hadFilters) onChange();
}

const focusSummary = () => $("filter").firstElementChild.focus();

/** Show the server's errors at the inputs of their fields; an empty list removes all errors. */
export function showFieldErrors(errors) {
  for (const input of invalidInputs()) clearError(input);
  for (const { field, message, hint } of errors) {
    const inputs = inputsOf(field.split(".")[0]);
    if (inputs.length) showError(inputs, `${message} ${hint}`.trim());
  }
}

function inputsOf(name) {
  if (name === "where") return [...$("conditions").querySelectorAll("input")];
  return [$(name)].filter((input) => input?.form === $("filter-form"));
}

const invalidInputs = () => $("filter-form").querySelectorAll("[aria-invalid]");

/** Show a message below the inputs' row, and focus the first invalid input. */
function showError(inputs, text) {
  const id = `${inputs[0].id || "conditions"}-error`;
  const message = el("p", { className: "field-error", id, textContent: text });
  for (const input of inputs) {
    clearError(input);
    input.setAttribute("aria-invalid", "true");
    input.setAttribute("aria-describedby", id);
  }
  inputs[0].closest(".two, #conditions").after(message);
  $("filter").open = true;
  invalidInputs()[0].focus();
}

function clearError(input) {
  $(input.getAttribute("aria-describedby"))?.remove();
  input.removeAttribute("aria-invalid");
  input.removeAttribute("aria-describedby");
}

function fillForm() {
  for (const name of NUMBERS) $(name).value = filters[name] ?? "";
  $("arrived_after").value = instantToDate(filters.arrived_after, 0);
  $("arrived_before").value = instantToDate(filters.arrived_before, -1); // the selected day is included
  $("conditions").replaceChildren();
  for (const [name, value] of Object.entries(parseWhere(filters.where))) {
    addCondition(name, formatCondition(value));
  }
  showFilterCount();
}

function readForm() {
  const values = {};
  for (const name of NUMBERS) if ($(name).value !== "") values[name] = $(name).value;
  if ($("arrived_after").value) values.arrived_after = dateToInstant($("arrived_after").value, 0);
  if ($("arrived_before").value) values.arrived_before = dateToInstant($("arrived_before").value, 1);
  const rows = [...$("conditions").children].map((row) =>
    [...row.querySelectorAll("input")].map((input) => input.value.trim()),
  );
  const conditions = rows.filter(([name]) => name).map(([name, value]) => [name, parseCondition(value)]);
  if (conditions.length) values.where = JSON.stringify(Object.fromEntries(conditions));
  return values;
}

function addCondition(name = "", value = "") {
  const number = $("conditions").children.length + 1;
  const row = el(
    "li",
    {},
    conditionInput(name, "place", `Field ${number}`),
    el("span", { textContent: "is", "aria-hidden": "true" }),
    conditionInput(value, "kitchen", `Value ${number}`),
  );
  const remove = el("button", {
    type: "button",
    className: "icon-button",
    textContent: "✕",
    "aria-label": `Remove condition ${number}`,
  });
  remove.addEventListener("click", () => {
    row.remove();
    $("add-condition").focus();
  });
  row.append(remove);
  $("conditions").append(row);
  return row;
}

const conditionInput = (value, placeholder, label) =>
  el("input", { type: "text", value, autocomplete: "off", placeholder, "aria-label": label });

function showFilterCount() {
  const conditions = Object.keys(parseWhere(filters.where)).length;
  const count = Object.keys(filters).length - ("where" in filters) + conditions;
  $("filter-count").textContent = count ? ` · ${count}` : "";
  $("filter").firstElementChild.toggleAttribute("data-set", count > 0);
}
