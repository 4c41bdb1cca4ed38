// Fine-tuning jobs: a file with its checked lines, a job of it, its losses while it runs.
import { call, events, get, postTrainingFile } from "./api.js";
import { refreshAdapters } from "./adapters.js";
import { $, bytesText, el, errorContent, newPill, notify, notifyError, numberText } from "./dom.js";
import { LossChart } from "./losses.js";

const kTones = { running: "good", succeeded: "good", failed: "bad", cancelled: "bad", paused: "warn" };
const kActive = new Set(["validating_files", "queued", "running"]);
const kPollMs = 2000;

let file = null;        // of the server, checked
let watched = null;     // {id, chart, abort} of the job whose losses are shown
let tryAdapter = () => {};
let timer = null;

function showReport(...content) {
  $("training-report").replaceChildren(...content);
}

function reportOf(report, name) {
  const facts = `${name}: ${report.lines} lines of ${report.format}, ${report.sequences} sequences, ${numberText(report.tokens)} tokens, ${numberText(report.trained_tokens)} trained`;
  const notes = [[report.duplicates, "are the same as an earlier line"], [report.empty_answers, "have an empty answer"], [report.overlong, "are too long and are cut"],
    [report.without_end, "have no token that ends the answer"], [report.bad_lines, "cannot be used"]].filter(([n]) => n > 0);
  return [el("p", {}, facts), notes.length > 0 ? el("ul", {}, notes.map(([n, what]) => el("li", {}, `${n} ${what}`))) : "",
    report.problems.length > 0 ? el("ol", { class: "events" }, report.problems.map((problem) => el("li", {}, `line ${problem.line}: ${problem.reason}`))) : ""];
}

async function take(chosen) {
  if (!chosen) return;
  file = null;
  $("training-start").disabled = true;
  const bar = el("progress", { max: "1", value: "0", "aria-label": `uploading ${chosen.name}` });
  showReport(el("p", {}, `${chosen.name}, ${bytesText(chosen.size)}`), bar);
  try {
    const stored = await postTrainingFile(chosen, (n, total) => { bar.value = n / (total || 1); });
    const report = await call("POST", `/v1/files/${stored.id}/check`);
    showReport(...reportOf(report, chosen.name));
    if (report.bad_lines > 0 || report.sequences === 0) return;
    file = stored;
    $("training-start").disabled = false;
    const suffix = $("training-form").elements.suffix;
    suffix.value ||= chosen.name.replace(/\.[^.]*$/, "");
    suffix.focus();
  } catch (error) {
    showReport(el("p", { class: "notice error", role: "alert" }, el("span", {}, ...errorContent(error))));
  }
}

const numberIn = (form, name) => (form.elements[name].value === "" ? undefined : Number(form.elements[name].value));

async function start(event) {
  event.preventDefault();
  if (!file) return;
  const form = $("training-form");
  $("training-start").disabled = true;
  try {
    const models = await get("/v1/models");
    const base = models.data.find((model) => !model.parent);
    const job = await call("POST", "/v1/fine_tuning/jobs", {
      model: base.id, training_file: file.id, suffix: form.elements.suffix.value, init_from: form.elements.init_from.value || undefined,
      seed: numberIn(form, "seed"), lora_r: numberIn(form, "lora_r"), learning_rate: numberIn(form, "learning_rate"), validation_split: numberIn(form, "validation_split"),
      method: { type: "supervised", supervised: { hyperparameters: { n_epochs: numberIn(form, "n_epochs") ?? "auto", batch_size: numberIn(form, "batch_size") ?? "auto" } } },
    });
    notify("good", `${job.id} begins`);
    watchJob(job.id, form.elements.suffix.value);
    refreshJobs();
  } catch (error) {
    notifyError(error);
  } finally {
    $("training-start").disabled = !file;
  }
}

// Its losses as they come, from the first on.
async function watchJob(id, name) {
  if (watched?.id === id) return;
  watched?.abort.abort();
  const abort = new AbortController();
  const chart = new LossChart(`Loss of ${name}`);
  watched = { id, chart, abort };
  $("training-charts").replaceChildren(chart.element);
  try {
    for await (const { data } of events(`/v1/fine_tuning/jobs/${id}/events?stream=true`, { signal: abort.signal })) {
      if (data === "[DONE]") break;
      const told = JSON.parse(data);
      if (told.type === "metrics") chart.push(told.data);
      else if (told.level === "error") notify("error", `${name}: ${told.message}`);
    }
    if (!abort.signal.aborted) refreshAdapters();
  } catch (error) {
    if (error.name !== "AbortError") notifyError(error);
  }
}

async function change(id, verb) {
  try {
    await call("POST", `/v1/fine_tuning/jobs/${id}/${verb}`);
  } catch (error) {
    notifyError(error);
  }
  refreshJobs();
}

function rowOf(job) {
  const { step, n_steps, train_loss, valid_loss, tokens_per_s } = job.lorad;
  const name = job.fine_tuned_model ?? job.user_provided_suffix ?? "–";
  const button = (text, verb) => el("button", { type: "button", class: "quiet", onclick: () => change(job.id, verb) }, text);
  const actions = [el("button", { type: "button", class: "quiet", onclick: () => watchJob(job.id, name) }, "Losses")];
  if (kActive.has(job.status)) actions.push(button("Pause", "pause"), button("Cancel", "cancel"));
  if (job.status === "paused") actions.push(button("Resume", "resume"), button("Cancel", "cancel"));
  if (job.status === "succeeded") actions.push(el("button", { type: "button", class: "quiet", onclick: () => tryAdapter(name) }, "Try"));
  const losses = [train_loss, valid_loss].filter((loss) => loss !== null).map((loss) => loss.toFixed(3)).join(" / ");
  return el("tr", {}, el("th", { scope: "row" }, el("code", {}, job.id.slice(-8))), el("td", {}, name),
    el("td", {}, newPill(job.status.replace("_", " "), kTones[job.status]), job.error ? el("p", { class: "problem" }, job.error.message) : ""),
    el("td", {}, n_steps > 0 ? `${step} / ${n_steps}` : "–"), el("td", {}, losses || "–"), el("td", {}, tokens_per_s > 0 ? numberText(tokens_per_s) : "–"),
    el("td", {}, el("span", { class: "row end" }, actions)));
}

export async function refreshJobs() {
  clearTimeout(timer);
  const note = $("training-note");
  try {
    const { data } = await get("/v1/fine_tuning/jobs?limit=50");
    note.hidden = true;
    $("training-parts").hidden = false;
    $("training-rows").replaceChildren(...data.map(rowOf));
    $("training-empty").hidden = data.length > 0;
    if (data.some((job) => kActive.has(job.status))) timer = setTimeout(refreshJobs, kPollMs);
  } catch (error) {
    note.hidden = false;
    note.textContent = error.status === 403 ? "This key may not train (scope training:read)." : error.message;
    $("training-parts").hidden = error.status === 403 || error.status === 404 || error.status === 401;
  }
}

export function startTraining({ onTry }) {
  tryAdapter = onTry;
  const drop = $("training-drop");
  $("training-file").addEventListener("change", (event) => take(event.target.files[0]));
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  for (const kind of ["dragleave", "drop"]) drop.addEventListener(kind, () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  $("training-form").addEventListener("submit", start);
  refreshJobs();
}
