// Upload many files, a few at a time, with pause, cancellation and progress.

import { deleteUpload, FileChanged, forgetUpload, sendFile } from "./tus_client.js";

const PARALLEL = 3; // of the six connections that a browser opens to a server
const SPEED_MILLISECONDS = 10_000; // period over which the speed is averaged

export class UploadQueue {
  /**
   * @param files selected files: path and file
   * @param onChange called after every change; states and counts are properties of the queue
   */
  constructor(files, onChange) {
    this.items = files.map(({ path, file }) => ({
      path,
      file,
      state: "waiting",
      bytes: 0,
      id: null,
      note: "",
    }));
    this.total = files.reduce((sum, { file }) => sum + file.size, 0);
    this.sentBytes = 0;
    this.sentFiles = 0;
    this.failed = [];
    this.active = new Set();
    this.isPaused = false;
    this.problem = null; // the response that ended all uploads
    this.#onChange = onChange;
  }

  #onChange;
  #controller = null;
  #next = 0;
  #samples = [];

  /** Send all files; resolves when all are sent, or the queue is paused, cancelled or refused. */
  async run() {
    this.isPaused = false;
    this.problem = null;
    this.failed = [];
    this.#samples = [];
    this.#next = 0;
    this.#controller = new AbortController();
    for (const item of this.items) if (item.state === "failed") item.state = "waiting";
    const { signal } = this.#controller;
    await Promise.all(Array.from({ length: PARALLEL }, () => this.#work(signal)));
    this.#onChange();
  }

  /** Whether every file is on the server. */
  get isComplete() {
    return this.sentFiles === this.items.length;
  }

  /** Whether all files in transfer wait for their next attempt. */
  get isWaiting() {
    return this.active.size > 0 && [...this.active].every(({ note }) => note);
  }

  /** Seconds until all bytes are sent at the current speed; null if it is unknown. */
  get remainingSeconds() {
    const speed = this.speed;
    return speed ? (this.total - this.sentBytes) / speed : null;
  }

  /** Bytes per second during the last seconds; null if it is unknown. */
  get speed() {
    const [first, last] = [this.#samples.at(0), this.#samples.at(-1)];
    return first && last.at - first.at > 500
      ? (1000 * (last.bytes - first.bytes)) / (last.at - first.at)
      : null;
  }

  pause() {
    this.isPaused = true;
    this.#controller?.abort();
    this.#onChange();
  }

  /** End all uploads, and delete the bytes that the server has. */
  async cancel() {
    this.pause();
    const items = [...this.items];
    const remove = async () => {
      for (let item = items.pop(); item; item = items.pop()) await deleteUpload(item.path, item.file);
    };
    await Promise.all(Array.from({ length: PARALLEL }, remove));
  }

  /** Forget the uploads, which a task uses now. */
  forget() {
    for (const { path, file } of this.items) forgetUpload(path, file);
  }

  async #work(signal) {
    while (!signal.aborted && this.#next < this.items.length) {
      const item = this.items[this.#next++];
      if (item.state === "waiting") await this.#send(item, signal);
    }
  }

  async #send(item, signal) {
    item.state = "sending";
    this.active.add(item);
    this.#onChange();
    try {
      item.id = await sendFile(item.path, item.file, {
        signal,
        onBytes: (bytes) => this.#count(item, bytes),
        onWait: (seconds, reason) =>
          this.#note(item, seconds ? `${reason} Next attempt in ${seconds} s.` : ""),
      });
      item.state = "sent";
      this.sentFiles += 1;
    } catch (error) {
      this.#stop(item, error, signal);
    }
    this.active.delete(item);
    this.#onChange();
  }

  #stop(item, error, signal) {
    item.note = "";
    item.state = "waiting";
    if (signal.aborted) return;
    if (error instanceof FileChanged) {
      item.state = "failed";
      item.note = error.message;
      this.failed.push(item);
    } else {
      this.problem = error; // applies to all files: a limit, or a session that has ended
      this.pause();
    }
  }

  #count(item, bytes) {
    this.sentBytes += bytes - item.bytes;
    item.bytes = bytes;
    const at = performance.now();
    this.#samples.push({ at, bytes: this.sentBytes });
    while (this.#samples[0].at < at - SPEED_MILLISECONDS) this.#samples.shift();
    this.#onChange();
  }

  #note(item, text) {
    item.note = text;
    this.#onChange();
  }
}
