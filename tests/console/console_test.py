#!/usr/bin/env python3
"""The console in a headless Chromium, against the real program with the demo model.

    tests/console/console_test.py --lorad build/dev/lorad [--screenshots FOLDER]

Standard library only. Every check runs in one page; at the end nothing may have been asked of another origin, and the browser may have
complained of nothing.
"""

import argparse
import json
import pathlib
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


def check_a_mix_and_an_error(page, server):
    page.js('document.querySelector("#playground-form").elements.max_tokens.value = "8"')
    page.js('[...document.querySelectorAll("#playground-models input:checked")].forEach((i) => i.click())')
    page.click("#mix-text")
    page.type_text("pirate:0.5, shout:0.5")
    page.press("Enter", text="\r")
    page.until('document.querySelector("#playground-models").innerText.includes("0.5 pirate + 0.5 shout")', "the mix")
    page.click("#playground-run")
    page.until('/^(length|stop)$/.test(document.querySelector("#answers .pill")?.innerText)', "the mix answers")
    # Escaped, not made markup of; and the refusal is shown with its code. The browser reports the refusal, which is expected here.
    n_errors = len(page.errors)
    page.click("#mix-text")
    page.type_text("<img src=x>:1")
    page.press("Enter", text="\r")
    page.click("#playground-run")
    page.until('document.querySelector("#answers .notice.error code")?.innerText === "adapter_not_found"', "the error's code")
    check_equal(page.js('document.querySelectorAll("#playground img").length'), 0, "markup from a name")
    page.until('document.querySelector("#playground-stop").disabled', "the run ends")
    time.sleep(0.2)
    unexpected = [e for e in page.errors[n_errors:] if "404" not in e or "/v1/chat/completions" not in e]
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
    # Another content under the same name, by the page, then back.
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
    page.click("#dialog-ok")
    page.until('sessionStorage.getItem("lorad-api-key") === "secret"', "the key is kept")
    check_equal(page.js("JSON.stringify(localStorage)").count("secret"), 0, "the key in a lasting place")
    sent = page.js("""import("./console/api.js").then(async ({get}) => { const real = window.fetch; let seen; window.fetch = (u, i) => { seen = i.headers; return real(u, i); };
        await get("/v1/models"); window.fetch = real; return seen.Authorization; })""")
    check_equal(sent, "Bearer secret", "the header")


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
                  check_two_adapters_stream_side_by_side, check_a_mix_and_an_error, check_activate_roll_back_delete,
                  check_colours_phones_and_keyboards, check_the_key_is_sent_and_kept_in_the_tab]
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
    print("console: all checks passed")


if __name__ == "__main__":
    sys.exit(main())
