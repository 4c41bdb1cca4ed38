// What /metrics says, and how fast its counters grow.

// Prometheus' text: a map of name to [{labels, value}].
export function parseMetrics(text) {
  const series = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, key, value] of (match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key] = value.replace(/\\(.)/g, (_, c) => (c === "n" ? "\n" : c));
    }
    if (!series.has(match[1])) series.set(match[1], []);
    series.get(match[1]).push({ labels, value: Number(match[3]) });
  }
  return series;
}

export class Sample {
  constructor(text, atMs) {
    this.series = parseMetrics(text);
    this.atMs = atMs;
  }
  value(name, fallback = 0) {
    return this.series.get(name)?.[0].value ?? fallback;
  }
  labels(name) {
    return this.series.get(name)?.[0].labels ?? {};
  }
  all(name) {
    return this.series.get(name) ?? [];
  }
}

// Growth per second between two samples; a server that began anew counts from 0.
export function rate(before, now, name) {
  const seconds = (now.atMs - before.atMs) / 1000;
  const grown = now.value(name) - before.value(name);
  return seconds > 0 ? Math.max(grown, 0) / seconds : 0;
}
// Mean of what a histogram has taken in between two samples.
export function meanBetween(before, now, name) {
  const n = now.value(`${name}_count`) - before.value(`${name}_count`);
  return n > 0 ? (now.value(`${name}_sum`) - before.value(`${name}_sum`)) / n : 0;
}
