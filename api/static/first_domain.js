// Three ways to add the first domain to an empty library.

import { api } from "./api_client.js";
import { $, announce, restoreFocus, setText } from "./dom.js";
import { openFollowFolderForm } from "./follow_folder_form.js";
import { servicePath } from "./service_paths.js";

/**
 * Set up the buttons of an empty library.
 *
 * @param openUploadForm opens the upload form
 * @param refresh reads the library's state again
 */
export function setUpFirstDomain(openUploadForm, refresh) {
  $("first-upload").addEventListener("click", openUploadForm);
  $("first-folder").addEventListener("click", openFollowFolderForm);
  $("first-samples").addEventListener("click", () => createSamples(refresh));
  setText($("curl"), curlExample());
}

async function createSamples(refresh) {
  $("first-samples").disabled = true;
  setText($("samples-status"), "Drawing the videos …");
  try {
    await api("/samples", { method: "POST" });
    setText($("samples-status"), "");
    await refresh();
    announce($("tasks-done"), "The sample videos were added.");
    $("tasks-done").focus(); // the pressed button is hidden
  } catch (error) {
    setText($("samples-status"), error.message);
  } finally {
    $("first-samples").disabled = false;
    restoreFocus($("first-samples"));
  }
}

function curlExample() {
  const video = '{"uri": "clips/1.mp4", "captions": ["a taxi turns left"]}';
  return (
    `curl ${location.origin}${servicePath("/tasks")} -H 'Content-Type: application/json' \\\n` +
    `  -d '{"name": "night traffic", "videos": [${video}]}'`
  );
}
