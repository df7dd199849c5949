// Figures as people read them.

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (count >= 1000 && power < units.length - 1) { count /= 1000; power += 1; }
  return `${power && count < 100 ? count.toFixed(1) : Math.round(count)} ${units[power]}`;
}

export function duration(seconds) {
  if (seconds < 90) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

/** A place in a video: 0:40, 1:02:05. */
export function clock(seconds) {
  const whole = Math.floor(seconds), minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
  return `${hours ? `${hours}:${String(minutes).padStart(2, "0")}` : minutes}:${String(whole % 60).padStart(2, "0")}`;
}

export const span = ({ start, end }) => `${clock(start)}–${clock(end)}`;

export function ago(time) {
  const seconds = (Date.now() - new Date(time)) / 1000;
  if (seconds < 45) return "just now";
  if (seconds < 5400) return `${Math.max(1, Math.round(seconds / 60))} min ago`;
  if (seconds < 36 * 3600) return `${Math.round(seconds / 3600)} h ago`;
  return new Date(time).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export const count = (number, one, many = `${one}s`) => `${number.toLocaleString()} ${number === 1 ? one : many}`;
export const percent = (share, digits = 1) => `${(100 * share).toFixed(digits)} %`;
export const short = (id) => (id || "").slice(0, 10);

/** Forgetting in points of Recall@1; below 0 is a gain. */
export const points = (share) => (Math.abs(share) < 0.0005 ? 0 : 100 * share).toFixed(1).replace("-", "−");
