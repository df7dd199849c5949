// Upload a file with the tus protocol 1.0. An interrupted upload continues where it stopped, even after the page is
// reloaded: each upload's address is stored under a fingerprint of its file.

import { Problem } from "../api_client.js";
import { servicePath } from "../service_paths.js";

const VERSION = "1.0.0";
const ROOT = servicePath("/uploads");
const PART_BYTES = 16 * 2 ** 20; // proxies limit the size of a request
const SINGLE_REQUEST_BYTES = 2 ** 20; // smaller files are sent with their creation
const SILENCE_MILLISECONDS = 45_000; // a connection that is silent for longer counts as broken
const EXPIRY_MILLISECONDS = 3 * 24 * 3600 * 1000;
const MAX_DELAY_SECONDS = 30;
const DELETION_ATTEMPTS = 6; // within 16 seconds; the server deletes the remaining uploads when they expire
const STORAGE_PREFIX = `cinestrata-upload:${servicePath("/")}:`;
const TEMPORARY = new Set([0, 408, 409, 423, 425, 429]); // 0: no response

/** The file differs from the selected one, or can no longer be read. */
export class FileChanged extends Error {}

/**
 * Send a file, and return the ID of its upload. Interrupted requests are retried until the signal aborts.
 *
 * @param onBytes called with the number of bytes sent so far
 * @param onWait called with the seconds until the next attempt and the reason, and with 0 when it begins
 */
export async function sendFile(path, file, { signal, onBytes, onWait }) {
  const upload = { path, file, signal, onBytes, address: storedAddress(path, file), offset: null };
  for (let failures = 0, farthest = 0; ; ) {
    try {
      await sendMissingBytes(upload);
      return upload.address.slice(ROOT.length + 1);
    } catch (error) {
      signal.throwIfAborted();
      if (!isTemporary(error)) throw error;
      failures = upload.offset > farthest ? 1 : failures + 1;
      farthest = Math.max(farthest, upload.offset ?? 0);
      upload.offset = null;
      const seconds = error.retryAfter || Math.min(MAX_DELAY_SECONDS, 2 ** (failures - 1));
      onWait(seconds, error.message);
      await delay(seconds, signal);
      onWait(0, "");
    }
  }
}

/** ID of an unfinished upload of a file; null if there is none. */
export function startedUpload(path, file) {
  return storedAddress(path, file)?.slice(ROOT.length + 1) ?? null;
}

/** Forget the upload of a file. */
export function forgetUpload(path, file) {
  localStorage.removeItem(fingerprint(path, file));
}

/** Delete a file's bytes on the server, which refuses until it notices that the connection has ended. */
export async function deleteUpload(path, file) {
  const address = storedAddress(path, file);
  forgetUpload(path, file);
  if (!address) return;
  for (let attempt = 0; attempt < DELETION_ATTEMPTS; attempt += 1) {
    const options = { method: "DELETE", headers: { "Tus-Resumable": VERSION } };
    const answer = await fetch(address, options).catch(() => null);
    if (answer && answer.status !== 423) return;
    await new Promise((resolve) => setTimeout(resolve, 250 * 2 ** attempt));
  }
}

/** Forget uploads that the server has deleted meanwhile. */
export function forgetExpiredUploads() {
  for (const key of Object.keys(localStorage).filter((each) => each.startsWith(STORAGE_PREFIX))) {
    if (!readEntry(key)) localStorage.removeItem(key);
  }
}

async function sendMissingBytes(upload) {
  if (upload.address && upload.offset === null) await readOffset(upload);
  if (!upload.address) await create(upload);
  while (upload.offset < upload.file.size) await appendPart(upload);
}

async function readOffset(upload) {
  try {
    const { header } = await send("HEAD", upload.address, {}, null, upload.signal);
    if (Number(header("Upload-Length")) !== upload.file.size) throw new Problem(404, {});
    setOffset(upload, header);
  } catch (error) {
    if (error.status !== 404 && error.status !== 410) throw error;
    forgetUpload(upload.path, upload.file);
    upload.address = null;
  }
}

async function create(upload) {
  const { path, file, signal, onBytes } = upload;
  const isSingle = file.size <= SINGLE_REQUEST_BYTES;
  const headers = { "Upload-Length": String(file.size), "Upload-Metadata": `filename ${encode(path)}` };
  if (isSingle) headers["Content-Type"] = "application/offset+octet-stream";
  const body = isSingle ? await readBytes(file, 0, file.size) : null;
  const { header } = await send("POST", ROOT, headers, body, signal, onBytes);
  upload.address = new URL(header("Location"), location.href).pathname;
  setOffset(upload, header);
  storeAddress(path, file, upload.address);
}

async function appendPart(upload) {
  const { file, offset, signal, onBytes } = upload;
  const body = await readBytes(file, offset, Math.min(offset + PART_BYTES, file.size));
  const headers = { "Upload-Offset": String(offset), "Content-Type": "application/offset+octet-stream" };
  const { header } = await send("PATCH", upload.address, headers, body, signal, (sent) =>
    onBytes(offset + sent),
  );
  setOffset(upload, header);
}

function setOffset(upload, header) {
  const offset = Number(header("Upload-Offset"));
  if (!(offset >= 0 && offset <= upload.file.size))
    throw new Problem(0, { detail: "The response has no valid Upload-Offset. A proxy may have changed it." });
  upload.offset = offset;
  upload.onBytes(offset);
}

async function readBytes(file, start, end) {
  try {
    const bytes = await file.slice(start, end).arrayBuffer();
    if (bytes.byteLength === end - start) return bytes;
  } catch {
    // The browser's error does not name the file.
  }
  throw new FileChanged("The file was changed, moved or deleted since you selected it. Select it again.");
}

/** Send a request; XMLHttpRequest reports the progress of a body, which fetch does not. */
function send(method, address, headers, body, signal, onSent = () => {}) {
  return new Promise((resolve, reject) => {
    signal.throwIfAborted();
    const request = new XMLHttpRequest();
    const silence = silenceTimer(request);
    const abort = () => request.abort();
    const fail = (detail) => reject(new Problem(0, { detail }));
    request.open(method, address);
    request.setRequestHeader("Tus-Resumable", VERSION);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => {
      silence.restart();
      onSent(event.loaded);
    });
    request.addEventListener("load", () => {
      if (request.status < 300) resolve({ header: (name) => request.getResponseHeader(name) });
      else reject(problemOf(request));
    });
    request.addEventListener("error", () => fail("The server doesn't respond."));
    request.addEventListener("abort", () => fail("The connection was lost."));
    request.addEventListener("loadend", () => {
      silence.stop();
      removeEventListener("offline", abort);
      signal.removeEventListener("abort", abort);
    });
    signal.addEventListener("abort", abort);
    addEventListener("offline", abort); // the browser itself waits for minutes
    request.send(body);
  });
}

function silenceTimer(request) {
  let timer = 0;
  const stop = () => clearTimeout(timer);
  const restart = () => {
    stop();
    timer = setTimeout(() => request.abort(), SILENCE_MILLISECONDS);
  };
  restart();
  return { restart, stop };
}

function problemOf(request) {
  let body = {};
  try {
    body = JSON.parse(request.responseText);
  } catch {
    // A proxy answered, or the method is HEAD.
  }
  const problem = new Problem(request.status, {
    detail: `The server responded with ${request.status}.`,
    ...body,
  });
  problem.retryAfter = Math.min(MAX_DELAY_SECONDS, Number(request.getResponseHeader("Retry-After")) || 0);
  return problem;
}

const isTemporary = (error) =>
  error instanceof Problem && (TEMPORARY.has(error.status) || error.status >= 500);

/** Wait for some seconds, or until the network is back. */
function delay(seconds, signal) {
  return new Promise((resolve, reject) => {
    const end = () => {
      clearTimeout(timer);
      removeEventListener("online", end);
      signal.removeEventListener("abort", end);
      if (signal.aborted) reject(signal.reason);
      else resolve();
    };
    const timer = setTimeout(end, seconds * 1000);
    addEventListener("online", end);
    signal.addEventListener("abort", end);
  });
}

function encode(text) {
  return btoa(String.fromCharCode(...new TextEncoder().encode(text.toWellFormed())));
}

const fingerprint = (path, file) => `${STORAGE_PREFIX}${file.size}:${file.lastModified}:${path}`;

function storedAddress(path, file) {
  return readEntry(fingerprint(path, file))?.address ?? null;
}

function storeAddress(path, file, address) {
  try {
    localStorage.setItem(fingerprint(path, file), JSON.stringify({ address, at: Date.now() }));
  } catch {
    // Storage is full or disabled: the upload continues, but not after a reload.
  }
}

function readEntry(key) {
  try {
    const entry = JSON.parse(localStorage.getItem(key));
    const isValid = entry?.address?.startsWith(`${ROOT}/upl_`) && Date.now() - entry.at < EXPIRY_MILLISECONDS;
    return isValid ? entry : null;
  } catch {
    return null;
  }
}
