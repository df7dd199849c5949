// Calls to the API. An error carries the problem that the server described.

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
  return settled(response.status, body);
}

/** Send a form; fetch cannot tell how much of an upload has gone out. */
export function upload(path, form, headers, progress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => event.lengthComputable && progress(event.loaded, event.total));
    request.addEventListener("error", () => reject(new Problem(0, { detail: "The connection broke. Nothing was added; send it again." })));
    request.addEventListener("load", () => {
      let body = {};
      try { body = JSON.parse(request.responseText); } catch { body = { detail: request.statusText }; }
      try { resolve(settled(request.status, body)); } catch (error) { reject(error); }
    });
    request.send(form);
  });
}

function settled(status, body) {
  if (status === 401) location.assign("/login");
  if (status < 200 || status > 299) throw new Problem(status, body);
  return body;
}
