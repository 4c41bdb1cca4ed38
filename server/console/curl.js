// A request of this page as a command for a shell.
import { apiKey, urlOf } from "./api.js";
import { ask, el, notify } from "./dom.js";

const quoted = (text) => `'${text.replaceAll("'", `'\\''`)}'`;

// The key is not written into it: it would stay in the shell's history.
export function curlOf(path, body) {
  const parts = [`curl ${quoted(urlOf(path))}`, `-H 'Content-Type: application/json'`];
  if (apiKey()) parts.push(`-H "Authorization: Bearer $LORAD_KEY"`);
  return [...parts, `-d ${quoted(JSON.stringify(body))}`].join(" \\\n  ");
}

// The clipboard is there for pages of this machine and of HTTPS; elsewhere the text is shown.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    notify("good", "The command is copied.");
  } catch {
    await ask({ title: "As a command", body: [el("textarea", { readonly: true, rows: "8", class: "mono", "aria-label": "The command" }, text)] });
  }
}
