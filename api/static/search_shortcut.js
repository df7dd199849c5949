// The "/" key focuses the search box, or opens the search page.

import { $ } from "./dom.js";
import { servicePath } from "./service_paths.js";

addEventListener("keydown", (event) => {
  const hasModifier = event.ctrlKey || event.metaKey || event.altKey;
  if (event.key !== "/" || hasModifier || event.target.closest("input, textarea, select, dialog")) return;
  event.preventDefault();
  if ($("q")) {
    $("q").focus();
    $("q").select();
  } else {
    location.assign(servicePath("/"));
  }
});
