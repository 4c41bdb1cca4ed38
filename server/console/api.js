// The server: paths relative to the page, so that a proxy may put all of it below a prefix.

export class ApiError extends Error {
  constructor(status, code, message, param) {
    super(message);
    Object.assign(this, { status, code, param });
  }
}

const kKeyItem = "lorad-api-key";
export const apiKey = () => sessionStorage.getItem(kKeyItem) ?? "";
export function setApiKey(key) {
  if (key) sessionStorage.setItem(kKeyItem, key);
  else sessionStorage.removeItem(kKeyItem);
}
// Null where the server takes this key, else why not. Not told to onKeyWanted().
export async function refusalOf(key) {
  try {
    const response = await send("/version", { headers: key ? { Authorization: `Bearer ${key}` } : {} });
    if (response.status !== 401) return null;
    return key ? "The server does not know this key, or it has expired." : "The server wants a key.";
  } catch (error) {
    return error.message;
  }
}

const headers = (more = {}) => (apiKey() ? { ...more, Authorization: `Bearer ${apiKey()}` } : more);

// The page is <prefix>/console.
export const urlOf = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

// Told of every answer that wants a key, or another one.
let keyWanted = () => {};
export const onKeyWanted = (listener) => {
  keyWanted = listener;
};

function errorOf(status, text) {
  if (status === 401) keyWanted();
  try {
    const { error } = JSON.parse(text);
    return new ApiError(status, error.code ?? `http_${status}`, error.message ?? "", error.param);
  } catch {
    return new ApiError(status, `http_${status}`, text.slice(0, 300) || "no answer");
  }
}

async function send(path, init) {
  try {
    return await fetch(urlOf(path), { cache: "no-store", credentials: "same-origin", ...init });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "the server does not answer");
  }
}

export async function get(path, { raw = false, signal } = {}) {
  const response = await send(path, { headers: headers(), signal });
  const text = await response.text();
  if (!response.ok) throw errorOf(response.status, text);
  return raw ? text : JSON.parse(text);
}

export async function call(method, path, body) {
  const init = { method, headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }) };
  if (body !== undefined) init.body = JSON.stringify(body);
  const response = await send(path, init);
  const text = await response.text();
  if (!response.ok) throw errorOf(response.status, text);
  return text ? JSON.parse(text) : null;
}

// With progress, which fetch does not tell. Resolves to the answer's text.
function upload(method, path, more, body, onProgress) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, urlOf(path));
    for (const [name, value] of Object.entries(headers(more))) request.setRequestHeader(name, value);
    request.upload.onprogress = (event) => onProgress(event.loaded, event.total);
    request.onload = () => (request.status < 300 ? resolve(request.responseText) : reject(errorOf(request.status, request.responseText)));
    request.onerror = () => reject(new ApiError(0, "unreachable", "the upload broke off"));
    request.send(body);
  });
}
export const putBlob = (digest, file, onProgress) =>
  upload("PUT", `/v1/adapters/blobs/${digest}`, { "Content-Type": "application/octet-stream" }, file, onProgress);
export async function postTrainingFile(file, onProgress) {
  const form = new FormData();
  form.append("purpose", "fine-tune");
  form.append("file", file);
  return JSON.parse(await upload("POST", "/v1/files", {}, form, onProgress));
}

// Server-sent events of a GET, or of a POST with a body: {event, data, id} one by one.
export async function* events(path, { body, signal, lastEventId } = {}) {
  const more = { Accept: "text/event-stream" };
  if (body) more["Content-Type"] = "application/json";
  if (lastEventId) more["Last-Event-ID"] = lastEventId;
  const init = { method: body ? "POST" : "GET", headers: headers(more), signal };
  if (body) init.body = JSON.stringify(body);
  const response = await send(path, init);
  if (!response.ok) throw errorOf(response.status, await response.text());
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      rest += value;
      const blocks = rest.split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const event = { event: "message", data: "", id: undefined };
        for (const line of block.split("\n")) {
          const [, field, text] = /^(\w+): ?(.*)$/.exec(line) ?? [];
          if (field) event[field] = text;
        }
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
