// Convert between filter inputs and API parameters.

/** Parse a condition; a text that looks like a number or boolean also matches that value. */
export function parseCondition(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    return text;
  }
  if (value && typeof value === "object") return value; // {"min": 1}, as the API accepts it
  return typeof value === "string" ? value : { any: [text, value] };
}

export function formatCondition(value) {
  if (isTextOrValue(value)) return value.any[0];
  return typeof value === "string" ? value : JSON.stringify(value);
}

const isTextOrValue = (condition) =>
  Array.isArray(condition?.any) &&
  condition.any.length === 2 &&
  condition.any[0] === String(condition.any[1]);

/** List a condition's values; a range has none. */
export function conditionValues(condition) {
  if (isTextOrValue(condition)) return [condition.any[1]];
  if (condition === null || typeof condition !== "object") return condition == null ? [] : [condition];
  const values = condition.all ?? condition.any;
  return Array.isArray(values) ? values : [];
}

/** Whether a condition includes a value; a typed number also includes its text. */
export const conditionIncludes = (condition, value) =>
  conditionValues(condition).includes(value) || (isTextOrValue(condition) && condition.any[0] === value);

/**
 * Add a value to a condition, or remove it; returns undefined if no value is left.
 *
 * A text joins the texts that a video must have. Any other value replaces the condition, since a field has only one.
 */
export function toggledCondition(condition, value) {
  const values = conditionValues(condition);
  if (conditionIncludes(condition, value)) {
    const rest = isTextOrValue(condition) ? [] : values.filter((other) => other !== value);
    if (rest.length < 2) return rest[0];
    return condition.any ? { any: rest } : { all: rest };
  }
  const isText = [...values, value].every((other) => typeof other === "string");
  return isText && values.length && !condition.any ? { all: [...values, value] } : value;
}

/** Parse the conditions in a `where` parameter; none if it is missing or invalid. */
export function parseWhere(where) {
  try {
    return JSON.parse(where) ?? {};
  } catch {
    return {};
  }
}

/** Convert a date, shifted by days, to the ISO instant of its local midnight. */
export function dateToInstant(date, daysLater) {
  const [year, month, day] = date.split("-").map(Number);
  return new Date(year, month - 1, day + daysLater).toISOString();
}

/** Convert an instant, shifted by milliseconds, to a local date; empty if it is invalid. */
export function instantToDate(instant, millisecondsLater) {
  const time = new Date(instant ?? "");
  if (Number.isNaN(time.getTime())) return "";
  time.setMilliseconds(time.getMilliseconds() + millisecondsLater);
  const parts = [time.getFullYear(), time.getMonth() + 1, time.getDate()];
  return parts.map((part) => String(part).padStart(2, "0")).join("-");
}
