// The form that adds videos: file selection, preview, upload, and creation of the task.

import { api, Problem, sendJson, upload } from "./api_client.js";
import { $, announce, el, makeClosable, moveFocus, restoreFocus, setText } from "./dom.js";
import {
  clearFieldError,
  clearFormErrors,
  fieldErrors,
  placeFieldErrors,
  showFieldError,
  showFormErrors,
} from "./form_errors.js";
import { bytes, count, percent } from "./formatting.js";
import { isPermitted } from "./permissions.js";
import { filesOfDrop, filesOfInput, isArchive, readTexts } from "./uploads/selected_files.js";
import { forgetExpiredUploads, startedUpload } from "./uploads/tus_client.js";
import { drawArchive, drawMessage, drawPreview } from "./uploads/upload_preview.js";
import { progressView } from "./uploads/upload_progress.js";
import { UploadQueue } from "./uploads/upload_queue.js";

const PREVIEW_DELAY_MILLISECONDS = 300;
const MAX_DOMAINS = 100; // newest domains that the form offers; each domain's page leads to the form, too

const selected = new Map(); // path → selected file
let table = null; // the file of the caption table, if it is selected alone
let encoding = "utf-8";
let preview = null; // of the current selection; null while it is computed
let previewRequest = null; // its AbortController
let previewTimer = 0;
let queue = null; // the upload of the previewed videos
let isSending = false;
let idempotencyKey = "";
let notifyAdded = async () => {};

export function setUpAddDomainForm(onAdded) {
  notifyAdded = onAdded;
  forgetExpiredUploads();
  $("add").addEventListener("click", () => openUploadForm());
  makeClosable($("dialog"));
  setUpSelection();
  $("form").addEventListener("input", (event) => {
    clearFieldError(event.target);
    if (event.target.type !== "file") invalidate();
  });
  $("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    clearErrors();
    if (requireFields()) await start();
  });
  $("pause").addEventListener("click", () => (isSending ? queue.pause() : start()));
  $("stop").addEventListener("click", cancel);
  $("edit").addEventListener("click", () => {
    queue = null; // the stored bytes stay, and are found again when the upload starts
    invalidate();
  });
  addEventListener("beforeunload", (event) => {
    if (isSending) event.preventDefault();
  });
  openForDomain();
}

function setUpSelection() {
  const drop = $("drop");
  $("f-into").addEventListener("change", invalidate);
  for (const id of ["f-files", "f-folder"]) {
    $(id).addEventListener("change", (event) => {
      addFiles(filesOfInput(event.target));
      event.target.value = ""; // the same files can be selected again
    });
  }
  $("f-table").addEventListener("change", (event) => {
    table = filesOfInput(event.target)[0] ?? null;
    event.target.value = "";
    invalidate();
  });
  $("clear").addEventListener("click", () => {
    clearSelection();
    $("f-files").focus();
  });
  // A file that is dropped outside the area would replace the page.
  for (const type of ["dragover", "drop"])
    $("dialog").addEventListener(type, (event) => event.preventDefault());
  drop.addEventListener("dragover", () => drop.classList.add("over"));
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    drop.classList.remove("over");
    if (queue) return;
    drawMessage($("preview"), "Reading the folders …");
    try {
      addFiles(await filesOfDrop(event.dataTransfer));
    } catch {
      drawMessage($("preview"), "The browser can't read these files. Select them again.");
    }
  });
}

/** Open the form for the domain in the address; a domain's page links to it. */
function openForDomain() {
  const into = new URLSearchParams(location.search).get("into");
  if (!into || !isPermitted("ingest")) return;
  history.replaceState(null, "", location.pathname); // a reload must not open the form again
  openUploadForm(into);
}

/** @param into ID of the domain to append to; default: the last selection */
export function openUploadForm(into) {
  if (!queue) {
    clearErrors();
    listDomains(into);
  }
  $("dialog").showModal();
  if (!queue) $("f-files").focus();
}

async function listDomains(into) {
  const chosen = into ?? $("f-into").value;
  const newest = `/tasks?kind=domain&state=ready&sort=-learned&limit=${MAX_DOMAINS}`;
  const domains = (await api(newest).catch(() => [])).filter(acceptsAppends).reverse();
  if (chosen && !domains.some(({ id }) => id === chosen)) {
    const task = await api(`/tasks/${encodeURIComponent(chosen)}`).catch(() => null);
    if (task && acceptsAppends(task)) domains.unshift(task);
  }
  const options = domains.map(({ id, name }) =>
    el("option", { value: id, textContent: `Append to ${name}` }),
  );
  $("f-into").replaceChildren(el("option", { value: "", textContent: "New domain" }), ...options);
  $("f-into").value = domains.some(({ id }) => id === chosen) ? chosen : "";
  if (into) invalidate();
}

/** Whether a task is a learned domain; a deleted one has no slug. */
const acceptsAppends = ({ state, into, slug }) => state === "ready" && !into && slug !== null;

function addFiles(files) {
  for (const each of files) selected.set(each.path, each);
  invalidate();
}

function clearSelection() {
  selected.clear();
  table = null;
  encoding = "utf-8";
  invalidate();
}

/** Discard the preview, and compute it again once the form has not changed for a moment. */
function invalidate() {
  const into = $("f-into").value;
  for (const node of $("form").querySelectorAll(".new-domain")) node.hidden = Boolean(into);
  preview = null;
  idempotencyKey = newKey();
  previewRequest?.abort();
  clearTimeout(previewTimer);
  const hasFiles = selected.size > 0;
  $("preview").hidden = !hasFiles && !table;
  showControls();
  if (!hasFiles) drawMessage($("preview"), table ? `Caption table: ${table.path}. Select the videos.` : "");
  else if (isArchive([...selected.values()]) && !table) drawArchive($("preview"), [...selected.values()][0]);
  else previewTimer = setTimeout(updatePreview, PREVIEW_DELAY_MILLISECONDS);
}

async function updatePreview() {
  const request = new AbortController();
  previewRequest = request;
  drawMessage($("preview"), `Checking ${count(selected.size, "file")} …`);
  try {
    const body = await previewBody();
    if (request.signal.aborted) return;
    const answer = await sendJson("/uploads/preview", body, { signal: request.signal });
    if (request.signal.aborted) return;
    preview = answer;
    showPreview();
  } catch (error) {
    if (!request.signal.aborted) drawMessage($("preview"), error.message);
  }
  showControls();
}

async function previewBody() {
  const files = [...selected.values()];
  const others = files.filter(({ path }) => path !== table?.path);
  const texts = await readTexts(table ? [...others, table] : files);
  return {
    ...destination(),
    files: files.map(({ path, file }) => ({ path, size: file.size, upload: startedUpload(path, file) })),
    texts,
    table: table?.path ?? null,
    encoding,
    captions_from_names: $("f-names").checked,
  };
}

/** Fields of the task that do not depend on the files. */
function destination() {
  const into = $("f-into").value;
  if (into) return { into };
  const method = $("f-method").value;
  const backbone = $("f-backbone").value || null;
  return { name: $("f-name").value || null, method, settings: parseSettings(), backbone };
}

function parseSettings() {
  const text = $("f-settings").value.trim();
  if (!text) return null;
  try {
    const value = JSON.parse(text);
    if (value && typeof value === "object" && !Array.isArray(value)) return value;
  } catch {
    // Reported below.
  }
  showFieldError($("f-settings"), 'The value is not a JSON object. Enter an object such as {"epochs": 5}.');
  throw new Error("The settings are not a JSON object.");
}

function showPreview() {
  const problems = placeFieldErrors(preview.problems, inputOf);
  drawPreview($("preview"), { ...preview, problems }, encoding, (name) => {
    encoding = name;
    moveFocus($("preview")); // the pressed button is replaced
    invalidate();
  });
}

/** Whether all required fields are filled; marks those that are not. */
function requireFields() {
  const isNew = !$("f-into").value;
  const required = [
    [$("f-name"), "Enter a name for the domain.", isNew && !$("f-name").value],
    [$("f-files"), "Select videos, a folder, or an archive.", !selected.size],
  ];
  const missing = required.filter(([, , isMissing]) => isMissing);
  for (const [input, text] of missing) showFieldError(input, text);
  missing[0]?.[0].focus();
  return !missing.length;
}

async function start() {
  isSending = true;
  const files = [...selected.values()];
  try {
    if (isArchive(files) && !table) await sendArchive(files[0].file);
    else await sendVideos();
  } catch (error) {
    showErrors(error);
  } finally {
    isSending = false;
    showControls();
  }
}

async function sendArchive(file) {
  const into = $("f-into").value;
  const form = new FormData();
  const fields = into
    ? {}
    : {
        name: $("f-name").value,
        method: $("f-method").value,
        settings: $("f-settings").value,
        backbone: $("f-backbone").value,
      };
  for (const [name, value] of Object.entries(fields)) form.append(name, value);
  form.append("archive", file);
  showControls();
  await upload(taskPath(into), form, { "Idempotency-Key": idempotencyKey }, (sent, total) => {
    $("upload-bar").value = sent / total;
    const isSent = sent >= total;
    setText(
      $("upload-text"),
      isSent ? "Unpacking and checking the archive …" : `${bytes(sent)} of ${bytes(total)}`,
    );
  });
  await finish();
}

async function sendVideos() {
  if (!preview || preview.problems.length) return;
  queue ??= createQueue();
  showControls();
  await queue.run();
  if (!queue) return; // cancelled
  if (queue.problem) throw queue.problem;
  if (!queue.isComplete) return; // paused, cancelled, or files failed
  setText($("upload-text"), "Adding the videos …");
  const uploads = new Map(queue.items.map(({ path, id }) => [path, `upload://${id}`]));
  const { into, ...fields } = destination();
  const videos = preview.videos.map((video) => ({ ...video, uri: uploads.get(video.uri) }));
  const headers = { "Idempotency-Key": idempotencyKey };
  try {
    await sendJson(taskPath(into), { ...fields, videos }, { headers });
  } catch (error) {
    // The uploads are complete, so a corrected form sends no file again. After a lost response, the key stays the same.
    if (error instanceof Problem && error.status >= 400 && error.status < 500) queue = null;
    throw error;
  }
  queue.forget();
  await finish();
}

function createQueue() {
  const draw = progressView({ bar: $("upload-bar"), text: $("upload-text"), list: $("upload-list") });
  const files = preview.videos.map(({ uri }) => selected.get(uri));
  return new UploadQueue(files, () => {
    if (!queue) return;
    draw(queue);
    showControls();
  });
}

async function finish() {
  const name = $("f-into").value ? "The videos were" : `“${$("f-name").value}” was`;
  queue = null;
  $("form").reset();
  clearSelection();
  $("dialog").close();
  announce($("tasks-done"), `${name} added. The list of domains shows the progress.`);
  await notifyAdded();
}

async function cancel() {
  const cancelled = queue;
  queue = null;
  showControls();
  await cancelled.cancel();
  invalidate();
}

const taskPath = (into) => (into ? `/tasks/${into}/videos` : "/tasks");

/** Show the controls of the current state: selection, upload, pause. */
function showControls() {
  const isUpload = isSending || queue !== null;
  const hasFailed = queue !== null && queue.failed.length > 0;
  $("choose").disabled = isUpload;
  $("clear").hidden = isUpload || $("preview").hidden;
  $("upload").hidden = !isUpload;
  $("stop").hidden = $("pause").hidden = queue === null || queue.isComplete;
  $("edit").hidden = queue === null || isSending;
  setText($("pause"), pauseLabel(hasFailed));
  $("send").hidden = queue !== null && !queue.isComplete;
  $("send").disabled = isSending || isBlocked();
  setText($("send"), $("f-into").value ? "Append videos" : "Add domain");
  const share = queue?.total ? queue.sentBytes / queue.total : 0;
  setText($("add"), queue ? `Uploading ${percent(share, 0)}` : "Add videos");
  const next = ["pause", "send", "f-files"].map($).find((node) => !node.disabled && node.checkVisibility());
  if ($("dialog").open) restoreFocus(next ?? $("dialog").querySelector("[data-close]"));
}

function pauseLabel(hasFailed) {
  if (hasFailed && !isSending) return "Try again";
  return queue?.isPaused ? "Resume" : "Pause";
}

/** Whether the preview is missing or has problems. Without files, the button reports the missing fields. */
function isBlocked() {
  const files = [...selected.values()];
  if (!files.length || (isArchive(files) && !table)) return false;
  return !preview || preview.problems.length > 0;
}

function showErrors(error) {
  showFormErrors($("form"), $("form-errors"), fieldErrors(error), inputOf);
}

/** The input for a field of the API; null if the form has none. */
function inputOf(field) {
  const id = {
    name: "f-name",
    into: "f-into",
    method: "f-method",
    settings: "f-settings",
    backbone: "f-backbone",
    archive: "f-files",
  }[field];
  return id ? $(id) : null;
}

function clearErrors() {
  clearFormErrors($("form"), $("form-errors"));
  $("upload-bar").value = 0;
  $("upload-list").replaceChildren();
  setText($("upload-text"), "");
}

function newKey() {
  const random = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(random, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
