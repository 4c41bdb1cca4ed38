"""What all benchmark scripts share: quantiles, bootstrap intervals, and result files of JSON lines."""
import json
import math
import random
import statistics


def percentile(values, share):
    """The quantile by linear interpolation between the two nearest values; nan of nothing."""
    values = sorted(values)
    if not values:
        return float("nan")
    at = share * (len(values) - 1)
    below = int(at)
    above = min(below + 1, len(values) - 1)
    return values[below] + (at - below) * (values[above] - values[below])


def summary(values):
    return {"median": percentile(values, 0.5), "p10": percentile(values, 0.1), "p90": percentile(values, 0.9), "samples": len(values)}


def bootstrap(values, statistic=statistics.median, n=2000, confidence=0.95, seed=1):
    """Percentile-bootstrap interval of a statistic: (low, high)."""
    rng = random.Random(seed)
    drawn = sorted(statistic(rng.choices(values, k=len(values))) for _ in range(n))
    tail = (1 - confidence) / 2
    return percentile(drawn, tail), percentile(drawn, 1 - tail)


def bootstrap_ratio(old, new, n=2000, confidence=0.95, seed=1):
    """Interval of median(new) / median(old) for two independent samples."""
    rng = random.Random(seed)
    drawn = sorted(statistics.median(rng.choices(new, k=len(new))) / statistics.median(rng.choices(old, k=len(old))) for _ in range(n))
    tail = (1 - confidence) / 2
    return percentile(drawn, tail), percentile(drawn, 1 - tail)


def read_rows(path):
    """The JSON lines of a result file; lines that are none are an error with their number."""
    rows = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise SystemExit(f"{path}:{number}: not a JSON line: {error}") from None
            if not isinstance(row, dict):
                raise SystemExit(f"{path}:{number}: expected an object, found {type(row).__name__}")
            rows.append(row)
    return rows


# What a result says about itself, not about the case that it is a result of.
MEASURED = {"median", "p10", "p90", "samples", "values", "tokens_per_s", "floor_ms", "of_floor", "ceiling_gb_s", "sustained_gb_s", "whole_rows", "bytes", "gb_s", "tflop_s",
            "of_ceiling", "error", "git", "date", "device", "driver", "engine", "dispatch_alone_us", "over_copy", "us", "share", "calls",
            "distinct", "loads", "splits", "row_tile", "column_tile", "kernel", "repeat"}


def case_key(row):
    """A text that two results of one case have in common, whatever build or device they are from."""
    if row.get("case") == "model_kernel":
        return " ".join(f"{name}={row[name]}" for name in ("case", "model", "kernel", "bytes_each", "rows", "context", "prompt") if name in row)
    return " ".join(f"{name}={value}" for name, value in row.items() if name not in MEASURED and not isinstance(value, (dict, list)))


def finite(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
