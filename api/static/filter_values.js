// Conversion between filter inputs and parameters of the API.

/** A condition's value: a text that looks like a number or a boolean also matches that value. */
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

/** The values of a condition; none of a range. */
export function conditionValues(condition) {
  if (isTextOrValue(condition)) return [condition.any[1]];
  if (condition === null || typeof condition !== "object") return condition == null ? [] : [condition];
  const values = condition.all ?? condition.any;
  return Array.isArray(values) ? values : [];
}

/** Whether a condition names a value; a typed number stands for its text as well. */
export const conditionIncludes = (condition, value) =>
  conditionValues(condition).includes(value) || (isTextOrValue(condition) && condition.any[0] === value);

/**
 * A condition with a value in addition, or without it.
 *
 * Texts are added to the texts that a video must have; other values replace the condition, since a field of a video
 * has one of them. Undefined where no value is left.
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

/** The conditions of a `where` parameter; none if it is missing or invalid. */
export function parseWhere(where) {
  try {
    return JSON.parse(where) ?? {};
  } catch {
    return {};
  }
}

/** Midnight of a date in the local time zone as an ISO instant, a number of days later. */
export function dateToInstant(date, daysLater) {
  const [year, month, day] = date.split("-").map(Number);
  return new Date(year, month - 1, day + daysLater).toISOString();
}

/** The local date of an instant, a number of milliseconds later; empty if it is invalid. */
export function instantToDate(instant, millisecondsLater) {
  const time = new Date(instant ?? "");
  if (Number.isNaN(time.getTime())) return "";
  time.setMilliseconds(time.getMilliseconds() + millisecondsLater);
  const parts = [time.getFullYear(), time.getMonth() + 1, time.getDate()];
  return parts.map((part) => String(part).padStart(2, "0")).join("-");
}
