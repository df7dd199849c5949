// Calls of the HTTP API. Errors contain the problem details of the server.

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || "The request failed.");
    this.status = status;
    this.title = body.title || "";
    this.fields = body.errors || [];
  }
}

export async function api(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { title: "No answer", detail: "The server does not answer. Is it running?" });
  }
  const body = await response.json().catch(() => ({ detail: response.statusText }));
  return requireSuccess(response.status, body);
}

/** Send a form and report the progress of the upload, which fetch does not support. */
export function upload(path, form, headers, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress(event.loaded, event.total);
    });
    request.addEventListener("error", () =>
      reject(new Problem(0, { detail: "The connection broke. Nothing was added; send the form again." })),
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
  if (status === 401) location.assign("/login");
  if (status < 200 || status > 299) throw new Problem(status, body);
  return body;
}
