// Elements and numbers as people read them. Text goes in as text: nothing here makes markup of data.

export const $ = (id) => document.getElementById(id);

// el("p", {class: "hint", onclick: f, hidden: true}, "text", child, ...)
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

export function pill(element, text, tone = "") {
  element.textContent = text;
  element.className = `pill ${tone}`.trim();
  return element;
}
export const newPill = (text, tone) => pill(el("span"), text, tone);

export function bytesText(n) {
  if (!(n > 0)) return "0 B";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(units.length - 1, Math.floor(Math.log2(n) / 10));
  const value = n / 1024 ** power;
  return `${value >= 100 || power === 0 ? value.toFixed(0) : value.toFixed(1)} ${units[power]}`;
}

export function numberText(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return `${(value / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(value / 1e3).toFixed(1)} k`;
  if (size >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(1);
}

// Above the sections, until it is closed; an error stays with its code.
export function notify(tone, ...content) {
  const box = el("p", { class: `notice ${tone}` }, el("span", { class: "grow" }, ...content));
  box.append(el("button", { type: "button", "aria-label": "Close this message", onclick: () => box.remove() }, "✕"));
  const notices = $("notices");
  notices.append(box);
  while (notices.children.length > 4) notices.firstChild.remove();
  if (tone !== "error") setTimeout(() => box.remove(), 6000);
}
export function errorContent(error) {
  const where = error.param ? ` (${error.param})` : "";
  return [el("code", {}, error.code ?? "error"), ` ${error.message}${where}`];
}
export const notifyError = (error) => notify("error", ...errorContent(error));

// Asks in the page's dialog; resolves to what read() gives when it is confirmed, else to null. It stays open while check(what was read) gives a reason
// against it.
export function ask({ title, body, confirm, danger = false, read = () => true, check }) {
  const dialog = $("dialog"), ok = $("dialog-ok"), problem = $("dialog-problem");
  $("dialog-title").textContent = title;
  $("dialog-body").replaceChildren(...body);
  problem.hidden = true;
  ok.hidden = !confirm;
  ok.textContent = confirm ?? "";
  ok.className = danger ? "danger" : "primary";
  $("dialog-cancel").textContent = confirm ? "Cancel" : "Close";
  dialog.returnValue = "cancel";
  dialog.querySelector("form").onsubmit = !check ? null : async (event) => {
    event.preventDefault();
    if (ok.getAttribute("aria-busy") === "true") return;
    ok.setAttribute("aria-busy", "true");
    const reason = await check(read());
    ok.removeAttribute("aria-busy");
    problem.textContent = reason ?? "";
    problem.hidden = !reason;
    if (!reason && dialog.open) dialog.close("ok");
  };
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      resolve(dialog.returnValue === "ok" ? read() : null);
      $("dialog-body").replaceChildren();
    }, { once: true });
  });
}

// One of several, as radio buttons: [[value, label, hint], ...].
export function options(name, entries, chosen) {
  return entries.map(([value, label, hint]) => el("label", { class: "option" },
    el("input", { type: "radio", name, value, checked: value === chosen }),
    el("span", {}, label, hint ? el("small", {}, hint) : "")));
}
export const chosenOption = (name) => $("dialog-body").querySelector(`input[name="${name}"]:checked`)?.value;
