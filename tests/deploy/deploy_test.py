#!/usr/bin/env python3
"""What deploy/ holds, checked with what there is to check it: deploy_test.py --lorad PROGRAM [--only NAME,...]

Names in dashboards and alerts are compared with /metrics of a running lorad, units with systemd-analyze, the proxies' examples with the proxies, the
chart with a small renderer. A tool that is not installed (deploy/install-deps.sh --clients) is named and its check left out."""

import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import traceback

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/e2e"))
DEPLOY = ROOT / "deploy"

import proxy_checks  # noqa: E402
from harness import Server, check, check_equal, take_default_port  # noqa: E402


class Missing(Exception):
    pass


def tool(name, *places):
    for place in (shutil.which(name), *places):
        if place and os.access(place, os.X_OK):
            return place
    raise Missing(f"{name} is not installed")


def run(*argv, **options):
    return subprocess.run([str(a) for a in argv], capture_output=True, text=True, check=False, timeout=120, **options)


def yaml_module():
    try:
        import yaml
    except ImportError as error:
        raise Missing("PyYAML is not installed") from error
    return yaml


# --- systemd ----------------------------------------------------------------------------------------------------------

EXPOSURE_MAX = 1.7


def exposure_in(said):
    """The overall level in what systemd-analyze security printed."""
    found = re.search(r"Overall exposure level for lorad.service: ([\d.]+)", said)
    check(found, f"no level: {said[-600:]}")
    return float(found.group(1))


def exposure(folder, drop_in=None):
    """The overall level that systemd-analyze gives the unit, with a drop-in."""
    units = pathlib.Path(folder, "etc/systemd/system")
    shutil.rmtree(units, ignore_errors=True)
    units.mkdir(parents=True)
    shutil.copy(DEPLOY / "systemd/lorad.service", units)
    if drop_in:
        (units / "lorad.service.d").mkdir()
        shutil.copy(drop_in, units / "lorad.service.d")
    done = run(tool("systemd-analyze"), "security", "--offline=true", f"--root={folder}", "lorad.service", env=dict(os.environ, SYSTEMD_COLORS="0"))
    return exposure_in(done.stdout + done.stderr)


def check_exposure(_):
    """systemd-analyze security: at most 1.7, with each drop-in too."""
    with tempfile.TemporaryDirectory() as folder:
        levels = {"lorad.service": exposure(folder)}
        for drop_in in sorted((DEPLOY / "systemd/examples").iterdir()):
            levels[drop_in.name] = exposure(folder, drop_in)
    print("    exposure:", levels)
    check(all(level <= EXPOSURE_MAX for level in levels.values()), f"more than {EXPOSURE_MAX}: {levels}")


def check_units(lorad):
    """systemd-analyze verify finds nothing in units and drop-ins, sysusers and tmpfiles take their files."""
    with tempfile.TemporaryDirectory() as folder:
        for unit in ("lorad.service", "lorad.socket"):
            text = (DEPLOY / "systemd" / unit).read_text()
            # The program where it was built; man pages are not installed.
            text = re.sub(r"^Documentation=.*\n", "", text.replace("/usr/bin/lorad", str(lorad)), flags=re.M)
            pathlib.Path(folder, unit).write_text(text)
        (pathlib.Path(folder) / "lorad.service.d").mkdir()
        for drop_in in (DEPLOY / "systemd/examples").iterdir():
            text = drop_in.read_text().replace("/usr/bin/nvidia-modprobe", "/bin/true")
            pathlib.Path(folder, "lorad.service.d", drop_in.name).write_text(text)
        done = run(tool("systemd-analyze"), "verify", f"{folder}/lorad.service", f"{folder}/lorad.socket")
        said = [line for line in (done.stdout + done.stderr).splitlines() if "lorad" in line]
        check(not said, f"systemd-analyze verify: {said}")
        root = pathlib.Path(folder, "root")
        (root / "etc").mkdir(parents=True)
        done = run(tool("systemd-sysusers"), f"--root={root}", DEPLOY / "systemd/sysusers.conf")
        check_equal(done.returncode, 0, f"systemd-sysusers: {done.stderr}")
        check("lorad" in (root / "etc/passwd").read_text() and "lorad" in (root / "etc/group").read_text(), "no user")
        groups = dict(line.split(":", 1) for line in (root / "etc/group").read_text().splitlines())
        check("lorad" in groups["render"] and "lorad" in groups["video"], f"not of the GPU's groups: {groups}")
        done = run(tool("systemd-tmpfiles"), "--create", f"--root={root}", "--dry-run" if "--dry-run" in run("systemd-tmpfiles", "--help").stdout else "--create",
                   DEPLOY / "systemd/tmpfiles.conf")
        check_equal(done.returncode, 0, f"systemd-tmpfiles: {done.stderr}")


# --- what the program prints ------------------------------------------------------------------------------------------

def printed(lorad, *topic):
    done = run(lorad, "print", *topic)
    check_equal(done.returncode, 0, f"lorad print {topic}: {done.stderr}")
    return done.stdout


def check_config_file(lorad):
    """Every setting is in the printed file once, and the file with all defaults set is what serve takes."""
    import tomllib
    settings = set(re.findall(r"^  --([a-z-]+)", run(lorad, "serve", "--help").stdout, re.M)) - {"help", "config", "help-all"}
    text = printed(lorad, "config")
    keys = re.findall(r"(?m)^#([a-z0-9_]+) = ", text)
    check_equal(sorted(key.replace("_", "-") for key in keys), sorted(settings), "settings of the file and of serve --help")
    check_equal(tomllib.loads(text), {}, "what is set in a file of defaults")
    spelled_out = re.sub(r"(?m)^#([a-z0-9_]+ = )", r"\1", text)
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "lorad.toml")
        file.write_text(spelled_out.replace('model = ""', f'model = "{DEPLOY}/demo-model/base"', 1))
        done = run(lorad, "check", "--config", file)
        check_equal(done.returncode, 0, f"lorad check with all defaults spelled out: {done.stdout}{done.stderr}")
        adapters = {name: str(DEPLOY / "demo-model/adapters" / name) for name in ("pirate", "json")}
        file.write_text(printed(lorad, "config", "--set", f"model={DEPLOY}/demo-model/base", *[f"--set=lora={k}={v}" for k, v in adapters.items()]))
        check_equal(tomllib.loads(file.read_text()), {"model": f"{DEPLOY}/demo-model/base", "lora": [f"{k}={v}" for k, v in adapters.items()]}, "settings")
        check_equal(run(lorad, "check", "--config", file).returncode, 0, "lorad check")

        def reasons(text):
            file.write_text(text)
            done = run(lorad, "check", "--config", file)
            check_equal(done.returncode, 1, f"{text!r}: {done.stdout}")
            return [line for line in done.stdout.splitlines() if line.startswith("error")]
        # And what is wrong is told, in one line each.
        for bad, expected in ((f'model = "{DEPLOY}/demo-model/base"\nhost = "0.0.0.0"', "error host"), ("max_num_seqs = 0", "max_num_seqs"), ("x = 1", "no such setting"), ('model = "/nowhere"', "error model"),
                              (f'model = "{DEPLOY}/demo-model/base"\nlora = ["a=/nowhere"]', "error adapter a"), ("", "error model: none"),
                              (f'model = "{DEPLOY}/demo-model/adapters/pirate"', "a LoRA adapter"), (f'model = "{DEPLOY}/demo-model/base/model.safetensors"', "one file of weights"),
                              (f'model = "{DEPLOY}/demo-model/base"\nlora = ["a={DEPLOY}/demo-model/base"]', "a whole model"), ("max_num_sequences = 3", "did you mean max_num_seqs?")):
            check_equal(len(reasons(bad)), 1, f"{bad!r}: {reasons(bad)}")
            check(expected in reasons(bad)[0], f"{bad!r}: {reasons(bad)}")
        # Everything at once, each with its own line.
        said = reasons('model = "/nowhere"\nprot = 1\nport = 70000\nmax_num_seqs = 0\nhost = "0.0.0.0"\nlora = ["a=/nowhere", "b=/nowhere"]\ntls_cert = "/nowhere"\n'
                       'adapter_root = "/dev/null"\napi_key_file = ""')
        for expected in ("prot: no such setting; did you mean port?", "port: expected a whole number", "max_num_seqs: expected", "tls-cert and tls-key", "model: /nowhere: no such folder",
                         "adapter a: /nowhere", "adapter b: /nowhere", "host: 0.0.0.0", "tls-cert: /nowhere", "adapter-root: /dev/null"):
            check_equal(len([line for line in said if expected in line]), 1, f"{expected!r} among {said}")
        check_equal(len(said), 10, f"reasons {said}")
    check_equal(run(lorad, "print", "config", "--set", "nonsense=1").returncode, 1, "an unknown setting")
    check("did you mean max-queue?" in run(lorad, "print", "config", "--set", "max-queues=1").stderr, "a setting that was meant")


def check_switches(lorad):
    """Every switch is taken back by a flag that reads well, and the last one counts."""
    switches = [line for line in run(lorad, "serve", "--help").stdout.splitlines() if "{false}" in line]
    check(len(switches) >= 6, f"switches: {switches}")
    for line in switches:
        check("--no-no-" not in line, f"a flag for nobody: {line}")
    check(any("--no-prefix-cache,--prefix-cache{false}" in line for line in switches), "the opposite of --no-prefix-cache")
    # A wrong port ends the program before anything else: what is said is that, or that there is no such flag.
    for flags in (["--prefix-cache"], ["--no-no-prefix-cache"], ["--no-prefix-cache", "--prefix-cache"], ["--strict"], ["--no-strict"], ["--strict=false"], ["--no-no-strict"]):
        said = run(lorad, "serve", *flags, "--port", "x").stderr
        check("--port: expected a whole number" in said, f"{flags}: {said}")


def check_did_you_mean(lorad):
    """An unknown flag, command or topic is answered with the nearest that there is, and where to look."""
    for arguments, expected in ((["serve", "--max-num-sequences", "3"], ["--max-num-sequences", "did you mean --max-num-seqs?", "lorad serve --help"]),
                                (["serve", "--prefix-cahce"], ["did you mean --prefix-cache?"]), (["check", "--adaptr", "x"], ["did you mean --adapter?", "lorad check --help"]),
                                (["key", "new", "--id", "a", "--scop", "generate"], ["did you mean --scope?", "lorad key new --help"]),
                                (["serve", "--frobnicate"], ["--frobnicate", "has no such flag (see"]), (["sevre"], ["there is no command", "did you mean serve?"]),
                                (["key", "nwe"], ["there is no command", "did you mean new?", "lorad key --help"]), (["print", "confg"], ["did you mean config?"])):
        done = run(lorad, *arguments)
        check_equal(done.returncode, 1, f"{arguments}: {done.stdout}")
        for text in expected:
            check(text in done.stderr, f"{arguments}: {text!r} is not in {done.stderr!r}")


def check_new_keys(lorad):
    """lorad key new writes what the server reads, the lowest priority too."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "keys")
        for i, more in enumerate(([], ["--priority-min", "5"], ["--priority-min", "-3"])):
            done = run(lorad, "key", "new", "--id", f"k{i}", "--scope", "generate", "--file", file, *more)
            check_equal(done.returncode, 0, done.stderr)
        check_equal([json.loads(line).get("priority_min", 0) for line in file.read_text().splitlines()], [0, 5, -3], "lowest priorities")
        check_equal(run(lorad, "key", "check", file).returncode, 0, "the file")


def check_manual(lorad):
    """groff formats both man pages without a warning, and they name every command and setting."""
    groff = tool("groff")
    for page in ("lorad.1", "lorad.toml.5"):
        done = run(groff, "-man", "-Tutf8", "-ww", "-rLL=100n", input=printed(lorad, page))
        check(done.returncode == 0 and not done.stderr, f"{page}: {done.stderr[:500]}")
        text = re.sub(r"\x1b\[[\d;]*m|.\x08", "", done.stdout).replace("\u2010", "-").replace("\u2212", "-")
        words = re.findall(r"^  ([a-z]+) ", run(lorad, "--help").stdout, re.M) if page == "lorad.1" else re.findall(r"(?m)^#([a-z0-9_]+) = ", printed(lorad, "config"))
        missing = [word for word in [*words, "EXAMPLES"] if word not in text]
        check(words and not missing, f"{page} does not name {missing}")


def check_exit_statuses(lorad):
    """lorad.1 tells a lost device, which is worth a restart, from an error."""
    statuses = re.search(r"\.SH EXIT STATUS\n(.*)", printed(lorad, "lorad.1")).group(1)
    check_equal(re.findall(r"(\d+) (after a drain|after an error|where the device gave up|after a second SIGTERM)", statuses),
                [("0", "after a drain"), ("1", "after an error"), ("75", "where the device gave up"), ("130", "after a second SIGTERM")], statuses)


def check_completion(lorad):
    """bash completes commands, flags and values; zsh and fish take theirs."""
    script = printed(lorad, "bash")

    def complete(*words):
        code = (f"{script}\nCOMP_WORDS=({' '.join(repr(word) for word in words)}); COMP_CWORD={len(words) - 1}; _lorad; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        done = run("bash", "-c", code)
        check(not done.stderr, f"bash: {done.stderr}")
        return done.stdout.split()
    check_equal(complete("lorad", "se"), ["serve"], "a command")
    check("--max-num-seqs" in complete("lorad", "serve", "--max-"), "flags")
    check_equal(sorted(complete("lorad", "serve", "--log-level", "")), ["debug", "error", "info", "warn"], "values")
    check("lorad.1" in complete("lorad", "print", "l"), "topics")
    for shell, flags in (("zsh", ["-n"]), ("fish", ["--no-execute"])):
        if not shutil.which(shell):
            print(f"    {shell} is not installed: its script is not tried")
            continue
        with tempfile.NamedTemporaryFile("w", suffix=f".{shell}") as file:
            file.write(printed(lorad, shell))
            file.flush()
            done = run(shell, *flags, file.name)
            check(done.returncode == 0 and not done.stderr, f"{shell}: {done.stderr}")


# --- metrics ----------------------------------------------------------------------------------------------------------

KEYWORDS = {"by", "without", "sum", "rate", "increase", "histogram_quantile", "topk", "changes", "min_over_time", "label_values", "up", "job", "instance", "le",
            "and", "or", "unless", "avg", "max", "min"}


def names_in(expression):
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|(by|without) \([^)]*\)", " ", expression)
    return {name for name in re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", text)} - KEYWORDS


def labels_in(expression):
    """{metric: label names that it is selected or grouped by}"""
    return {match.group(1): set(re.findall(r'([a-z_]+)\s*(?:=~|!=|!~|=)', match.group(2))) for match in re.finditer(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", expression)}


def check_metric_names(lorad):
    """Dashboards and alerts name nothing that /metrics does not have."""
    yaml = yaml_module()
    expressions = {f"alert {rule['alert']}": rule["expr"] for group in yaml.safe_load((DEPLOY / "prometheus/alerts.yaml").read_text())["groups"] for rule in group["rules"]}
    dashboard = json.loads((DEPLOY / "grafana/lorad.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            expressions[f"panel {panel['title']} {target['refId']}"] = target["expr"]
    for variable in dashboard["templating"]["list"]:
        if isinstance(variable["query"], dict):
            expressions[f"variable {variable['name']}"] = re.sub(r"label_values\((.*), \w+\)", r"\1", variable["query"]["query"])
    with Server(lorad, "--max-num-seqs", "4", adapters=("pirate",)) as server:
        server.post("/v1/completions", model="pirate", prompt=[5, 6], max_tokens=3)
        server.post("/v1/completions", model="nobody", prompt=[5, 6], max_tokens=3)
        time.sleep(0.3)
        text = server.request("GET", "/metrics")[1]
    series = collections.defaultdict(set)
    for name, labels in re.findall(r"(?m)^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})? ", text):
        series[name] |= set(re.findall(r'([a-z_]+)="', labels))
    declared = set(re.findall(r"(?m)^# TYPE (\S+)", text))
    for place, expression in expressions.items():
        for name in names_in(expression):
            check(name in series or name in declared, f"{place}: /metrics has no {name}")
        for name, labels in labels_in(expression).items():
            check(name == "up" or labels - {"job", "instance"} <= series[name], f"{place}: {name} has the labels {series[name]}, not {labels}")
    print(f"    {len(expressions)} expressions, {len(declared)} metrics")
    made = run(sys.executable, DEPLOY / "grafana/make_dashboard.py").stdout
    check_equal(json.loads(made), dashboard, "lorad.json and what make_dashboard.py makes")


def check_rules(_):
    """promtool takes rules and scrape configuration."""
    promtool = tool("promtool", "/usr/bin/promtool", os.environ.get("PROMTOOL", ""))
    done = run(promtool, "check", "rules", DEPLOY / "prometheus/alerts.yaml")
    check_equal(done.returncode, 0, f"promtool check rules: {done.stdout}{done.stderr}")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(DEPLOY / "prometheus/alerts.yaml", folder)
        shutil.copy(DEPLOY / "prometheus/scrape.yaml", folder)
        done = run(promtool, "check", "config", f"{folder}/scrape.yaml")
        check_equal(done.returncode, 0, f"promtool check config: {done.stdout}{done.stderr}")


# --- proxies ----------------------------------------------------------------------------------------------------------

def haproxy_program():
    return tool("haproxy", "/usr/sbin/haproxy", os.environ.get("HAPROXY", ""))


def envoy_program():
    return tool("envoy", str(ROOT / "build/envoy-venv/bin/envoy"), os.environ.get("ENVOY", ""))


def check_haproxy(_):
    """haproxy takes the example; requests of one adapter go to one daemon, and a daemon that ends moves only its own."""
    haproxy = haproxy_program()
    done = run(haproxy, "-c", "-f", DEPLOY / "haproxy/haproxy.cfg")
    check_equal(done.returncode, 0, f"haproxy -c: {done.stdout}{done.stderr}")
    proxy_checks.requests_go_to_their_daemon("haproxy", haproxy)


def check_haproxy_failover(lorad):
    proxy_checks.a_daemons_end_costs_little("haproxy", haproxy_program(), lorad)


def check_envoy(_):
    """The same of Envoy's example; where there is no Envoy, that it is YAML and hashes the header that one of its filters makes."""
    config = yaml_module().safe_load((DEPLOY / "envoy/envoy.yaml").read_text())
    manager = config["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    check_equal([f["name"].rsplit(".", 1)[1] for f in manager["http_filters"]], ["lua", "router"], "filters")
    route = manager["route_config"]["virtual_hosts"][0]["routes"][-1]["route"]
    header = route["hash_policy"][0]["header"]["header_name"]
    check(f"replace('{header}'" in manager["http_filters"][0]["typed_config"]["default_source_code"]["inline_string"], f"no filter makes {header}")
    clusters = {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}
    check_equal(clusters[route["cluster"]]["lb_policy"], "RING_HASH", "the policy")
    envoy = envoy_program()
    done = run(envoy, "--mode", "validate", "-c", DEPLOY / "envoy/envoy.yaml")
    check_equal(done.returncode, 0, f"envoy --mode validate: {done.stderr[-800:]}")
    proxy_checks.requests_go_to_their_daemon("envoy", envoy)


def check_envoy_failover(lorad):
    proxy_checks.a_daemons_end_costs_little("envoy", envoy_program(), lorad)


# --- Kubernetes -------------------------------------------------------------------------------------------------------

def check_documents(documents, lorad, where):
    """What a schema does not say: probes, times and names fit lorad and each other."""
    import tomllib
    kinds = collections.defaultdict(list)
    for document in documents:
        check({"apiVersion", "kind", "metadata"} <= set(document) and document["metadata"].get("name"), f"{where}: no object: {document}")
        kinds[document["kind"]].append(document)
    settings = tomllib.loads(kinds["ConfigMap"][0]["data"]["lorad.toml"])
    known = {key for key in re.findall(r"(?m)^#([a-z0-9_]+) = ", printed(lorad, "config"))}
    check(set(settings) <= known, f"{where}: lorad has no settings {set(settings) - known}")
    pod = kinds["StatefulSet"][0]["spec"]["template"]
    container = pod["spec"]["containers"][0]
    check_equal(container["livenessProbe"]["httpGet"]["path"], "/health/live", "liveness")
    check_equal(container["readinessProbe"]["httpGet"]["path"], "/health/ready", "readiness")
    live = container["livenessProbe"]
    check(live["periodSeconds"] * live["failureThreshold"] + live["timeoutSeconds"] <= 15, f"{where}: a hang takes too long to be found")
    check(container["startupProbe"]["periodSeconds"] * container["startupProbe"]["failureThreshold"] >= 600, f"{where}: too little time to load")
    pause = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    grace = pod["spec"]["terminationGracePeriodSeconds"]
    check(grace >= settings["drain_timeout_s"] + pause + 5, f"{where}: {grace} s are not enough for the drain")
    check_equal(container["ports"][0]["containerPort"], settings["port"], "port")
    mounts, volumes = {m["name"] for m in container["volumeMounts"]}, {v["name"] for v in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in kinds["StatefulSet"][0]["spec"]["volumeClaimTemplates"]}
    check_equal(mounts, volumes, f"{where}: mounts and volumes")
    labels = pod["metadata"]["labels"].items()
    selectors = [kinds["StatefulSet"][0]["spec"]["selector"]["matchLabels"], kinds["Service"][0]["spec"]["selector"]]
    selectors += [d["spec"]["selector"]["matchLabels"] for d in kinds["PodDisruptionBudget"] + kinds["InferencePool"]]
    check(all(selector.items() <= labels for selector in selectors), f"{where}: a selector that fits no pod")
    check(pod["spec"]["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"], f"{where}: too many rights")
    # Whoever reaches a pod shows a key, unless the values say otherwise; and what scrapes has one, or needs none.
    mounted = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
    check(settings.get("insecure_no_keys") or settings["api_key_file"].startswith(mounted["keys"]), f"{where}: open without keys")
    open_metrics = settings.get("metrics_without_key") or settings.get("insecure_no_keys")
    for monitor in kinds["PodMonitor"]:
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            check(open_metrics or endpoint["authorization"]["credentials"].keys() == {"name", "key"}, f"{where}: a PodMonitor without a key")
    check(open_metrics or not any(name.startswith("prometheus.io") for name in pod["metadata"].get("annotations", {})), f"{where}: scraped without a key")
    check(open_metrics or not kinds["InferencePool"] or where == "kubernetes", f"{where}: the endpoint picker may not read metrics")
    for policy in kinds["NetworkPolicy"]:
        check_equal(policy["spec"]["egress"], [], "outgoing connections")
    try:
        import kubernetes_validate
    except ImportError:
        return
    for document in documents:
        if "." not in document["apiVersion"].split("/")[0] or document["apiVersion"].split("/")[0].endswith(".k8s.io") and "gateway" not in document["apiVersion"] \
                and "inference" not in document["apiVersion"]:
            kubernetes_validate.validate(document, "1.31", strict=True)


def check_kubernetes(lorad):
    """Manifests and chart: what they say of lorad is so, and the chart makes the same objects."""
    yaml = yaml_module()
    from helm_render import render_chart
    plain = [d for file in ("lorad.yaml", "gateway.yaml", "podmonitor.yaml") for d in yaml.safe_load_all((DEPLOY / "kubernetes" / file).read_text())]
    check_documents(plain, lorad, "kubernetes")
    everything = {"inferencePool": {"enabled": True}, "podMonitor": {"enabled": True}, "networkPolicy": {"from": [{"podSelector": {}}]}, "keys": {"secretName": "k"}, "tolerations": [{"key": "gpu", "operator": "Exists"}],
                  "nodeSelector": {"gpu": "yes"}, "imagePullSecrets": [{"name": "p"}], "state": {"storageClass": "fast"}, "podAnnotations": {"a": "b"}, "gpuResource": ""}
    scraped = {"podMonitor": {"enabled": True}, "config": {"metrics_without_key": True}}
    without = {"keys": {"none": True}, "podMonitor": {"enabled": True}}
    for values in ({}, scraped, without, everything):
        documents = render_chart(DEPLOY / "helm/lorad", values)
        check_documents(documents, lorad, f"helm {values}")
        kinds = {d["kind"] for d in documents}
        check({"StatefulSet", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy"} <= kinds, f"objects {kinds}")
        text = next(d["data"]["lorad.toml"] for d in documents if d["kind"] == "ConfigMap")
        check_equal("insecure_no_keys" in text, values is without, f"no keys with {values}")
    check({"InferencePool", "HTTPRoute", "PodMonitor"} <= kinds, f"objects {kinds}")
    if shutil.which("helm"):
        done = run("helm", "template", "test", DEPLOY / "helm/lorad")
        check_equal(done.returncode, 0, f"helm template: {done.stderr}")
        ours = sorted(render_chart(DEPLOY / "helm/lorad"), key=lambda d: (d["kind"], d["metadata"]["name"]))
        theirs = sorted((d for d in yaml.safe_load_all(done.stdout) if d), key=lambda d: (d["kind"], d["metadata"]["name"]))
        check_equal(ours, theirs, "what helm renders")


def check_dockerfile(_):
    """Several stages, nothing of the build in the last, no root, signals reach lorad."""
    text = (DEPLOY / "Dockerfile").read_text()
    stages = re.split(r"(?m)^FROM ", text)[1:]
    check(len(stages) == 2 and " AS build" in stages[0].splitlines()[0], "stages")
    last = stages[-1]
    check(not re.search(r"install-deps|cmake|cargo|git ", last), "the last stage builds")
    check_equal(re.findall(r"(?m)^USER (\S+)", last), ["lorad"], "user")
    check(re.search(r'(?m)^ENTRYPOINT \["/usr/bin/lorad"\]', last), "the entry point is not lorad itself, which has to get the signals")
    copied = [source for sources in re.findall(r"(?m)^COPY (?!--from)(.+) \S+$", text) for source in sources.split()]
    for source in copied:
        check(source == "." or (ROOT / source).exists(), f"COPY {source}: there is no such file")
    for source in re.findall(r'(?m)^\. "\$repo/(\S+)"', (DEPLOY / "install-deps.sh").read_text()):
        check(source in copied[:copied.index(".")], f"install-deps.sh needs {source}, which is not there yet when it runs")
    check("build" in (ROOT / ".dockerignore").read_text().split(), ".dockerignore leaves the build folder in")


def check_backup(lorad):
    """The commands of docs/OPERATIONS.md copy a state folder while lorad runs and adapters come, and what is restored is served."""
    tool("rsync")
    commands = [line.split("#")[0] for line in (ROOT / "docs/OPERATIONS.md").read_text().splitlines() if "rsync -a" in line]
    check_equal(len(commands), 2, "commands with rsync")
    sys.path.insert(0, str(ROOT / "tests/e2e"))
    from adapter_checks import files_of, registered
    with tempfile.TemporaryDirectory() as folder:
        state, backup = pathlib.Path(folder, "state"), pathlib.Path(folder, "backup")

        def do(command):
            parts = [part.strip() for part in command.replace("/var/lib/lorad", str(state)).replace("/backup/lorad", str(backup)).split("&&")]
            for part in parts:
                if not part.startswith(("systemctl", "chown", "cd ")):
                    done = run("sh", "-c", part, cwd=state)
                    check(done.returncode in (0, 24), f"{part}: {done.returncode} {done.stderr}")  # 24: files that went away meanwhile
        with Server(lorad, "--state-dir", str(state), adapters=()) as server:
            registered(server, "kept", files_of("pirate"))
            over = threading.Event()

            def change():
                number = 0
                while not over.is_set():
                    registered(server, f"later-{number % 5}", files_of(("shout", "json")[number % 2]), replace=True)
                    number += 1
            thread = threading.Thread(target=change)
            thread.start()
            try:
                for _ in range(3):
                    do(commands[0])
            finally:
                over.set()
                thread.join()
        shutil.rmtree(state)
        state.mkdir()
        do(commands[1])
        with Server(lorad, "--state-dir", str(state), adapters=()) as server:
            adapters = {a["id"]: a for a in server.request("GET", "/v1/adapters")[1]["data"]}
            check("kept" in adapters, f"after the restore: {sorted(adapters)}")
            damaged = [name for name, a in adapters.items() if a["state"] == "damaged"]
            check(not damaged, f"damaged: {damaged}")
            check_equal(server.post("/v1/completions", model="kept", prompt=[5, 6], max_tokens=2)[0], 200, "a request to the restored adapter")


CHECKS = [check_backup, check_exposure, check_units, check_config_file, check_switches, check_did_you_mean, check_new_keys, check_manual, check_exit_statuses, check_completion, check_metric_names, check_rules, check_haproxy, check_haproxy_failover,
          check_envoy, check_envoy_failover,
          check_kubernetes, check_dockerfile]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lorad", default=str(ROOT / "build/dev/lorad"))
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    failed = []
    _default_port = take_default_port()
    for test in CHECKS:
        name = test.__name__.removeprefix("check_")
        if args.only and name not in args.only.split(","):
            continue
        try:
            test(os.path.abspath(args.lorad))
        except Missing as missing:
            print(f"skip {name}: {missing}")
        except Exception as error:  # every check is to be heard
            failed.append(name)
            print(f"FAIL {name}: {error}")
            if not isinstance(error, AssertionError):
                traceback.print_exc()
        else:
            print(f"ok   {name}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
