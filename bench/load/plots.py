"""A run's plots: tokens per second over time, and the distributions of its latencies."""
import stats
import svg


def distribution(values, n=60):
    """Points (value, share below it in percent) of an empirical distribution."""
    values = sorted(values)
    return [(stats.percentile(values, i / n), 100 * i / n) for i in range(n + 1)] if values else []


def write(folder, name, row, outcomes, series):
    """FOLDER/NAME-latency.svg and, for runs of some seconds, FOLDER/NAME-time.svg."""
    folder.mkdir(parents=True, exist_ok=True)
    good = [o for o in outcomes if o.ok]
    curves = [("first token", distribution([1e3 * o.ttft for o in good if o.ttft is not None]), False),
              ("between tokens", distribution([1e3 * gap for o in good for gap in o.gaps]), False),
              ("whole answer", distribution([1e3 * o.latency for o in good]), False)]
    if any(points for _, points, _ in curves):
        (folder / f"{name}-latency.svg").write_text(svg.line_chart(f"Latency, {name}: {row['tokens_per_s']:.0f} tok/s", "ms", "% of them at most so long", curves, log_x=True))
    if len(series) >= 3:
        (folder / f"{name}-time.svg").write_text(svg.line_chart(f"Over time, {name}", "seconds", "tokens per second", [("tok/s", [(s[0], s[1]) for s in series], False)]))
