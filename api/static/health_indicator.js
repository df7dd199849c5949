// The health indicator in the header of every page.

import { $ } from "./dom.js";
import { servicePath } from "./service_paths.js";

const REFRESH_MILLISECONDS = 10_000;

export async function watchHealth() {
  await refresh();
  setInterval(refresh, REFRESH_MILLISECONDS);
}

async function refresh() {
  if (document.hidden) return;
  const { state, text, faults } = await readHealth();
  $("health").dataset.health = state;
  $("health-text").textContent = text;
  $("health").title = faults;
}

async function readHealth() {
  let readiness;
  try {
    const response = await fetch(servicePath("/readyz"));
    readiness = await response.json();
  } catch {
    return { state: "down", text: "No response", faults: "" };
  }
  const faults = Object.entries({ ...readiness.checks, ...readiness.degraded })
    .filter(([, result]) => result !== "ok")
    .map(([part, result]) => `${part}: ${result}`)
    .join("\n");
  if (!readiness.ready) {
    const isStarting = faults.includes("still loading");
    return { state: isStarting ? "degraded" : "down", text: isStarting ? "Starting" : "Not ready", faults };
  }
  const isDegraded = Object.keys(readiness.degraded).length || readiness.checks.database !== "ok";
  if (isDegraded) return { state: "degraded", text: "Degraded", faults };
  return { state: "ready", text: "Ready", faults };
}
