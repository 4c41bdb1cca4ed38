// The server's events about adapters, latest first; taken up again where they broke off.
import { isDenied, isRefusal, onAccessChange } from "./access.js";
import { events } from "./api.js";
import { $, bytesText, el, pill } from "./dom.js";

const kShown = 200;

function line(event) {
  const bytes = event.bytes !== undefined ? `${bytesText(event.bytes)}${event.bytes_total ? ` of ${bytesText(event.bytes_total)}` : ""}` : "";
  return el("li", {}, el("time", {}, new Date(event.at_ms).toLocaleTimeString()), el("span", { class: "what" }, event.event.replaceAll("_", " ")),
    el("span", {}, event.id ?? ""), el("span", { class: "mono" }, (event.generation || event.digest || "").replace("sha256:", "").slice(0, 12)),
    el("span", {}, bytes), el("span", {}, event.detail ?? ""));
}

export async function watch(onEvent) {
  const state = $("events-state");
  let last = "0";  // at first all that the server has kept
  let look = () => {};
  onAccessChange(() => look());
  for (;;) {
    while (isDenied("adapters")) await new Promise((resolve) => { look = resolve; });
    try {
      const stream = events("/v1/adapters/events", { lastEventId: last });
      pill(state, "live", "good");
      for await (const { data, id, event } of stream) {
        last = event === "missed" ? undefined : id ?? last;
        if (event === "missed") break;  // too far behind: from now on, then
        const list = $("event-list");
        list.prepend(line(JSON.parse(data)));
        while (list.children.length > kShown) list.lastChild.remove();
        onEvent();
      }
    } catch (error) {
      if (!isRefusal("adapters", error)) pill(state, error.code ?? "broken off", "bad");
    }
    await new Promise((resolve) => setTimeout(resolve, 2000));
  }
}
