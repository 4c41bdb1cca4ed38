// Model, device, and what the server does right now.
import { isDenied, isRefusal, onAccessChange } from "./access.js";
import { get } from "./api.js";
import { Chart } from "./chart.js";
import { $, bytesText, el, numberText, pill } from "./dom.js";
import { meanBetween, rate, Sample } from "./metrics.js";
import { forgetTraffic, showTraffic } from "./traffic.js";

const kPeriodMs = 1000;
const percent = (value) => `${(100 * value).toFixed(value < 0.1 && value > 0 ? 1 : 0)} %`;

const charts = {
  tokens: new Chart({ title: "Tokens per second", text: numberText,
    series: [{ name: "generated", color: 1, fill: true }, { name: "prompts", color: 2 }] }),
  rows: new Chart({ title: "Batch: rows in a step", text: numberText,
    series: [{ name: "rows", color: 1, fill: true }, { name: "sequences", color: 3 }] }),
  requests: new Chart({ title: "Requests", text: numberText,
    series: [{ name: "running", color: 1, fill: true }, { name: "waiting", color: 4 }] }),
  memory: new Chart({ title: "Memory", text: percent, max: 1,
    series: [{ name: "KV blocks held", color: 1, fill: true }, { name: "kept for reuse", color: 2 }, { name: "adapters", color: 3 }] }),
};

let facts = {};
let before = null;
let card = null;

function fact(name, value, detail = "") {
  facts[name] ??= (() => {
    const box = { value: el("span"), detail: el("small") };
    $("facts").append(el("div", {}, el("dt", {}, name), el("dd", {}, box.value, box.detail)));
    return box;
  })();
  facts[name].value.textContent = value;
  facts[name].detail.replaceChildren(detail);
}

function showMemory(sample) {
  const parts = sample.all("lorad_device_memory_planned_bytes");
  const bytes = Object.fromEntries(parts.map(({ labels, value }) => [labels.part, value]));
  const total = Object.values(bytes).reduce((sum, value) => sum + value, 0);
  const kv = sample.value("vllm:kv_cache_usage_perc");
  const used = bytesText(sample.value("lorad_adapter_device_bytes"));
  fact("Device memory", bytesText(total), `weights ${bytesText(bytes.weights)}, KV ${bytesText(bytes.kv)}, adapters ${used} of ${bytesText(bytes.adapters)}`);
  const cache = sample.labels("vllm:cache_config_info");
  const n = Number(cache.num_gpu_blocks) || 0;
  const queries = sample.value("vllm:prefix_cache_queries_total");
  const found = queries ? `; ${percent(sample.value("vllm:prefix_cache_hits_total") / queries)} of prompt tokens were there` : "";
  fact("KV cache", percent(kv), `${n} blocks of ${cache.block_size} tokens${found}`);
  const planned = bytes.adapters || 1;
  return [kv, n ? sample.value("lorad_kv_blocks_idle") / n : 0, Math.min(1, sample.value("lorad_adapter_device_bytes") / planned)];
}

function show(sample) {
  const device = sample.labels("lorad_device_info");
  if (card) fact("Model", card.id, `context ${numberText(card.max_model_len)} tokens`);
  fact("Device", device.name ?? "unknown", `${device.driver ?? ""}${device.type === "cpu" ? ", on the CPU" : ""}`);
  const memory = showMemory(sample);
  fact("Adapters", numberText(sample.value("lorad_adapters_registered")),
    `${numberText(sample.value("vllm:num_gpu_loaded_lora_adapters"))} on the device, ${numberText(sample.value("vllm:num_cpu_loaded_lora_adapters"))} in host memory`);
  fact("Tokens so far", numberText(sample.value("vllm:generation_tokens_total")), `${numberText(sample.value("vllm:prompt_tokens_total"))} of prompts`);
  if (before) {
    charts.tokens.push(sample.atMs, [rate(before, sample, "vllm:generation_tokens_total"), rate(before, sample, "vllm:prompt_tokens_total")]);
    charts.rows.push(sample.atMs, [meanBetween(before, sample, "lorad_step_rows"), meanBetween(before, sample, "lorad_step_sequences")]);
    charts.requests.push(sample.atMs, [sample.value("vllm:num_requests_running"), sample.value("vllm:num_requests_waiting")]);
    charts.memory.push(sample.atMs, memory);
  }
  before = sample;
  showTraffic(sample);
}

// Null where the key may do other things only.
async function readMetrics() {
  if (isDenied("metrics")) return null;
  try {
    return new Sample(await get("/metrics", { raw: true }), Date.now());
  } catch (error) {
    if (!isRefusal("metrics", error)) throw error;
    return null;
  }
}

async function look(onReady) {
  const health = $("health");
  try {
    const sample = await readMetrics();
    if (!sample) await get("/health/ready");
    if (!card && !isDenied("models")) {
      card = (await get("/v1/models")).data[0];
      onReady(card);
    }
    if (sample) show(sample);
    else if (card) fact("Model", card.id, `context ${numberText(card.max_model_len)} tokens`);
    if (health.textContent !== "ready") pill(health, "ready", "good");
  } catch (error) {
    if (isRefusal("models", error)) return;
    const text = error.code === "unreachable" ? "unreachable" : error.status === 503 ? "not ready" : error.status === 401 ? "key wanted" : error.code;
    if (health.textContent !== text) pill(health, text, "bad");
    before = null;
    card = null;
    forgetTraffic();
  }
}

// onReady is told the base's card when the server answers for the first time, and after it was away.
export function startOverview(onReady) {
  $("charts").append(...Object.values(charts).map((chart) => chart.element));
  onAccessChange(() => {
    before = card = null;
    facts = {};
    $("facts").replaceChildren();
  });
  const redraw = () => Object.values(charts).forEach((chart) => chart.draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const tick = async () => {
    if (!document.hidden) await look(onReady);
    setTimeout(tick, kPeriodMs);
  };
  tick();
  return redraw;
}
