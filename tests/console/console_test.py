#!/usr/bin/env python3
"""The console in a headless Chromium, against the real program with the demo model.

    tests/console/console_test.py --lorad build/dev/lorad [--screenshots FOLDER]

Standard library only. Every check runs in one page; at the end nothing may have been asked of another origin, and the browser may have
complained of nothing.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.parse

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from browser import Browser, find_chromium  # noqa: E402
from harness import MODEL, Server, check, check_equal  # noqa: E402

FILES = ("adapter_config.json", "adapter_model.safetensors")
SHOUT = MODEL / "adapters/shout"
CTRL = 2


def text_of(page, selector):
    return page.js(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")


def row(name):
    return f'tr[data-adapter="{name}"]'


def action(name, label):
    return f'{row(name)} button[aria-label^="{label}"]'


def legend(title):
    """The legend of a chart, as numbers by name; 1.2 k is 1200."""
    return f"""Object.fromEntries([...[...document.querySelectorAll(".chart")].find((c) => c.innerText.startsWith({json.dumps(title)}))
        .querySelectorAll("li")].map((li) => [li.firstElementChild.nextSibling.textContent.trim(),
        parseFloat(li.lastElementChild.textContent) * (li.lastElementChild.textContent.endsWith("k") ? 1000 : 1)]))"""


def check_overview_shows_model_and_device(page, server):
    page.until('document.querySelector("#health").innerText === "ready"', "health")
    facts = page.until('document.querySelector("#facts").children.length === 6 && document.querySelector("#facts").innerText', "facts")
    for word in ("base", "context 2048 tokens", "on the CPU", "blocks of 64 tokens", "on the device"):
        check(word in facts, f"{word!r} is not among the facts: {facts}")
    page.until('document.querySelectorAll("#adapter-rows tr").length === 1', "the adapter that the server began with")


def check_an_adapter_is_dropped_and_added(page, server):
    page.drop_files("#drop", [SHOUT / name for name in FILES])
    report = page.until('document.querySelector("#upload-report .report")?.innerText', "the report of the dry run")
    for word in ("fits", "peft", "16", "q_proj"):
        check(word in report, f"{word!r} is not in the report: {report}")
    page.until('document.activeElement.id === "upload-name"', "the name has the focus")
    page.type_text("shout")
    page.press("Enter", text="\r")
    page.until(f"!!document.querySelector({json.dumps(row('shout'))})", "the new row")
    page.until('document.querySelector("#event-list").innerText.includes("registered")', "the event")
    generation = server.request("GET", "/v1/adapters/shout")[1]["generation"]
    check(generation[:12] in text_of(page, row("shout")), "generation of the row")
    # The page's own SHA-256 was right, or the blobs would have been refused; once more over sizes around the blocks.
    import hashlib
    for n in (0, 1, 55, 56, 63, 64, 65, 119, 120, 1000):
        found = page.js(f"""import("./console/sha256.js").then(({{Sha256}}) => {{ const h = new Sha256(); const b = new Uint8Array({n}).map((_, i) => i * 7);
            h.update(b.subarray(0, {n // 3})); h.update(b.subarray({n // 3})); return h.hex(); }})""")
        check_equal(found, hashlib.sha256(bytes(i * 7 % 256 for i in range(n))).hexdigest(), f"SHA-256 of {n} bytes")


def check_a_misfit_is_explained(page, server):
    content = (SHOUT / FILES[1]).read_bytes().replace(b"base_model.model.model.", b"base_model.model.mudel.")
    with tempfile.TemporaryDirectory() as folder:
        for name, data in ((FILES[0], (SHOUT / FILES[0]).read_bytes()), (FILES[1], content)):
            pathlib.Path(folder, name).write_bytes(data)
        node = page.call("DOM.querySelector", nodeId=page.call("DOM.getDocument")["root"]["nodeId"], selector="#upload-files")["nodeId"]
        page.call("DOM.setFileInputFiles", nodeId=node, files=[f"{folder}/{name}" for name in FILES])
        report = page.until('document.querySelector("#upload-report .report")?.innerText', "the report")
    check("does not fit" in report and "mudel" in report and "adapter_invalid" in report, report)
    check(page.js('document.querySelector("#upload-register").hidden'), "what does not fit can be added")


def check_traffic(page, names):
    """Each of these has a line with what it was asked for and how long that took."""
    for name in names:
        line = page.until(f"""[...(document.querySelector('#traffic-rows tr[data-traffic="{name}"]')?.children ?? [])].map((c) => c.innerText)""", f"traffic of {name}")
        check(line[0] == name and int(line[1]) >= 1 and int(line[2]) >= 1, f"requests of {name}: {line}")
        check(all(text.endswith(("ms", " s")) for text in line[5:7]), f"times of {name}: {line}")


def check_two_adapters_stream_side_by_side(page, server):
    page.until(f'{legend("Tokens per second")}.generated === 0', "tokens/s before")
    picture = page.js('document.querySelector(".chart canvas").toDataURL()')
    for name in ("pirate", "shout"):
        page.click(action(name, "Try"))
    page.until('document.activeElement.name === "prompt"', "the prompt has the focus")
    page.js('document.querySelector("#playground-form").elements.temperature.value = "0"')
    page.press("Enter", modifiers=CTRL)
    page.until('document.querySelectorAll("#answers .answer").length === 3', "three answers")
    page.until('[...document.querySelectorAll("#answers .pill")].every((p) => p.innerText === "stop")', "all answers end")
    answers = page.js("""Object.fromEntries([...document.querySelectorAll(".answer")].map((a) => [a.dataset.target,
        [a.querySelector(".text").innerText, a.querySelector("footer").innerText]]))""")
    check_equal(list(answers), ["base (base)", "pirate", "shout"], "who answered")
    check("matey" in answers["pirate"][0] and answers["shout"][0].isupper(), f"answers {answers}")
    check_traffic(page, ("base", "pirate", "shout"))
    for name in ("pirate", "shout"):
        generation = server.request("GET", f"/v1/adapters/{name}")[1]["generation"]
        check("tokens/s" in answers[name][1] and generation[:12] in answers[name][1], f"numbers of {name}: {answers[name][1]}")
    # A chart moves: an endless answer is seen in its numbers and in its pixels.
    page.js('document.querySelector("#playground-form").elements.max_tokens.value = "1500"')
    page.js('document.querySelector("#playground-form").elements.temperature.value = "2"')
    page.click("#playground-run")
    page.until(f'{legend("Tokens per second")}.generated > 0', "the chart of tokens/s")
    page.until(f'{legend("Batch")}.sequences >= 1', "the chart of the batch")
    check(page.js('document.querySelector(".chart canvas").toDataURL()') != picture, "the chart's pixels")
    page.js('document.querySelector("#playground-form").elements.prompt.focus()')
    page.press("Escape")
    page.until('!document.querySelector(".answer.running") && document.querySelector("#playground-stop").disabled', "Esc stops the answers")
    page.until(f'{legend("Requests")}.running === 0', "the server has stopped as well")
    # Where the pointer is, a chart says when that was.
    check_equal(text_of(page, ".chart time"), "", "a time without a pointer")
    at = page.center(".chart canvas")
    page.call("Input.dispatchMouseEvent", type="mouseMoved", **{**at, "x": at["x"] + 150})
    said = page.until('document.querySelector(".chart time").innerText', "the time under the pointer")
    check(re.search(r"\d:\d\d:\d\d.*, \d+ s ago$", said), f"the time {said!r}")


def check_a_chat_goes_on(page, server):
    """The second prompt goes out with the first and its answer; a command is what was asked; a new chat begins with nothing."""
    page.click("#playground-new")
    page.until('document.querySelector("#answers").children.length === 0 && document.querySelector("#playground-new").disabled', "nothing is left")
    page.js("""(() => { const f = document.querySelector("#playground-form").elements; f.temperature.value = "0"; f.max_tokens.value = "40"; f.system.value = "";
        f.prompt.value = "How much is 8 plus 5?"; window.sent = []; window.real = window.fetch;
        window.fetch = (u, i) => { if (i?.method === "POST") window.sent.push(JSON.parse(i.body)); return window.real(u, i); }; })()""")
    for n in (1, 2):
        page.js(f'document.querySelector("#playground-form").elements.prompt.value = "Question {n}: it\'s what?"')
        page.click("#playground-run")
        page.until(f'document.querySelectorAll("#answers .answer .text").length === {3 * n} && !document.querySelector(".answer.running")', f"answer {n}")
    sent = page.js("window.fetch = window.real, window.sent")
    for model in ("base", "pirate", "shout"):
        first, second = [body["messages"] for body in sent if body["model"] == model]
        check_equal([m["role"] for m in second], ["user", "assistant", "user"], f"roles of {model}'s second turn")
        check_equal(second[0], first[0], "the first prompt")
        shown = page.js(f'document.querySelector(\'.answer[data-target^="{model}"] .text\').textContent')
        check_equal(second[1]["content"], shown, "what it had answered")
    page.js('Object.defineProperty(navigator, "clipboard", { value: { writeText: (text) => { window.copied = text; return Promise.resolve(); } }, configurable: true })')
    page.click('.answer[data-target="pirate"] footer button')
    command = page.until("window.copied", "the command")
    done = subprocess.run(["bash", "-c", command + " -s"], capture_output=True, text=True, timeout=60, check=True)
    answered = json.loads(done.stdout)["choices"][0]["message"]["content"]
    check_equal(answered, page.js('[...document.querySelectorAll(\'.answer[data-target="pirate"] .text\')].at(-1).textContent'), "what the command gets")
    page.click("#playground-new")
    page.until('document.querySelector("#answers").children.length === 0', "a new chat")


def check_a_mix_and_an_error(page, server):
    page.js('document.querySelector("#playground-form").elements.max_tokens.value = "8"')
    page.js('[...document.querySelectorAll("#playground-models input:checked")].forEach((i) => i.click())')
    page.click("#mix-text")
    page.type_text("pirate:0.5, shout:0.5")
    page.press("Enter", text="\r")
    page.until('document.querySelector("#playground-models").innerText.includes("0.5 pirate + 0.5 shout")', "the mix")
    page.click("#playground-run")
    page.until('/^(length|stop)$/.test(document.querySelector("#answers .pill")?.innerText)', "the mix answers")
    # An unknown name is refused at once, as text, and goes when it is typed over.
    n_chips = page.js('document.querySelectorAll("#playground-models input").length')
    page.click("#mix-text")
    page.type_text("pirate:0.3, <img src=x>:1")
    page.press("Enter", text="\r")
    said = page.until('!document.querySelector("#mix-error").hidden && document.querySelector("#mix-error").innerText', "the refusal")
    check("No adapter is called <img src=x>." in said and "pirate" in said, said)
    check_equal(page.js('document.querySelectorAll("#playground img").length'), 0, "markup from a name")
    check_equal(page.js('document.querySelectorAll("#playground-models input").length'), n_chips, "choices")
    page.js('document.querySelector("#mix-text").value = ""')
    page.type_text("pirate:2")
    page.until('document.querySelector("#mix-error").hidden', "the refusal is gone")
    page.press("Enter", text="\r")
    page.until(f'document.querySelectorAll("#playground-models input").length === {n_chips + 1}', "another mix")
    page.click(".chip-pair:last-child .chip-remove")
    page.until(f'document.querySelectorAll("#playground-models input").length === {n_chips}', "the mix is removed")
    # What the server refuses is shown with its code. The browser reports the refusal, which is expected here.
    n_errors = len(page.errors)
    page.js('document.querySelector("#playground-form").elements.max_tokens.value = "4000"')
    page.click("#playground-run")
    page.until('document.querySelector("#answers .notice.error code")?.innerText === "context_length_exceeded"', "the error's code")
    page.until('document.querySelector("#playground-stop").disabled', "the run ends")
    page.js('document.querySelector("#playground-form").elements.max_tokens.value = "8"')
    time.sleep(0.2)
    unexpected = [e for e in page.errors[n_errors:] if "400" not in e or "/v1/chat/completions" not in e]
    check_equal(unexpected, [], "errors")
    del page.errors[n_errors:]


def check_activate_roll_back_delete(page, server):
    page.click(action("shout", "Activate"))
    page.until('document.querySelector("#dialog").open', "the dialog")
    page.click('#dialog input[value="merged"]')
    page.click('#dialog input[type="checkbox"]')
    page.click("#dialog-ok")
    page.until(f"/merged[^]*pinned/.test(document.querySelector({json.dumps(row('shout'))})?.innerText)", "merged and pinned")
    check_equal(server.request("GET", "/v1/adapters/shout")[1]["mode"], "merged", "mode")
    page.click(action("shout", "Deactivate"))
    page.until(f"!/merged/.test(document.querySelector({json.dumps(row('shout'))})?.innerText)", "unmerged")
    # Another content under the same name, by the page, then back; before that there is nothing to go back to.
    check(not page.js(f"!!document.querySelector({json.dumps(action('shout', 'Roll back'))})"), "a way back without a history")
    first = server.request("GET", "/v1/adapters/shout")[1]["generation"]
    page.drop_files("#drop", [MODEL / "adapters/formal" / name for name in FILES])
    page.until('!document.querySelector("#upload-register").hidden', "the dry run")
    page.js('document.querySelector("#upload-name").value = ""')
    page.click("#upload-name")
    page.type_text("shout")
    page.until('document.querySelector("#upload-name").value === "shout"', "the name")
    page.click("#upload-replace")
    page.until('document.querySelector("#upload-replace").checked', "the mark to replace")
    page.click("#upload-register button")
    page.until(f"!document.querySelector({json.dumps(row('shout'))}).innerText.includes({json.dumps(first[:12])})", "replaced")
    page.click(action("shout", "Roll back"))
    page.until('document.querySelector("#dialog").open', "the dialog")
    page.click("#dialog-ok")
    page.until(f"document.querySelector({json.dumps(row('shout'))}).innerText.includes({json.dumps(first[:12])})", "rolled back")
    # All buttons of a row stand in one line, Delete apart from the others.
    check_equal(server.post("/v1/adapters/shout/activate", mode="merged", pin=True)[0], 200, "activation")
    page.until(f"document.querySelectorAll({json.dumps(row('shout') + ' .actions button')}).length === 6", "all buttons that there can be")
    boxes = page.js(f"[...document.querySelectorAll({json.dumps(row('shout') + ' .actions button')})].map((b) => {{ const r = b.getBoundingClientRect(); return [r.left, r.right, r.top]; }})")
    check(len({top for _, _, top in boxes}) == 1, f"lines of buttons: {boxes}")
    edge = page.js('document.querySelector("table.adapters").parentElement.getBoundingClientRect().right')
    check(boxes[-1][1] <= edge, f"buttons end at {boxes[-1][1]}, their table at {edge}")
    gaps = [b[0] - a[1] for a, b in zip(boxes, boxes[1:])]
    check(gaps[-1] > 1.5 * max(gaps[:-1]), f"gaps between buttons: {gaps}")
    # By keyboard: the dialog is left with Esc and nothing happens, then confirmed with Enter.
    for key, gone in (("Escape", False), ("Enter", True)):
        page.js(f"document.querySelector({json.dumps(action('shout', 'Delete'))}).focus()")
        page.press("Enter", text="\r")
        page.until('document.querySelector("#dialog").open', "the dialog")
        if gone:
            page.js('document.querySelector("#dialog-ok").focus()')
        page.press(key, text="\r" if key == "Enter" else None)
        page.until('!document.querySelector("#dialog").open', "the dialog is closed")
        if not gone:
            page.until(f"document.activeElement === document.querySelector({json.dumps(action('shout', 'Delete'))})", "the focus is back")
            page.until('!document.querySelector("[aria-busy=true]")', "nothing is under way")
        if gone:
            page.until(f"!document.querySelector({json.dumps(row('shout'))})", "deleted")
        check_equal(server.request("GET", "/v1/adapters/shout")[0], 404 if gone else 200, "the adapter")


def check_colours_phones_and_keyboards(page, server):
    def shot(name):
        if page.screenshots:
            page.screenshot(str(pathlib.Path(page.screenshots) / f"{name}.png"))

    grounds = {}
    for scheme in ("light", "dark"):
        page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        grounds[scheme] = page.js("getComputedStyle(document.body).backgroundColor")
        shot(f"desktop-{scheme}")
    check(grounds["light"] != grounds["dark"], f"both schemes look alike: {grounds}")
    page.click("#theme-button")
    check_equal(page.js("getComputedStyle(document.body).backgroundColor"), grounds["light"], "light by choice")
    for width in (1280, 768, 390, 320):
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=2, mobile=width < 700)
        time.sleep(0.2)
        shot(f"width-{width}")
        found = page.js("[document.documentElement.scrollWidth, window.innerWidth]")
        check(found[0] <= width, f"at {width} pixels the page is {found[0]} wide")
    page.call("Emulation.clearDeviceMetricsOverride")
    unnamed = page.js("""[...document.querySelectorAll("button, input, textarea, select, a, canvas")].filter((e) => !(e.innerText || e.getAttribute("aria-label") ||
        e.labels?.length || e.closest("label"))).map((e) => e.outerHTML)""")
    check_equal(unnamed, [], "controls without a name")
    # A keyboard alone comes everywhere, and sees where it is.
    page.js('document.querySelector(".skip").focus()')
    reached = set()
    for _ in range(60):
        page.press("Tab")
        found = page.js('[document.activeElement.id || document.activeElement.innerText || document.activeElement.name, getComputedStyle(document.activeElement).outlineStyle]')
        reached.add(found[0])
    for name in ("key-button", "prompt", "mix-add", "playground-run", "Delete…", "upload-files", "event-list"):
        check(name in reached, f"Tab does not come to {name}: {sorted(reached)}")


def check_the_key_is_sent_and_kept_in_the_tab(page, server):
    page.click("#key-button")
    page.until('document.querySelector("#dialog").open', "the dialog")
    page.click("#dialog input")
    page.type_text("secret")
    page.press("Enter", text="\r")
    page.until('sessionStorage.getItem("lorad-api-key") === "secret"', "the key is kept")
    check_equal(page.js("JSON.stringify(localStorage)").count("secret"), 0, "the key in a lasting place")
    sent = page.js("""import("./console/api.js").then(async ({get}) => { const real = window.fetch; let seen; window.fetch = (u, i) => { seen = i.headers; return real(u, i); };
        await get("/v1/models"); window.fetch = real; return seen.Authorization; })""")
    check_equal(sent, "Bearer secret", "the header")


def expected_errors(page, *parts):
    """The browser tells of every refusal: what was to be refused is taken out of its complaints."""
    page.errors[:] = [error for error in page.errors if not any(part in error for part in parts)]


def check_keys(page, lorad):
    """With keys the page asks for one, says when it is wrong, and shows a key what it may see and nothing else."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "keys")
        keys = {scope: subprocess.run([lorad, "key", "new", "--id", scope.replace(":", "-"), "--scope", scope, "--file", str(file)], capture_output=True, text=True,
                                      check=True).stdout.strip() for scope in ("generate", "metrics", "admin")}
        with Server(lorad, "--api-key-file", str(file), adapters=("pirate",)) as server:
            page.js("sessionStorage.clear()")
            page.open(f"http://{server.host}:{server.port}/console")

            def give(key):
                page.js('document.querySelector("#dialog input").value = ""')
                page.click("#dialog input")
                page.type_text(key)
                page.press("Enter", text="\r")

            def shown():
                return page.js("""["load", "playground", "adapters", "events"].filter((id) => document.getElementById(id).getClientRects().length > 0 &&
                    document.querySelector(`nav a[href="#${id}"]`)?.getClientRects().length !== 0)""")
            page.until('document.querySelector("#dialog").open', "the page asks for a key")
            give("nonsense")
            page.until('!document.querySelector("#dialog-problem").hidden', "the wrong key is refused")
            check(page.js('document.querySelector("#dialog").open'), "the dialog is gone with a wrong key")
            check("does not know this key" in text_of(page, "#dialog-problem"), text_of(page, "#dialog-problem"))
            give(f" {keys['generate']} ")
            page.until('!document.querySelector("#dialog").open && document.querySelector("#health").innerText === "ready"', "the key is taken")
            page.until('document.querySelector("#playground-models").innerText.includes("pirate")', "who may answer")
            page.until('!document.querySelector("#access-note").hidden', "what is not shown is said")
            check_equal(shown(), ["playground"], "parts for a key that generates")
            n_asked = len(page.requests)
            time.sleep(4)
            again = [url for url in page.requests[n_asked:] if "/metrics" in url or "/v1/adapters" in url]
            check_equal((again, text_of(page, "#notices")), ([], ""), "asked again for what was refused, and notices")
            page.js('document.querySelector(\'input[value="pirate"]\').click()')
            page.click("#playground-run")
            page.until('[...document.querySelectorAll("#answers .pill")].filter((p) => p.innerText === "stop").length === 2', "both answer")
            if page.screenshots:
                page.screenshot(str(pathlib.Path(page.screenshots) / "key-generate.png"))
            for scope, parts in (("metrics", ["load"]), ("admin", ["load", "playground", "adapters", "events"])):
                page.click("#key-button")
                page.until('document.querySelector("#dialog").open', "the dialog")
                give(keys[scope])
                page.until('!document.querySelector("#dialog").open', "the key is taken")
                time.sleep(2.5)
                check_equal(shown(), parts, f"parts for the scope {scope}")
            expected_errors(page, "401", "403")
            page.open("about:blank")


def check_the_root_leads_to_the_console(page, server):
    page.open(f"http://{server.host}:{server.port}/")
    page.until('location.pathname === "/console" && document.querySelector("#health").innerText === "ready"', "the console")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--screenshots")
    args = parser.parse_args()
    program = find_chromium()
    check(program, "no chromium: install the package, or name it in LORAD_CHROMIUM")
    if args.screenshots:
        pathlib.Path(args.screenshots).mkdir(parents=True, exist_ok=True)
    with Server(args.lorad, adapters=("pirate",)) as server, Browser(program) as page:
        origin = f"http://{server.host}:{server.port}"
        page.screenshots = args.screenshots
        page.open(f"{origin}/console")
        checks = [check_overview_shows_model_and_device, check_an_adapter_is_dropped_and_added, check_a_misfit_is_explained,
                  check_two_adapters_stream_side_by_side, check_a_chat_goes_on, check_a_mix_and_an_error, check_activate_roll_back_delete,
                  check_colours_phones_and_keyboards, check_the_key_is_sent_and_kept_in_the_tab, check_the_root_leads_to_the_console]
        for one in checks:
            began = time.monotonic()
            try:
                one(page, server)
            except AssertionError:
                if args.screenshots:
                    page.screenshot(str(pathlib.Path(args.screenshots) / "failure.png"))
                print("\n".join(page.errors))
                raise
            print(f"ok {one.__name__} ({time.monotonic() - began:.1f} s)")
        foreign = [url for url in page.requests if urllib.parse.urlsplit(url).scheme != "data" and not url.startswith(origin)]
        check_equal(foreign, [], "requests to other origins")
        check(len(page.requests) > 20, "requests were not seen")
        check_equal(page.errors, [], "the browser's complaints")
        check_keys(page, args.lorad)
        check_equal(page.errors, [], "the browser's complaints with keys")
    print("console: all checks passed")


if __name__ == "__main__":
    sys.exit(main())
