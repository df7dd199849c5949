// The reference of the API: an operation, model or error that a link names is opened.

import { watchHealth } from "./health_indicator.js";

function openTarget() {
  const target = document.getElementById(location.hash.slice(1));
  const folded = target?.closest("details");
  if (folded) folded.open = true;
  target?.scrollIntoView();
}

addEventListener("hashchange", openTarget);
openTarget();
watchHealth();
