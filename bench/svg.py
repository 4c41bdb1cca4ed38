"""Plots as SVG files that can be read on light and on dark pages; nothing but the standard library."""
import html
import math

COLORS = ["#2f7ed8", "#e4572e", "#2ca25f", "#9b5de5", "#c98b00", "#00a6a6"]
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-size: 14px; font-weight: 600 }
.grid { stroke: #ddd; stroke-width: 1 }
.axis { stroke: #888; stroke-width: 1 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } .grid { stroke: #444 } .axis { stroke: #999 } }
</style>"""
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 400, 76, 20, 36, 76


def number(value):
    """A tick's text: 12k, 1.5, 0.02."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.4g}"


def linear_ticks(low, high, wanted=6):
    """Round numbers from low to high, both ends included."""
    if high <= low:
        high = low + 1
    step = 10 ** math.floor(math.log10((high - low) / wanted))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= wanted)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [round(i * step, 12) for i in range(first, last + 1)]


def log_ticks(values):
    """Powers of two or ten that cover positive values."""
    low, high = min(values), max(values)
    if high / low <= 4096:
        return [2.0**i for i in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)] or [low]
    return [10.0**i for i in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


class Scale:
    """From a value to a place along an axis."""

    def __init__(self, ticks, begin, end, log):
        self.ticks, self.begin, self.end, self.log = ticks, begin, end, log
        self.low, self.high = (math.log(ticks[0]), math.log(ticks[-1])) if log else (ticks[0], ticks[-1])

    def __call__(self, value):
        value = math.log(value) if self.log else value
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.begin + share * (self.end - self.begin)


def line_chart(title, x_label, y_label, series, log_x=False, log_y=False):
    """series: (name, [(x, y) or (x, y, low, high)], dashed). Returns the SVG text; points that cannot be drawn are left out."""
    drawable = []
    for name, points, dashed in series:
        points = [p for p in points if all(math.isfinite(v) for v in p) and (p[0] > 0 or not log_x) and (min(p[1:]) > 0 or not log_y)]
        if points:
            drawable.append((name, sorted(points), dashed))
    if not drawable:
        raise ValueError(f"{title}: nothing to draw")
    xs = [p[0] for _, points, _ in drawable for p in points]
    ys = [v for _, points, _ in drawable for p in points for v in p[1:]]
    x_ticks = log_ticks(xs) if log_x else linear_ticks(min(xs), max(xs))
    y_ticks = log_ticks(ys) if log_y else linear_ticks(min(0, min(ys)), max(ys))
    x, y = Scale(x_ticks, LEFT, WIDTH - RIGHT, log_x), Scale(y_ticks, HEIGHT - BOTTOM, TOP, log_y)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{html.escape(title)}">', STYLE,
             f'<text class="title" x="{LEFT}" y="20">{html.escape(title)}</text>']
    for tick in y_ticks:
        at = y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{WIDTH - RIGHT}" y2="{at:.1f}"/>'
                     f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    for tick in x_ticks:
        at = x(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{HEIGHT - BOTTOM}"/>'
                     f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{number(tick)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - RIGHT}" y2="{HEIGHT - BOTTOM}"/>'
                 f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - BOTTOM + 38}" text-anchor="middle">{html.escape(x_label)}</text>'
                 f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">{html.escape(y_label)}</text>')
    legend_x = LEFT
    for i, (name, points, dashed) in enumerate(drawable):
        color = COLORS[i % len(COLORS)]
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        path = " ".join(f"{x(p[0]):.1f},{y(p[1]):.1f}" for p in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        for p in points if len(points) <= 40 else []:
            if len(p) == 4:
                parts.append(f'<line x1="{x(p[0]):.1f}" y1="{y(p[2]):.1f}" x2="{x(p[0]):.1f}" y2="{y(p[3]):.1f}" stroke="{color}" stroke-width="1"/>')
            parts.append(f'<circle cx="{x(p[0]):.1f}" cy="{y(p[1]):.1f}" r="3" fill="{color}"/>')
        parts.append(f'<line x1="{legend_x}" y1="{HEIGHT - 16}" x2="{legend_x + 22}" y2="{HEIGHT - 16}" stroke="{color}" stroke-width="2"{dash}/>'
                     f'<text x="{legend_x + 28}" y="{HEIGHT - 12}">{html.escape(name)}</text>')
        legend_x += 44 + 7 * len(name)
    return "\n".join(parts + ["</svg>"]) + "\n"
