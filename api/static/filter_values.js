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
  const isTextOrValue =
    Array.isArray(value?.any) && value.any.length === 2 && value.any[0] === String(value.any[1]);
  if (isTextOrValue) return value.any[0];
  return typeof value === "string" ? value : JSON.stringify(value);
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
