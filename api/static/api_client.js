// Call the HTTP API. Errors contain the server's problem details.

import { servicePath } from "./service_paths.js";

const CHANGE_SEQUENCE = "Cinestrata-Change-Sequence";

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || "The request failed.");
    this.status = status;
    this.title = body.title || "";
    this.fields = body.errors || [];
  }
}

export async function api(path, options) {
  return readBody(await request(path, options));
}

/** Send a JSON document. */
export const sendJson = (path, document, { method = "POST", headers, ...options } = {}) =>
  api(path, {
    ...options,
    method,
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(document),
  });

/** Read a page of a list with a Link header; returns its entries, and the next page's cursor or null. */
export async function readPage(path) {
  const response = await request(path);
  const link = /<\?([^>]*)>;\s*rel="next"/.exec(response.headers.get("Link") ?? "");
  const next = link && new URLSearchParams(link[1]).get("cursor");
  return { entries: await readBody(response), next };
}

/**
 * Read a resource that has an entity tag.
 *
 * @param tag entity tag of the caller's version, or null
 * @returns {Promise<{body: object, tag: string} | null>} null if the caller has the current version
 */
export async function readIfChanged(path, tag) {
  // The browser's cache would turn 304 into 200 with the cached body.
  const headers = tag ? { "If-None-Match": tag } : {};
  const response = await request(path, { headers, cache: "no-store" });
  if (response.status === 304) return null;
  return { body: await readBody(response), tag: response.headers.get("ETag") };
}

/** Send a request. Searches include this tab's edits: each edit's number is sent back with later requests. */
export async function request(path, options) {
  try {
    const headers = new Headers(options?.headers);
    const edit = Number(sessionStorage.getItem(CHANGE_SEQUENCE));
    if (edit) headers.set(CHANGE_SEQUENCE, edit);
    const response = await fetch(servicePath(path), { ...options, headers });
    const written = Number(response.headers.get(CHANGE_SEQUENCE));
    if (written > edit) sessionStorage.setItem(CHANGE_SEQUENCE, written);
    return response;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "No response", detail: "The server doesn't respond. Is it running?" });
  }
}

async function readBody(response) {
  const body = await response.json().catch(() => ({ detail: response.statusText }));
  return requireSuccess(response.status, body);
}

/** Send a form and report the upload's progress, which fetch does not support. */
export function upload(path, form, headers, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", servicePath(path));
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress(event.loaded, event.total);
    });
    request.addEventListener("error", () =>
      reject(
        new Problem(0, { detail: "The connection was interrupted. Nothing was added; send the form again." }),
      ),
    );
    request.addEventListener("load", () => {
      try {
        resolve(requireSuccess(request.status, parseBody(request)));
      } catch (error) {
        reject(error);
      }
    });
    request.send(form);
  });
}

function parseBody(request) {
  try {
    return JSON.parse(request.responseText);
  } catch {
    return { detail: request.statusText };
  }
}

function requireSuccess(status, body) {
  if (status === 401) {
    location.assign(servicePath(`/login?next=${encodeURIComponent(location.pathname + location.search)}`));
  }
  if (status < 200 || status > 299) throw new Problem(status, body);
  return body;
}
