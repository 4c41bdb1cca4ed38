// One prompt, answered by several adapters at once, side by side.
import { events } from "./api.js";
import { $, el, errorContent, newPill, notifyError, numberText } from "./dom.js";

const kBase = "";  // the key of the base model, whatever its name
let baseName = "base";
let targets = new Map();  // key -> {label, body}: what a request's body says
let mixes = new Map();
let chosen = new Set([kBase]);
let running = null;  // AbortController

function showTargets() {
  const box = $("playground-models");
  const focused = document.activeElement?.value;
  box.replaceChildren(box.querySelector("legend"), ...[...targets, ...mixes].map(([key, { label }]) => {
    const input = el("input", { type: "checkbox", name: "target", value: key, checked: chosen.has(key) });
    input.addEventListener("change", () => (input.checked ? chosen.add(key) : chosen.delete(key)));
    if (focused !== undefined && focused === key && document.activeElement?.name === "target") queueMicrotask(() => input.focus());
    return el("label", { class: "chip" }, input, el("span", {}, label));
  }));
}

export function setBase(card) {
  baseName = card.id;
  targets.set(kBase, { label: `${baseName} (base)`, body: { model: baseName } });
  showTargets();
}

export function setAdapters(adapters) {
  const names = adapters.filter((adapter) => adapter.state !== "draining").map((adapter) => adapter.id);
  targets = new Map([[kBase, { label: `${baseName} (base)`, body: { model: baseName } }], ...names.map((name) => [name, { label: name, body: { model: name } }])]);
  chosen = new Set([...chosen].filter((key) => targets.has(key) || mixes.has(key)));
  showTargets();
}

export function tryAdapter(name) {
  chosen.add(name);
  showTargets();
  $("playground").scrollIntoView();
  $("playground-form").elements.prompt.focus({ preventScroll: true });
}

// "a:0.7, b:-0.3"; a name may itself have colons, the scale stands after the last one.
function addMix() {
  const input = $("mix-text");
  const terms = input.value.split(",").map((part) => part.trim()).filter(Boolean).map((part) => {
    const match = /^(.*):\s*([-+]?[\d.]+(?:e[-+]?\d+)?)$/i.exec(part);
    return match ? { name: match[1].trim(), scale: Number(match[2]) } : { name: part, scale: 1 };
  });
  if (terms.length === 0 || terms.some((term) => !Number.isFinite(term.scale))) {
    notifyError({ code: "bad_mix", message: "expected adapters with scales, as in a:0.7, b:-0.3" });
    return;
  }
  const label = terms.map(({ name, scale }) => `${scale} ${name}`).join(" + ");
  mixes.set(`mix ${label}`, { label, body: { model: baseName, adapters: terms } });
  chosen.add(`mix ${label}`);
  input.value = "";
  showTargets();
}

function requestOf(form, target) {
  const body = { ...target.body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  for (const name of ["max_tokens", "temperature", "top_p", "top_k", "seed"]) {
    if (form.elements[name].value !== "") body[name] = Number(form.elements[name].value);
  }
  const prompt = form.elements.prompt.value;
  if (form.elements.kind.value === "completion") return ["/v1/completions", { ...body, prompt }];
  const system = form.elements.system.value;
  const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: prompt }];
  return ["/v1/chat/completions", { ...body, messages }];
}

function answerCard(label) {
  const text = el("p", { class: "text" });
  const state = newPill("waiting");
  const footer = el("footer", {}, " ");
  const title = el("h3", {}, label);
  return { text, state, footer, title, element: el("article", { class: "answer card running", "data-target": label, "aria-busy": "true" },
    el("header", {}, title, state), text, footer) };
}

async function stream(form, target, card, signal) {
  const began = performance.now();
  let first = null, tokens = 0, promptTokens = 0, finish = "", generation = "", thought = null;
  const tell = () => {
    const seconds = (performance.now() - (first ?? began)) / 1000;
    const parts = [`${numberText(tokens)} tokens`];
    if (first !== null && tokens > 1 && seconds > 0) parts.push(`${numberText((tokens - 1) / seconds)} tokens/s`);
    if (first !== null) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
    if (promptTokens) parts.push(`prompt ${numberText(promptTokens)}`);
    if (generation) parts.push(generation.slice(0, 12));
    card.footer.textContent = parts.join(" · ");
  };
  try {
    const [path, body] = requestOf(form, target);
    for await (const { data } of events(path, { body, signal })) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw chunk.error;
      generation = chunk.adapter_generation ?? generation;
      tokens = chunk.usage?.completion_tokens ?? tokens;
      promptTokens = chunk.usage?.prompt_tokens ?? promptTokens;
      const choice = chunk.choices[0];
      if (choice) {
        const text = choice.text ?? choice.delta?.content ?? "";
        const thinking = choice.delta?.reasoning_content ?? "";
        if ((text || thinking) && first === null) {
          first = performance.now();
          card.state.textContent = "streaming";
        }
        if (thinking) {
          thought ??= card.element.insertBefore(el("p", { class: "thought" }), card.text);
          thought.append(thinking);
        }
        card.text.append(text);
        finish = choice.finish_reason ?? finish;
      }
      tell();
    }
    card.state.textContent = finish || "ended";
    card.state.className = "pill good";
  } catch (error) {
    if (error.name === "AbortError") {
      card.state.textContent = "stopped";
    } else {
      card.state.textContent = "failed";
      card.state.className = "pill bad";
      card.text.after(el("p", { class: "notice error", role: "alert" }, el("span", {}, ...errorContent(error))));
    }
  } finally {
    card.element.classList.remove("running");
    card.element.setAttribute("aria-busy", "false");
  }
}

async function run(event) {
  event?.preventDefault();
  if (running) return;
  const form = $("playground-form");
  const wanted = [...targets, ...mixes].filter(([key]) => chosen.has(key)).map(([, target]) => target);
  if (wanted.length === 0) {
    notifyError({ code: "nothing_chosen", message: "choose the base, an adapter or a mix to answer" });
    return;
  }
  running = new AbortController();
  $("playground-run").disabled = true;
  $("playground-stop").disabled = false;
  const cards = wanted.map((target) => answerCard(target.label));
  $("answers").replaceChildren(...cards.map((card) => card.element));
  await Promise.all(wanted.map((target, i) => stream(form, target, cards[i], running.signal)));
  running = null;
  $("playground-run").disabled = false;
  $("playground-stop").disabled = true;
}

export function startPlayground() {
  const form = $("playground-form");
  form.addEventListener("submit", run);
  form.addEventListener("change", () => { $("system-field").hidden = form.elements.kind.value === "completion"; });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.reportValidity()) run(event);
  });
  $("mix-add").addEventListener("click", addMix);
  $("mix-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey) {
      event.preventDefault();
      addMix();
    }
  });
  $("playground-stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("dialog").open) running?.abort(); });
}
