// Format numbers, times and sizes.

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = count;
  let power = 0;
  while (value >= 1000 && power < units.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${power && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[power]}`;
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** Format a position in a video: 0:40, 1:02:05. */
export function clock(seconds) {
  const whole = Math.floor(seconds);
  const hours = Math.floor(whole / 3600);
  const minutes = Math.floor(whole / 60) % 60;
  const prefix = hours ? `${hours}:${String(minutes).padStart(2, "0")}` : minutes;
  return `${prefix}:${String(whole % 60).padStart(2, "0")}`;
}

export const timeRange = ({ start, end }) => `${clock(start)}–${clock(end)}`;

export function timeAgo(time) {
  const seconds = (Date.now() - new Date(time)) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 5400) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(time).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export const count = (number, one, many = `${one}s`) =>
  `${number.toLocaleString()} ${number === 1 ? one : many}`;

/** A percentage with a no-break space. */
export const percent = (fraction, digits = 1) => `${(100 * fraction).toFixed(digits)}\u00a0%`;

/** Format a percentage with one decimal below 10 % and none above. */
export const roundPercent = (fraction) => percent(fraction, fraction < 0.1 ? 1 : 0);

export const shortId = (id) => (id || "").slice(0, 10);

/** Format forgetting in points of Recall@1; a negative value is a gain. */
export const points = (fraction) =>
  (Math.abs(fraction) < 0.0005 ? 0 : 100 * fraction).toFixed(1).replace("-", "−");

/** Rate a loss in recall with the name of a color. */
export function lossRating(fraction) {
  if (fraction <= 0.005) return "good";
  return fraction <= 0.03 ? "warn" : "bad";
}
