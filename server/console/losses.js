// The losses of a job by its steps, on a canvas; the last ones stand below as text.
import { el, numberText } from "./dom.js";

const kLeft = 46, kRight = 8, kTop = 8, kBottom = 18;
const kSeries = [["training", 1], ["validation", 2]];

export class LossChart {
  constructor(title) {
    this.title = title;
    this.lines = [[], []];  // [step, loss] of training and of validation
    this.n_steps = 1;
    this.canvas = el("canvas", { role: "img", "aria-label": title });
    this.facts = el("time", {});
    this.values = kSeries.map(() => el("b", {}, "–"));
    this.element = el("figure", { class: "chart card" }, el("figcaption", {}, title, this.facts), this.canvas,
      el("ul", { class: "legend" }, kSeries.map(([name, color], i) => el("li", {}, el("i", { class: `series-${color}` }), `${name} `, this.values[i]))));
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  // The data of a metrics event.
  push(data) {
    const valid = data.full_valid_loss ?? data.valid_loss;
    this.n_steps = Math.max(1, data.total_steps ?? 1);
    if (data.train_loss !== undefined) this.lines[0].push([data.step, data.train_loss]);
    if (valid !== undefined) this.lines[1].push([data.step, valid]);
    if (data.tokens_per_s !== undefined) this.facts.textContent = `step ${data.step} of ${this.n_steps}, ${numberText(data.tokens_per_s)} tokens/s`;
    this.values.forEach((element, i) => { element.textContent = this.lines[i].at(-1)?.[1].toFixed(3) ?? "–"; });
    this.canvas.setAttribute("aria-label", `${this.title}: ${kSeries.map(([name], i) => `${name} ${this.values[i].textContent}`).join(", ")}`);
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (width === 0) return;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(canvas);
    const top = Math.max(1e-3, ...this.lines.flat().map(([, loss]) => loss)) * 1.05;
    const x = (step) => kLeft + (step / this.n_steps) * (width - kLeft - kRight);
    const y = (loss) => height - kBottom - (loss / top) * (height - kTop - kBottom);
    context.font = `11px ${style.fontFamily}`;
    context.fillStyle = style.getPropertyValue("--muted");
    context.strokeStyle = style.getPropertyValue("--line");
    context.textBaseline = "middle";
    context.textAlign = "right";
    for (const part of [0, 0.5, 1]) {
      const at = Math.round(y(top * part)) + 0.5;
      context.beginPath();
      context.moveTo(kLeft, at);
      context.lineTo(width - kRight, at);
      context.stroke();
      context.fillText((top * part).toFixed(2), kLeft - 6, at);
    }
    context.textBaseline = "alphabetic";
    context.fillText(`${this.n_steps}`, x(this.n_steps), y(0) + 14);
    this.lines.forEach((line, i) => {
      context.beginPath();
      for (const [step, loss] of line) context.lineTo(x(step), y(loss));
      context.strokeStyle = style.getPropertyValue(`--series-${kSeries[i][1]}`);
      context.lineWidth = 1.8;
      context.stroke();
    });
  }
}
