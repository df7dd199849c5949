// The API reference: open the operation, model or error in the address.

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
