// The report of a dry run, for people.
import { bytesText, el, errorContent, newPill, numberText } from "./dom.js";

function scaleText(modules) {
  const scales = [...new Set(modules.map((module) => module.scale))];
  return scales.length === 1 ? String(scales[0]) : scales.length === 0 ? "–" : `${Math.min(...scales)} to ${Math.max(...scales)}`;
}

export function reportElement(report) {
  const { rank, modules = [] } = report;
  const ranks = rank.min === rank.max ? numberText(rank.max) : `${rank.min} to ${rank.max}`;
  const traits = [modules.some((m) => m.dora) && "DoRA", modules.some((m) => m.bias) && "biases", report.alora_invocation_tokens?.length > 0 && "aLoRA",
    ...report.replaced_parts].filter(Boolean);
  const facts = [
    ["Kind", report.kind],
    ["Rank", ranks],
    ["Scale", scaleText(modules)],
    ["Targets", `${report.targets.join(", ") || "–"} (${numberText(modules.length)} modules)`],
    ["Types", [...new Set(modules.map((m) => m.dtype))].filter(Boolean).join(", ") || "–"],
    ["Also has", traits.join(", ")],
    ["Parameters", numberText(report.parameters)],
    ["Device memory", bytesText(report.device_bytes)],
    ["Files", bytesText(report.file_bytes)],
    ["Base", report.recorded_fingerprint],
    ["Generation", report.generation],
  ].filter(([, value]) => value);
  const verdict = report.fits ? newPill("fits", "good") : newPill("does not fit", "bad");
  const lines = [
    ...(report.error ? [["bad", el("span", {}, ...errorContent(report.error))]] : []),
    ...report.refused.map(({ tensor, expected, found }) => ["bad", el("span", {}, el("code", {}, tensor), `: expected ${expected}, found ${found}`)]),
    ...report.warnings.map((line) => ["warn", line]),
  ];
  return el("div", { class: "report" },
    el("h4", {}, "Dry run", verdict, report.fits && !report.changes_something ? newPill("changes nothing", "warn") : ""),
    el("dl", {}, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, String(value))]).flat()),
    lines.length > 0 ? el("ul", {}, lines.map(([tone, line]) => el("li", { class: tone }, line))) : "");
}
