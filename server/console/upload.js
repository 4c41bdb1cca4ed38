// An adapter's files: digests, blobs, the dry run's report, then a name for it.
import { call, putBlob } from "./api.js";
import { refreshAdapters } from "./adapters.js";
import { $, bytesText, el, errorContent, notify } from "./dom.js";
import { reportElement } from "./report.js";
import { digestOf } from "./sha256.js";

const kWanted = new Set(["adapter_config.json", "adapter_model.safetensors", "adapters.safetensors"]);
const isAdapterFile = (name) => kWanted.has(name) || name.endsWith(".gguf");

let files = null;     // {FILE: DIGEST} of what is stored and fits
let n_started = 0;    // a newer choice of files ends the work on an older one

function filesOfEntry(entry) {
  if (entry.isFile) return new Promise((resolve) => { entry.file((file) => resolve([file]), () => resolve([])); });
  return new Promise((resolve) => {
    entry.createReader().readEntries(async (entries) => resolve((await Promise.all(entries.filter((e) => e.isFile).map(filesOfEntry))).flat()), () => resolve([]));
  });
}

// Files, and the name that they suggest for the adapter.
async function filesOfDrop(transfer) {
  const entries = [...transfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (entries.length === 0) return { chosen: [...transfer.files] };
  const folder = entries.find((entry) => entry.isDirectory);
  return { chosen: (await Promise.all(entries.map(filesOfEntry))).flat(), name: folder?.name };
}

function progressOf(file) {
  const bar = el("progress", { max: "1", value: "0" });
  const text = el("span", {}, "waiting");
  $("upload-progress").append(el("div", { class: "progress" }, el("strong", {}, file.name), ` ${bytesText(file.size)}, `, text, bar));
  return (what, part) => {
    text.textContent = what;
    bar.value = part;
    bar.setAttribute("aria-label", `${file.name}: ${what}`);
  };
}

async function store(file) {
  const tell = progressOf(file);
  const digest = await digestOf(file, (n) => tell("computing its digest", n / (file.size || 1)));
  await putBlob(digest, file, (n, total) => tell("uploading", n / (total || 1)));
  tell("stored", 1);
  return digest;
}

function showError(error) {
  $("upload-report").replaceChildren(el("p", { class: "notice error", role: "alert" }, el("span", {}, ...errorContent(error))));
}

async function take(all, suggested) {
  const mine = ++n_started;
  files = null;
  $("upload-progress").replaceChildren();
  $("upload-report").replaceChildren();
  $("upload-register").hidden = true;
  const chosen = all.filter((file) => isAdapterFile(file.name));
  if (chosen.length === 0) {
    showError({ code: "no_adapter", message: `expected adapter_config.json with adapter_model.safetensors or adapters.safetensors, or a .gguf file; found ${
      all.map((file) => file.name).slice(0, 5).join(", ") || "nothing"}` });
    return;
  }
  try {
    const digests = {};
    for (const file of chosen) {
      digests[file.name] = await store(file);
      if (mine !== n_started) return;
    }
    const report = await call("POST", "/v1/adapters/validate", { files: digests });
    if (mine !== n_started) return;
    $("upload-report").replaceChildren(reportElement(report));
    if (!report.fits) return;
    files = digests;
    const name = $("upload-name");
    name.value ||= suggested ?? chosen.find((file) => file.name.endsWith(".gguf"))?.name.slice(0, -5) ?? "";
    $("upload-register").hidden = false;
    name.focus();
  } catch (error) {
    if (mine === n_started) showError(error);
  }
}

async function register(event) {
  event.preventDefault();
  if (!files) return;
  const button = event.submitter ?? $("upload-register").querySelector("button");
  button.disabled = true;
  try {
    const adapter = await call("POST", "/v1/adapters", { name: $("upload-name").value, files, replace: $("upload-replace").checked });
    notify("good", `${adapter.id} is ${adapter.generation.slice(0, 12)}, ${adapter.state}`);
    files = null;
    $("upload-form").reset();
    $("upload-register").hidden = true;
    $("upload-progress").replaceChildren();
    $("upload-report").replaceChildren();
    refreshAdapters();
  } catch (error) {
    $("upload-report").querySelector(".notice")?.remove();
    $("upload-report").append(el("p", { class: "notice error", role: "alert" }, el("span", {}, ...errorContent(error))));
  } finally {
    button.disabled = false;
  }
}

export function startUpload() {
  const drop = $("drop");
  $("upload-files").addEventListener("change", (event) => take([...event.target.files]));
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    const { chosen, name } = await filesOfDrop(event.dataTransfer);
    take(chosen, name);
  });
  // What misses the target is not opened in place of the page.
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
  $("upload-form").addEventListener("submit", register);
}
