// One prompt, answered by several at once, side by side; in a chat each has a conversation of its own.
import { events } from "./api.js";
import { copyText, curlOf } from "./curl.js";
import { $, el, errorContent, newPill, notifyError, numberText, pill } from "./dom.js";
import { choose, chosenTargets, startTargets } from "./targets.js";

let conversations = new Map();  // label -> {card, messages}
let running = null;             // AbortController

export function tryAdapter(name) {
  choose(name);
  $("playground").scrollIntoView();
  $("playground-form").elements.prompt.focus({ preventScroll: true });
}

// Path and body of a request, not streamed.
function requestOf(form, target, messages) {
  const body = { ...target.body };
  for (const name of ["max_tokens", "temperature", "top_p", "top_k", "seed"]) {
    if (form.elements[name].value !== "") body[name] = Number(form.elements[name].value);
  }
  return messages ? ["/v1/chat/completions", { ...body, messages }] : ["/v1/completions", { ...body, prompt: form.elements.prompt.value }];
}

function newCard(label) {
  const state = newPill("waiting");
  const turns = el("div", { class: "turns" });
  const copy = el("button", { type: "button", class: "small quiet", "aria-label": `Copy the request to ${label} as a curl command` }, "Copy as curl");
  const numbers = el("span", { class: "numbers" });
  const element = el("article", { class: "answer card", "data-target": label },
    el("header", {}, el("h3", {}, label), state), turns, el("footer", {}, numbers, copy));
  const card = { state, turns, numbers, element, request: null };
  copy.addEventListener("click", () => card.request && copyText(curlOf(...card.request)));
  return card;
}

// The conversation that goes on, or a new one.
function conversationOf(label, goesOn) {
  const known = goesOn ? conversations.get(label) : undefined;
  return known ?? { card: newCard(label), messages: [] };
}

function messagesOf(form, conversation) {
  const system = form.elements.system.value;
  return [...(system ? [{ role: "system", content: system }] : []), ...conversation.messages, { role: "user", content: form.elements.prompt.value }];
}

function numbersOf({ began, first, tokens, promptTokens, generation }) {
  const seconds = (performance.now() - (first ?? began)) / 1000;
  const parts = [`${numberText(tokens)} tokens`];
  if (first !== null && tokens > 1 && seconds > 0) parts.push(`${numberText((tokens - 1) / seconds)} tokens/s`);
  if (first !== null) parts.push(`first after ${((first - began) / 1000).toFixed(2)} s`);
  if (promptTokens) parts.push(`prompt ${numberText(promptTokens)}`);
  if (generation) parts.push(generation.slice(0, 12));
  return parts.join(" · ");
}

// Streams an answer into the card; its text, or null where it failed.
async function stream(path, body, card, text, signal) {
  const seen = { began: performance.now(), first: null, tokens: 0, promptTokens: 0, generation: "" };
  let finish = "", thought = null;
  pill(card.state, "waiting");
  card.element.classList.add("running");
  card.element.setAttribute("aria-busy", "true");
  try {
    const streamed = { ...body, stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
    for await (const { data } of events(path, { body: streamed, signal })) {
      if (data === "[DONE]") break;
      const chunk = JSON.parse(data);
      if (chunk.error) throw chunk.error;
      seen.generation = chunk.adapter_generation ?? seen.generation;
      seen.tokens = chunk.usage?.completion_tokens ?? seen.tokens;
      seen.promptTokens = chunk.usage?.prompt_tokens ?? seen.promptTokens;
      const choice = chunk.choices[0];
      if (choice) {
        const more = choice.text ?? choice.delta?.content ?? "";
        const thinking = choice.delta?.reasoning_content ?? "";
        if ((more || thinking) && seen.first === null) {
          seen.first = performance.now();
          card.state.textContent = "streaming";
        }
        if (thinking) {
          thought ??= text.parentElement.insertBefore(el("p", { class: "thought" }), text);
          thought.append(thinking);
        }
        text.append(more);
        finish = choice.finish_reason ?? finish;
      }
      card.numbers.textContent = numbersOf(seen);
      card.turns.scrollTop = card.turns.scrollHeight;
    }
    pill(card.state, finish || "ended", "good");
    return text.textContent;
  } catch (error) {
    if (error.name === "AbortError") {
      pill(card.state, "stopped");
      return text.textContent || null;
    }
    pill(card.state, "failed", "bad");
    text.after(el("p", { class: "notice error", role: "alert" }, el("span", {}, ...errorContent(error))));
    return null;
  } finally {
    text.classList.remove("open");
    card.element.classList.remove("running");
    card.element.setAttribute("aria-busy", "false");
  }
}

async function answer(form, target, conversation, isChat, signal) {
  const { card } = conversation;
  const prompt = form.elements.prompt.value;
  const messages = isChat ? messagesOf(form, conversation) : null;
  const [path, body] = requestOf(form, target, messages);
  card.request = [path, body];
  if (!isChat) card.turns.replaceChildren();
  const text = el("p", { class: "text open" });
  card.turns.append(...(isChat ? [el("p", { class: "asked" }, prompt)] : []), el("div", { class: "turn" }, text));
  const said = await stream(path, body, card, text, signal);
  // A turn without an answer is no part of what follows.
  if (isChat && said !== null) conversation.messages.push({ role: "user", content: prompt }, { role: "assistant", content: said });
}

function showNew() {
  $("playground-new").disabled = running !== null || ![...conversations.values()].some(({ messages }) => messages.length > 0);
}

async function run(event) {
  event?.preventDefault();
  if (running) return;
  const form = $("playground-form");
  const wanted = chosenTargets();
  if (wanted.length === 0) {
    notifyError({ code: "nothing_chosen", message: "choose the base, an adapter or a mix to answer" });
    return;
  }
  running = new AbortController();
  $("playground-run").disabled = true;
  $("playground-stop").disabled = false;
  const isChat = form.elements.kind.value === "chat";
  conversations = new Map(wanted.map((target) => [target.label, conversationOf(target.label, isChat)]));
  showNew();
  $("answers").replaceChildren(...[...conversations.values()].map(({ card }) => card.element));
  if (document.activeElement === form.elements.prompt) form.elements.prompt.select();
  await Promise.all(wanted.map((target) => answer(form, target, conversations.get(target.label), isChat, running.signal)));
  running = null;
  $("playground-run").disabled = false;
  $("playground-stop").disabled = true;
  showNew();
}

export function startPlayground() {
  const form = $("playground-form");
  form.addEventListener("submit", run);
  form.addEventListener("change", (event) => {
    if (event.target.name !== "kind") return;
    $("system-field").hidden = form.elements.kind.value === "completion";
    conversations = new Map();
    showNew();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.reportValidity()) run(event);
  });
  $("playground-new").addEventListener("click", () => {
    conversations = new Map();
    $("answers").replaceChildren();
    showNew();
    form.elements.prompt.focus();
  });
  $("playground-stop").addEventListener("click", () => running?.abort());
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !$("dialog").open) running?.abort(); });
  startTargets();
}
