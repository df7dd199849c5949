// Convert metadata between the API and inputs.

/** Format a value for an input. Texts that would be read as JSON are quoted. */
export function formatMetadata(value) {
  if (typeof value !== "string") return JSON.stringify(value);
  return typeof parseJson(value) === "undefined" ? value : JSON.stringify(value);
}

/** Parse an input. An unchanged text keeps the previous value. */
export function parseMetadata(text, previous) {
  if (previous !== undefined && text === formatMetadata(previous)) return previous;
  const trimmed = text.trim();
  return parseJson(trimmed) ?? trimmed;
}

/** Build the JSON Merge Patch (RFC 7396) that turns one object into another. */
export function metadataPatch(before, after) {
  const removed = Object.keys(before).filter((name) => !(name in after));
  const patch = Object.fromEntries(removed.map((name) => [name, null]));
  for (const [name, value] of Object.entries(after)) {
    if (JSON.stringify(value) === JSON.stringify(before[name])) continue;
    patch[name] = isObject(value) && isObject(before[name]) ? metadataPatch(before[name], value) : value;
  }
  return patch;
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
