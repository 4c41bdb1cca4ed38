#!/usr/bin/env python3
"""Writes lorad.json, the Grafana dashboard: make_dashboard.py > lorad.json. Names are checked against /metrics by tests/deploy/deploy_test.py."""

import json

JOB = 'job="lorad",instance=~"$instance"'


def quantiles(metric):
    return [(f"p{round(q * 100)}", f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket{{{JOB}}}[$__rate_interval])))") for q in (0.5, 0.95, 0.99)]


def by_adapter(metric):
    return [("{{adapter_name}}", f"topk(10, sum by (adapter_name) (rate({metric}{{{JOB}}}[$__rate_interval])))")]


def mean_by_adapter(*sum_and_count):
    parts = [f"sum by (adapter_name) (rate({metric}{{{JOB}}}[$__rate_interval]))" for metric in sum_and_count]
    return [("{{adapter_name}}", f"topk(10, {parts[0]} / {parts[1]})")]


# (row, [(title, unit, [(legend, expression)])])
ROWS = [
    ("Traffic", [
        ("Requests a second, by ending", "reqps", [("{{finished_reason}}", f"sum by (finished_reason) (rate(vllm:request_success_total{{{JOB}}}[$__rate_interval]))")]),
        ("Tokens a second", "none", [("generated", f"sum(rate(vllm:generation_tokens_total{{{JOB}}}[$__rate_interval]))"),
                                     ("prompts", f"sum(rate(vllm:prompt_tokens_total{{{JOB}}}[$__rate_interval]))")]),
        ("HTTP answers a second", "reqps", [("{{class}}", f"sum by (class) (rate(lorad_http_responses_total{{{JOB}}}[$__rate_interval]))")]),
        ("Refused a second", "reqps", [("{{instance}}", f"rate(lorad_requests_refused_total{{{JOB}}}[$__rate_interval])")]),
    ]),
    ("Latency", [
        ("Time to the first token", "s", quantiles("vllm:time_to_first_token_seconds")),
        ("Between tokens", "s", quantiles("vllm:inter_token_latency_seconds")),
        ("Whole requests", "s", quantiles("vllm:e2e_request_latency_seconds")),
        ("In the queue", "s", quantiles("vllm:request_queue_time_seconds")),
    ]),
    ("Engine", [
        ("Requests running and waiting", "none", [("running", f"sum(vllm:num_requests_running{{{JOB}}})"), ("waiting", f"sum(vllm:num_requests_waiting{{{JOB}}})")]),
        ("KV cache", "percentunit", [("{{instance}}", f"vllm:kv_cache_usage_perc{{{JOB}}}")]),
        ("Prefix cache hits", "percentunit", [("{{instance}}", f"rate(vllm:prefix_cache_hits_total{{{JOB}}}[$__rate_interval]) / rate(vllm:prefix_cache_queries_total{{{JOB}}}[$__rate_interval])")]),
        ("Age of the step under way", "s", [("{{instance}}", f"lorad_engine_turn_age_seconds{{{JOB}}}")]),
    ]),
    ("Adapters", [
        ("On the device and registered", "none", [("resident", f"sum(lorad_adapters_resident{{{JOB}}})"), ("registered", f"sum(lorad_adapters_registered{{{JOB}}})")]),
        ("Loads and evictions a second", "ops", [("loads", f"sum(rate(lorad_adapter_loads_total{{{JOB}}}[$__rate_interval]))"),
                                                 ("evictions", f"sum(rate(lorad_adapter_evictions_total{{{JOB}}}[$__rate_interval]))"),
                                                 ("failures", f"sum(rate(lorad_adapter_load_failures_total{{{JOB}}}[$__rate_interval]))")]),
        ("Busiest adapters", "none", [("{{adapter_name}}", f"topk(10, sum by (adapter_name) (lorad_adapter_requests_running{{{JOB}}}))")]),
        ("Device memory of adapters", "bytes", [("{{instance}}", f"lorad_adapter_device_bytes{{{JOB}}}")]),
    ]),
    ("By adapter", [
        ("Requests a second", "reqps", by_adapter("lorad_adapter_requests_total")),
        ("Generated tokens a second", "none", by_adapter("lorad_adapter_generation_tokens_total")),
        ("Mean time to the first token", "s", mean_by_adapter("lorad_adapter_first_token_seconds_total", "lorad_adapter_first_tokens_total")),
        ("Mean time of a request", "s", mean_by_adapter("lorad_adapter_request_seconds_total", "lorad_adapter_requests_total")),
    ]),
]


def main():
    panels, number, y = [], 0, 0
    for row, graphs in ROWS:
        number += 1
        panels.append({"type": "row", "title": row, "id": number, "gridPos": {"h": 1, "w": 24, "x": 0, "y": y}, "collapsed": False, "panels": []})
        y += 1
        for i, (title, unit, lines) in enumerate(graphs):
            number += 1
            panels.append({"type": "timeseries", "title": title, "id": number, "gridPos": {"h": 8, "w": 6, "x": 6 * i, "y": y},
                           "datasource": {"type": "prometheus", "uid": "${datasource}"}, "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
                           "targets": [{"refId": chr(65 + k), "legendFormat": legend, "expr": expression} for k, (legend, expression) in enumerate(lines)]})
        y += 8
    variables = [{"name": "datasource", "type": "datasource", "query": "prometheus"},
                 {"name": "instance", "type": "query", "datasource": {"type": "prometheus", "uid": "${datasource}"}, "includeAll": True, "multi": True,
                  "query": {"query": 'label_values(lorad_steps_total{job="lorad"}, instance)', "refId": "instances"}, "refresh": 2, "current": {"text": "All", "value": "$__all"}}]
    print(json.dumps({"title": "lorad", "uid": "lorad", "schemaVersion": 39, "tags": ["lorad"], "timezone": "", "editable": True, "refresh": "30s",
                      "time": {"from": "now-1h", "to": "now"}, "templating": {"list": variables}, "panels": panels}, indent=1))


if __name__ == "__main__":
    main()
