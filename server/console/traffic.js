// Requests, tokens and times by adapter: over the last minute, and since the server began.
import { $, el, numberText } from "./dom.js";

const kWindowMs = 60000;
const kShown = 20;
const secondsText = (seconds) => (!Number.isFinite(seconds) ? "–" : seconds < 1 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`);

let samples = [];

// {adapter: value} of a series.
const byAdapter = (sample, name) => new Map(sample.all(name).map(({ labels, value }) => [labels.adapter_name, value]));

function rowsBetween(before, now) {
  const grown = (name) => {
    const old = byAdapter(before, name);
    return new Map([...byAdapter(now, name)].map(([adapter, value]) => [adapter, Math.max(value - (old.get(adapter) ?? 0), 0)]));
  };
  const mean = (sum, count) => {
    const sums = grown(sum), counts = grown(count);
    return (adapter) => sums.get(adapter) / counts.get(adapter);
  };
  const seconds = Math.max((now.atMs - before.atMs) / 1000, 1);
  const requests = grown("lorad_adapter_requests_total"), tokens = grown("lorad_adapter_generation_tokens_total");
  const first = mean("lorad_adapter_first_token_seconds_total", "lorad_adapter_first_tokens_total");
  const whole = mean("lorad_adapter_request_seconds_total", "lorad_adapter_requests_total");
  const running = byAdapter(now, "lorad_adapter_requests_running");
  return [...byAdapter(now, "lorad_adapter_requests_total")].map(([adapter, total]) => ({
    adapter, total, recent: requests.get(adapter), running: running.get(adapter) ?? 0, tokensPerSecond: tokens.get(adapter) / seconds,
    first: first(adapter), whole: whole(adapter),
  })).sort((a, b) => b.recent - a.recent || b.total - a.total || (a.adapter < b.adapter ? -1 : 1));
}

export function showTraffic(sample) {
  samples.push(sample);
  while (samples.length > 2 && samples[0].atMs < sample.atMs - kWindowMs) samples.shift();
  const rows = rowsBetween(samples[0], sample);
  $("traffic").hidden = rows.length === 0;
  $("traffic-rows").replaceChildren(...rows.slice(0, kShown).map((row) => el("tr", { "data-traffic": row.adapter },
    el("th", { scope: "row" }, row.adapter), el("td", {}, numberText(row.total)), el("td", {}, numberText(row.recent)),
    el("td", {}, numberText(row.running)), el("td", {}, numberText(row.tokensPerSecond)), el("td", {}, secondsText(row.first)), el("td", {}, secondsText(row.whole)))));
  $("traffic-more").hidden = rows.length <= kShown;
  $("traffic-more").textContent = `and ${numberText(rows.length - kShown)} more`;
}

// The server began anew.
export function forgetTraffic() {
  samples = [];
}
