"""Outcomes -> figures."""
import collections

import stats

SHARES = (0.5, 0.9, 0.99)


def spread(values, unit=1e3):
    """Quantiles in ms; None where nothing was measured."""
    result = {f"p{round(share * 100)}": stats.percentile(values, share) * unit for share in SHARES} if values else {}
    return {**result, "mean": unit * sum(values) / len(values), "max": unit * max(values)} if values else None


class Bounds:
    """A latency bound, 'ttft:500,tpot:50,e2e:8000' in ms; a request is good if it ended well within all of them."""

    def __init__(self, text):
        self.text = text
        self.limits = {}
        for item in filter(None, (text or "").split(",")):
            name, _, limit = item.partition(":")
            if name not in ("ttft", "tpot", "itl", "e2e"):
                raise SystemExit(f"goodput bound {item!r}: expected ttft, tpot, itl (the longest gap) or e2e, and ms")
            self.limits[name] = float(limit) / 1e3

    def good(self, outcome):
        if not outcome.ok:
            return False
        found = {"ttft": outcome.ttft, "tpot": outcome.tpot, "e2e": outcome.latency, "itl": max(outcome.gaps, default=0.0)}
        return all(found[name] is None or found[name] <= limit for name, limit in self.limits.items())


def steady_rate(outcomes, n_streams):
    """Tokens per second while all of n_streams were receiving; None if there was no such time worth the name."""
    started = sorted(o.first for o in outcomes if o.first is not None)
    ended = sorted(o.ended for o in outcomes)
    if len(started) < 2 * n_streams:
        return None
    begin = started[n_streams - 1]
    end = ended[len(ended) - n_streams]  # from here on fewer than n_streams are left
    if end - begin < 0.2:
        return None
    tokens = 0.0
    for outcome in outcomes:
        if outcome.arrivals:
            tokens += sum(begin <= at < end for at in outcome.arrivals) * outcome.tokens / len(outcome.arrivals)
    return tokens / (end - begin)


def summarize(outcomes, seconds, bounds=None, n_streams=None):
    """All figures of one run. seconds: from the first request to the last answer."""
    good_ones = [o for o in outcomes if o.ok]
    errors = collections.Counter((o.error or "").split(":")[0][:60] for o in outcomes if not o.ok)
    result = {"requests": len(outcomes), "completed": len(good_ones), "errors": sum(errors.values()), "error_kinds": dict(errors.most_common(8)),
              "first_error": next((o.error for o in outcomes if not o.ok), None), "seconds": seconds,
              "tokens": sum(o.tokens for o in outcomes), "tokens_per_s": sum(o.tokens for o in outcomes) / seconds,
              "prompt_tokens_per_s": sum(o.prompt_tokens for o in outcomes) / seconds, "requests_per_s": len(good_ones) / seconds,
              "ttft_ms": spread([o.ttft for o in good_ones if o.ttft is not None]),
              "itl_ms": spread([gap for o in good_ones for gap in o.gaps]),
              "tpot_ms": spread([o.tpot for o in good_ones if o.tpot is not None]),
              "e2e_ms": spread([o.latency for o in good_ones])}
    if n_streams:
        result["steady_tokens_per_s"] = steady_rate(outcomes, n_streams)
    if bounds is not None and bounds.limits:
        kept = [o for o in outcomes if bounds.good(o)]
        result["goodput"] = {"bounds_ms": bounds.text, "requests_per_s": len(kept) / seconds, "tokens_per_s": sum(o.tokens for o in kept) / seconds,
                             "share": len(kept) / max(1, len(outcomes))}
    return result


def line(name, row):
    """A run in one line for people."""
    def pair(key):
        value = row.get(key)
        return f"{value['p50']:.1f} (p90 {value['p90']:.1f}, p99 {value['p99']:.1f})" if value else "-"

    text = (f"{name}: {row['tokens_per_s']:.1f} tok/s, {row['requests_per_s']:.2f} requests/s; first token {pair('ttft_ms')} ms, "
            f"between tokens {pair('itl_ms')} ms, whole {pair('e2e_ms')} ms")
    if row.get("steady_tokens_per_s"):
        text += f"; {row['steady_tokens_per_s']:.1f} tok/s with all streams"
    if row.get("goodput"):
        text += f"; goodput {row['goodput']['requests_per_s']:.2f} requests/s ({100 * row['goodput']['share']:.0f} %)"
    return text + (f"; {row['errors']} errors: {row['first_error']}" if row["errors"] else "")
