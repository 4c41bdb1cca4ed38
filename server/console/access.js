// What the key may see. A part that the server has refused it is not shown and not asked for again, until there is another key.
import { $ } from "./dom.js";

const kParts = { metrics: ["load"], adapters: ["adapters", "events"], models: ["playground"] };  // elements by part
const denied = new Set();
let listeners = [];

export const isDenied = (part) => denied.has(part);
export const onAccessChange = (listener) => listeners.push(listener);

function show() {
  for (const [part, ids] of Object.entries(kParts)) {
    for (const id of ids) {
      $(id).hidden = denied.has(part);
      document.querySelector(`nav a[href="#${id}"]`)?.toggleAttribute("hidden", denied.has(part));
    }
  }
  const hidden = [denied.has("metrics") && "load and traffic (metrics)", denied.has("adapters") && "adapters (adapters:read)", denied.has("models") && "models (generate)"];
  const names = hidden.filter(Boolean);
  $("access-note").hidden = names.length === 0;
  $("access-note").textContent = `Not for this key's scopes: ${names.join(", ")}.`;
}

// Whether the error says that the key may not see the part; then it is hidden.
export function isRefusal(part, error) {
  if (error.status !== 403) return false;
  if (!denied.has(part)) {
    denied.add(part);
    show();
  }
  return true;
}

export function accessAnew() {
  denied.clear();
  show();
  listeners.forEach((listener) => listener());
}
