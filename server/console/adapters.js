// The list of adapters and what can be done with each.
import { isDenied, isRefusal } from "./access.js";
import { call, get } from "./api.js";
import { $, ask, bytesText, chosenOption, el, newPill, notify, notifyError, numberText, options } from "./dom.js";
import { reportElement } from "./report.js";

const kPageSize = 200;
const kTones = { resident: "good", loading: "accent", damaged: "bad", draining: "warn" };
const pathOf = (name, action = "") => `/v1/adapters/${encodeURIComponent(name)}${action}`;
const shortGeneration = (generation) => generation.slice(0, 12);
const timeText = (seconds) => new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "short" });
const mixText = (terms) => terms.map(({ name, scale }) => `${scale} ${name}`).join(" + ");

let adapters = [];

// Runs an action of a row, once at a time. The button stays enabled: the focus comes back to it from the dialog.
async function run(button, action) {
  if (button.getAttribute("aria-busy") === "true") return;
  button.setAttribute("aria-busy", "true");
  try {
    const done = await action();
    if (done) notify("good", done);
  } catch (error) {
    notifyError(error);
  } finally {
    button.removeAttribute("aria-busy");
    refreshAdapters();
  }
}

async function activate(adapter) {
  const pin = el("input", { type: "checkbox", checked: adapter.pinned });
  const wanted = await ask({
    title: `Activate ${adapter.id}`, confirm: "Activate",
    body: [
      ...options("mode", [
        ["unmerged", "Unmerged", "on the device, beside the base; any mix of adapters shares a step"],
        ["auto", "Auto", "part of the weights while it dominates the traffic"],
        ["merged", "Merged", "part of the weights while all rows of a step belong to it"],
      ], adapter.mode === "none" ? "unmerged" : adapter.mode),
      el("label", { class: "check" }, pin, " keep it on the device"),
    ],
    read: () => ({ mode: chosenOption("mode"), pin: pin.checked }),
  });
  if (!wanted) return null;
  const now = await call("POST", pathOf(adapter.id, "/activate"), wanted);
  return `${now.id} is ${now.state}, ${now.mode}${now.pinned ? ", pinned" : ""}`;
}

async function deactivate(adapter) {
  const now = await call("POST", pathOf(adapter.id, "/deactivate"));
  return `${now.id} may leave the device`;
}

async function rollBack(adapter) {
  const past = [...adapter.history].reverse();
  const generation = await ask({
    title: `Roll back ${adapter.id}`, confirm: "Roll back",
    body: options("generation",
      past.map((one) => [one.generation, shortGeneration(one.generation), `${one.adapters ? `${mixText(one.adapters)}, ` : ""}until ${timeText(one.until)}`]),
      past[0].generation),
    read: () => chosenOption("generation"),
  });
  if (!generation) return null;
  const now = await call("POST", pathOf(adapter.id, "/rollback"), { generation });
  return `${now.id} is ${shortGeneration(now.generation)} again`;
}

async function remove(adapter) {
  const mode = await ask({
    title: `Delete ${adapter.id}?`, confirm: "Delete", danger: true,
    body: options("mode", [
      ["drain", "Let its requests end", `${numberText(adapter.active_requests)} are running`],
      ["now", "End its requests at once", "they finish with adapter_removed"],
    ], "drain"),
    read: () => chosenOption("mode"),
  });
  if (!mode) return null;
  const gone = await call("DELETE", `${pathOf(adapter.id)}?mode=${mode}`);
  return gone.in_flight > 0 ? `${gone.id} is deleted; ${gone.in_flight} requests still run` : `${gone.id} is deleted`;
}

async function validate(adapter) {
  const report = await call("POST", pathOf(adapter.id, "/validate"));
  await ask({ title: adapter.id, body: [reportElement(report)] });
  return null;
}

function rowOf(adapter, onTry) {
  const button = (text, action, label) => {
    const element = el("button", { type: "button", class: "small", "aria-label": `${label} ${adapter.id}` }, text);
    element.addEventListener("click", () => run(element, () => action(adapter)));
    return element;
  };
  const tryIt = el("button", { type: "button", class: "small", "aria-label": `Try ${adapter.id} in the playground`, onclick: () => onTry(adapter.id) }, "Try");
  const isActive = adapter.mode !== "none" || adapter.pinned;
  const remover = button("Delete…", remove, "Delete");
  remover.classList.add("remove");
  const actions = adapter.state === "draining" ? [] : [tryIt, button("Activate…", activate, "Activate"), isActive ? button("Deactivate", deactivate, "Deactivate") : null,
    adapter.history.length > 0 ? button("Roll back…", rollBack, "Roll back") : null, adapter.adapters ? null : button("Check", validate, "Check"), remover];
  const waiting = adapter.waiting_requests > 0 ? `, ${adapter.waiting_requests} waiting` : "";
  return el("tr", { "data-adapter": adapter.id },
    el("td", { class: "name" }, adapter.id, adapter.adapters ? el("small", {}, mixText(adapter.adapters)) : "",
      adapter.problem ? el("small", {}, adapter.problem) : ""),
    el("td", { class: "state" }, newPill(adapter.state, kTones[adapter.state]), " ",
      adapter.mode === "none" ? "" : newPill(adapter.mode, "accent"), " ", adapter.pinned ? newPill("pinned") : ""),
    el("td", { "data-label": "Rank" }, adapter.adapters ? "mix" : numberText(adapter.rank), el("small", {}, `${numberText(adapter.modules)} modules`)),
    el("td", { "data-label": "Memory" }, bytesText(adapter.bytes), el("small", {}, adapter.tier === "gpu" ? "on the device" : adapter.tier === "ram" ? "in host memory" : "on disk")),
    el("td", { "data-label": "Requests" }, `${numberText(adapter.active_requests)}${waiting}`),
    el("td", { "data-label": "Generation" }, el("span", { class: "mono", title: adapter.generation }, shortGeneration(adapter.generation)),
      el("small", {}, timeText(adapter.created))),
    el("td", { class: "acts" }, el("div", { class: "actions" }, actions)));
}

let onTryAdapter = () => {};
let rows = new Map();  // name -> {text, element}

// A row that has not changed stays as it is, and so does one with the pointer down on it, whose click would be lost: it is put right the next time.
function rowFor(adapter) {
  const text = JSON.stringify(adapter);
  const old = rows.get(adapter.id);
  if (old && (old.text === text || old.element.matches(":active"))) return old;
  const element = rowOf(adapter, onTryAdapter);
  if (old?.element.contains(document.activeElement)) {
    const label = document.activeElement.getAttribute("aria-label");
    queueMicrotask(() => [...element.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === label)?.focus());
  }
  return { text, element };
}

function show() {
  rows = new Map(adapters.map((adapter) => [adapter.id, rowFor(adapter)]));
  const wanted = [...rows.values()].map(({ element }) => element);
  const body = $("adapter-rows");
  if (wanted.length !== body.children.length || wanted.some((element, i) => element !== body.children[i])) {
    for (const child of [...body.children]) if (!wanted.includes(child)) child.remove();
    wanted.forEach((element, i) => { if (body.children[i] !== element) body.insertBefore(element, body.children[i] ?? null); });
  }
  $("adapters-empty").hidden = adapters.length > 0;
}

let refreshing = null;
export function refreshAdapters() {
  if (isDenied("adapters")) return null;
  refreshing ??= (async () => {
    try {
      const all = [];
      for (let page = { has_more: true }; page.has_more;) {
        const after = all.length > 0 ? `&after=${encodeURIComponent(all.at(-1).id)}` : "";
        page = await get(`/v1/adapters?limit=${kPageSize}${after}`);
        all.push(...page.data);
        if (page.data.length === 0) break;
      }
      adapters = all;
      show();
    } catch (error) {
      if (!isRefusal("adapters", error) && error.code !== "unreachable" && error.status !== 503 && error.status !== 401) notifyError(error);
    } finally {
      refreshing = null;
    }
  })();
  return refreshing;
}

export function startAdapters({ onTry }) {
  onTryAdapter = onTry;
  setInterval(() => { if (!document.hidden) refreshAdapters(); }, 3000);
}
