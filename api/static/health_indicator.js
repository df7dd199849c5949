// What every page has: the light in the header that says whether searches are answered, and the way to the box.

import { $ } from "./dom.js";

export async function watchHealth() {
  const show = async () => {
    if (document.hidden) return;
    let state = "down", text = "No answer", why = "";
    try {
      const response = await fetch("/readyz");
      const ready = await response.json();
      why = Object.entries({ ...ready.checks, ...ready.degraded }).filter(([, said]) => said !== "ok").map(([part, said]) => `${part}: ${said}`).join("\n");
      if (!ready.ready) [state, text] = why.includes("still loading") ? ["degraded", "Starting"] : ["down", "Not ready"];
      else if (Object.keys(ready.degraded).length) [state, text] = ["degraded", "Degraded"];
      else [state, text] = ["ready", "Ready"];
    } catch { /* what is shown already says it */ }
    $("health").dataset.health = state;
    $("health-text").textContent = text;
    $("health").title = why;
  };
  await show();
  setInterval(show, 10_000);
}

addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
  event.preventDefault();
  if ($("q")) { $("q").focus(); $("q").select(); } else location.assign("/");
});
