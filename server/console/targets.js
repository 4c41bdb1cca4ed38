// Who may answer in the playground: the base, the adapters, and mixes of them that are made here.
import { get } from "./api.js";
import { isDenied, isRefusal } from "./access.js";
import { $, el } from "./dom.js";

const kBase = "";  // the key of the base model, whatever its name
let baseName = "base";
let names = [];
let mixes = new Map();  // key -> {label, body}
let chosen = new Set([kBase]);

function targets() {
  return new Map([[kBase, { label: `${baseName} (base)`, body: { model: baseName } }], ...names.map((name) => [name, { label: name, body: { model: name } }]), ...mixes]);
}
export const chosenTargets = () => [...targets()].filter(([key]) => chosen.has(key)).map(([, target]) => target);

function removeMix(key) {
  mixes.delete(key);
  chosen.delete(key);
  show();
  $("mix-text").focus();
}

function show() {
  const box = $("playground-models");
  const focused = document.activeElement?.name === "target" ? document.activeElement.value : null;
  box.replaceChildren(box.querySelector("legend"), ...[...targets()].map(([key, { label }]) => {
    const input = el("input", { type: "checkbox", name: "target", value: key, checked: chosen.has(key) });
    input.addEventListener("change", () => (input.checked ? chosen.add(key) : chosen.delete(key)));
    if (focused === key) queueMicrotask(() => input.focus());
    const chip = el("label", { class: "chip" }, input, el("span", {}, label));
    if (!mixes.has(key)) return chip;
    return el("span", { class: "chip-pair" }, chip,
      el("button", { type: "button", class: "chip-remove", "aria-label": `Remove the mix ${label}`, title: "Remove", onclick: () => removeMix(key) }, "✕"));
  }));
}

export function choose(name) {
  chosen.add(name);
  show();
}

let shown = "";
let refreshing = null;
export function refreshTargets() {
  if (isDenied("models")) return null;
  refreshing ??= (async () => {
    try {
      const models = (await get("/v1/models")).data;
      const text = models.map((model) => model.id).join("\n");
      if (text === shown) return;
      shown = text;
      baseName = models.find((model) => model.parent === null)?.id ?? baseName;
      names = models.filter((model) => model.parent !== null).map((model) => model.id);
      chosen = new Set([...chosen].filter((key) => targets().has(key)));
      show();
    } catch (error) {
      isRefusal("models", error);  // what else went wrong the overview tells
    } finally {
      refreshing = null;
    }
  })();
  return refreshing;
}

function refuse(text) {
  $("mix-error").textContent = text;
  $("mix-error").hidden = text === "";
  $("mix-text").toggleAttribute("aria-invalid", text !== "");
}

// "a:0.7, b:-0.3"; a name may itself have colons, the scale stands after the last one.
function addMix() {
  const input = $("mix-text");
  const terms = input.value.split(",").map((part) => part.trim()).filter(Boolean).map((part) => {
    const match = /^(.*):\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)$/i.exec(part);
    return match && !names.includes(part) ? { name: match[1].trim(), scale: Number(match[2]) } : { name: part, scale: 1 };
  });
  if (terms.length === 0) return refuse("Expected adapters with scales, as in a:0.7, b:-0.3.");
  const unknown = [...new Set(terms.map((term) => term.name).filter((name) => !names.includes(name)))];
  if (unknown.length > 0) return refuse(`No adapter is called ${unknown.join(", ")}. There ${names.length === 1 ? "is" : "are"} ${names.join(", ") || "none"}.`);
  refuse("");
  const label = terms.map(({ name, scale }) => `${scale} ${name}`).join(" + ");
  mixes.set(`mix ${label}`, { label, body: { model: baseName, adapters: terms } });
  input.value = "";
  choose(`mix ${label}`);
  return null;
}

export function startTargets() {
  $("mix-add").addEventListener("click", addMix);
  $("mix-text").addEventListener("input", () => refuse(""));
  $("mix-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      addMix();
    }
  });
  show();
  refreshTargets();
  setInterval(() => { if (!document.hidden) refreshTargets(); }, 5000);
}
