// Read dropped and selected files, and the content of tables and sidecar files among them.

const TABLE = /\.(csv|tsv|json|jsonl|ndjson)$/i;
const SIDECAR = /\.(txt|srt|vtt|ass|ssa|ttml|sub|description)$/i;
const UNREAD = /\.(?!info\.)[^./]+\.json$/i; // of a video: clip.live_chat.json, clip.comments.json
const ARCHIVE = /\.(zip|tar|tar\.gz|tgz)$/i;
const MAX_TEXT_BYTES = 32 * 2 ** 20;
const PARALLEL = 16;

const contents = new WeakMap(); // file → promise of its content in Base64

/** List an input's files, with their paths in the selected folder. */
export function filesOfInput(input) {
  return Array.from(input.files, (file) => ({ path: file.webkitRelativePath || file.name, file }));
}

/** List dropped files and those in dropped folders. Call it during the event, after which the transfer is empty. */
export async function filesOfDrop(transfer) {
  const items = [...transfer.items].filter((item) => item.kind === "file");
  const entries = items.map((item) => item.webkitGetAsEntry());
  const files = items.map((item) => item.getAsFile());
  const found = [];
  for (const [index, entry] of entries.entries()) {
    if (entry?.isDirectory) await readFolder(entry, found);
    else if (files[index]) found.push({ path: files[index].name, file: files[index] });
  }
  return found;
}

/** Whether a selection is a single archive, which the server unpacks. */
export const isArchive = (files) => files.length === 1 && ARCHIVE.test(files[0].path);

/** Whether the file can be a caption table or a sidecar file. */
const isText = ({ path }) => TABLE.test(path) || SIDECAR.test(path);

/**
 * Read the tables and sidecar files in a selection, as the preview expects them.
 *
 * @throws Error if a file cannot be read, or the files are too large
 */
export async function readTexts(files) {
  const paths = new Set(files.map(({ path }) => path));
  const names = new Set(
    files.filter((file) => !isText(file)).map(({ path }) => path.replace(/\.[^./]*$/, "")),
  );
  // clip.en.srt and clip.mp4.json begin with the name of clip.mp4.
  const isSidecar = ({ path }) =>
    SIDECAR.test(path) &&
    !(/\.sub$/i.test(path) && paths.has(path.replace(/\.sub$/i, ".idx"))) && // pictures
    Array.from(path.matchAll(/\./g)).some(({ index }) => names.has(path.slice(0, index)));
  const isUnread = ({ path }) =>
    UNREAD.test(path) && names.has(path.replace(UNREAD, "")) && !paths.has(path.replace(/\.json$/i, ""));
  const wanted = files.filter((each) => (TABLE.test(each.path) && !isUnread(each)) || isSidecar(each));
  const bytes = wanted.reduce((sum, { file }) => sum + file.size, 0);
  if (bytes > MAX_TEXT_BYTES)
    throw new Error("The tables and sidecar files are larger than 32 MiB. Select fewer.");
  const texts = [];
  const queue = [...wanted];
  const read = async () => {
    for (let next = queue.pop(); next; next = queue.pop()) {
      texts.push({ path: next.path, content: await readBase64(next.file) });
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, read));
  return texts;
}

function readBase64(file) {
  if (!contents.has(file)) {
    const reading = new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.addEventListener("load", () => resolve(reader.result.slice(reader.result.indexOf(",") + 1)));
      reader.addEventListener("error", () =>
        reject(
          new Error(`${file.name} was changed, moved or deleted since you selected it. Select it again.`),
        ),
      );
      reader.readAsDataURL(file);
    });
    contents.set(file, reading);
    reading.catch(() => contents.delete(file));
  }
  return contents.get(file);
}

async function readFolder(folder, found) {
  const reader = folder.createReader();
  for (;;) {
    // A call returns at most 100 entries.
    const entries = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!entries.length) return;
    for (const entry of entries) {
      if (entry.isDirectory) await readFolder(entry, found);
      else found.push({ path: entry.fullPath.slice(1), file: await fileOf(entry) });
    }
  }
}

const fileOf = (entry) => new Promise((resolve, reject) => entry.file(resolve, reject));
