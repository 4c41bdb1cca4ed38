// Lines over the last two minutes on a canvas; the present values stand below as text.
import { el } from "./dom.js";

const kSpanMs = 120000;
const kLeft = 46, kRight = 6, kTop = 8, kBottom = 18;

// The next of 1, 2, 5, 10, 20, ... that is not below the value.
function niceCeiling(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999);
}

export class Chart {
  // series: [{name, color: 1..4, fill}]; text: value -> string; max: a fixed top.
  constructor({ title, series, text, max }) {
    Object.assign(this, { title, series, text, max });
    this.points = [];  // {atMs, values}
    this.hoverX = null;
    this.canvas = el("canvas", { role: "img", "aria-label": title });
    this.time = el("time", {});
    this.values = series.map(() => el("b", {}, "–"));
    this.element = el("figure", { class: "chart card" },
      el("figcaption", {}, title, this.time), this.canvas,
      el("ul", { class: "legend" }, series.map((one, i) => el("li", {}, el("i", { class: `series-${one.color}` }), `${one.name} `, this.values[i]))));
    this.canvas.addEventListener("pointermove", (event) => { this.hoverX = event.offsetX; this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { this.hoverX = null; this.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
  }

  push(atMs, values) {
    this.points.push({ atMs, values });
    while (this.points[0].atMs < atMs - kSpanMs - 5000) this.points.shift();
    this.canvas.setAttribute("aria-label", `${this.title}: ${this.series.map((one, i) => `${one.name} ${this.text(values[i])}`).join(", ")}`);
    this.draw();
  }

  draw() {
    const { canvas } = this;
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (width === 0) return;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas);
    const end = this.points.at(-1)?.atMs ?? Date.now();
    const top = this.max ?? niceCeiling(Math.max(0, ...this.points.flatMap((point) => point.values)));
    const x = (atMs) => width - kRight - ((end - atMs) / kSpanMs) * (width - kLeft - kRight);
    const y = (value) => height - kBottom - (Math.min(value, top) / top) * (height - kTop - kBottom);

    this.#drawGrid(context, style, width, top, y, x, end);
    context.save();
    context.beginPath();
    context.rect(kLeft, 0, width - kLeft, height);
    context.clip();
    this.series.forEach((one, i) => this.#drawLine(context, style.getPropertyValue(`--series-${one.color}`), one.fill, i, x, y));
    context.restore();
    this.#showValues(context, style, x, height);
  }

  #drawGrid(context, style, width, top, y, x, end) {
    context.font = `11px ${style.fontFamily}`;
    context.fillStyle = style.getPropertyValue("--muted");
    context.strokeStyle = style.getPropertyValue("--line");
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const part of [0, 0.5, 1]) {
      const at = Math.round(y(top * part)) + 0.5;
      context.beginPath();
      context.moveTo(kLeft, at);
      context.lineTo(width - kRight, at);
      context.stroke();
      context.fillText(this.text(top * part), kLeft - 6, at);
    }
    context.textBaseline = "alphabetic";
    for (const seconds of [120, 60, 0]) {
      context.textAlign = seconds === 120 ? "left" : seconds === 0 ? "right" : "center";
      context.fillText(seconds === 0 ? "now" : `${seconds} s`, x(end - seconds * 1000), y(0) + 14);
    }
  }

  #drawLine(context, color, fill, index, x, y) {
    if (this.points.length === 0) return;
    context.beginPath();
    for (const point of this.points) context.lineTo(x(point.atMs), y(point.values[index]));
    context.strokeStyle = color;
    context.lineWidth = 1.8;
    context.lineJoin = "round";
    context.stroke();
    if (!fill) return;
    context.lineTo(x(this.points.at(-1).atMs), y(0));
    context.lineTo(x(this.points[0].atMs), y(0));
    context.globalAlpha = 0.13;
    context.fillStyle = color;
    context.fill();
    context.globalAlpha = 1;
  }

  // The values of the moment that is pointed at, else of now.
  #showValues(context, style, x, height) {
    let shown = this.points.at(-1);
    if (this.hoverX !== null) {
      for (const point of this.points) {
        if (Math.abs(x(point.atMs) - this.hoverX) < Math.abs(x(shown.atMs) - this.hoverX)) shown = point;
      }
      if (shown) {
        const at = Math.round(x(shown.atMs)) + 0.5;
        context.strokeStyle = style.getPropertyValue("--muted");
        context.beginPath();
        context.moveTo(at, kTop);
        context.lineTo(at, height - kBottom);
        context.stroke();
      }
    }
    const isPast = this.hoverX !== null && shown;
    this.time.textContent = isPast ? `${new Date(shown.atMs).toLocaleTimeString()}, ${Math.round((this.points.at(-1).atMs - shown.atMs) / 1000)} s ago` : "";
    this.values.forEach((element, i) => { element.textContent = shown ? this.text(shown.values[i]) : "–"; });
  }
}
