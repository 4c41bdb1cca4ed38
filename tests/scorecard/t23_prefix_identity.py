#!/usr/bin/env python3
"""T23: a prefix is found again by content, scale, salt and tokens, never by a name."""
# beside others: yes

import json

from frame import check, check_equal, main  # first: it finds the others

from adapter_checks import FILES, files_of, registered

PROMPT = [3 + i % 200 for i in range(192)]  # two whole blocks of 64 tokens are looked up, and the last is computed


def with_alpha(files, alpha):
    """Another content: the same weights at another scale of its own."""
    return dict(files, **{FILES[0]: json.dumps(dict(json.loads(files[FILES[0]]), lora_alpha=alpha)).encode()})


def ask(server, **fields):
    status, answer = server.post("/v1/completions", prompt=PROMPT, max_tokens=4, temperature=0, ignore_eos=True, return_token_ids=True, **fields)
    check_equal(status, 200, f"{fields}: {answer}")
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["token_ids"]


def run(card):
    card.gtest("every field has a tag: all pairs of 50 texts", "adapters_tests", "CacheIdentity.*")
    card.gtest("1,000 reloads, names, scales, orders, salts", "server_tests",
               "PrefixOfNames.*:PrefixCaching.EveryContentScaleAndSaltKeepsToItself:PrefixCaching.AnActivatedAdapterSharesWithTheBaseUpToItsActivation")
    n_reloads = 30 if card.quick else 1000
    n_hits = n_stale = n_own = 0
    files = files_of("pirate")
    with card.part("over HTTP: a name that is loaded again with other content"), card.server("--batch-invariant") as server:
        alone = {}
        for i in range(n_reloads):
            registered(server, "name", with_alpha(files, 4 + i * 0.25), replace=True)
            cached, alone[i] = ask(server, model="name")
            n_hits += cached > 0
            again, tokens = ask(server, model="name")
            n_own += again > 0
            n_stale += tokens != alone[i]
        check_equal((n_hits, n_stale), (0, 0), "hits and stale answers across contents")
        check_equal(n_own, n_reloads, "hits of the own content")
        check(len({json.dumps(tokens) for tokens in alone.values()}) > 1, "contents that all answer alike prove nothing")
    with card.part("over HTTP: base, adapter, salts named like each other, scales, two names of one file"), card.server("--batch-invariant") as server:
        registered(server, "name", files)
        registered(server, "other", files_of("shout"))
        base = server.request("GET", "/v1/models")[1]["data"][0]["id"]
        cases = [{"model": base}, {"model": "name"}, {"model": "other"}, {"model": base, "cache_salt": "name"}, {"model": "name", "cache_salt": "name"},
                 {"model": "name", "cache_salt": base}, {"model": base, "cache_salt": "\u0001name"}, {"model": "name", "cache_salt": "1"},
                 {"model": "other", "cache_salt": "name"}]
        check_equal([ask(server, **case)[0] for case in cases], [0] * len(cases), "first requests that found something")
        check(all(ask(server, **case)[0] > 0 for case in cases), "second requests that found nothing")
        status, body = server.post("/v1/adapters", name="half", adapters=[{"name": "name", "scale": 0.5}])
        check_equal(status, 201, f"a mix: {body}")
        check_equal(ask(server, model="half")[0], 0, "another scale")
        registered(server, "twin", files)
        check(ask(server, model="twin")[0] > 0, "the same file under another name is the same prefix")
    card.figure("cross hits", n_hits)
    card.figure("stale outputs", n_stale)
    card.trials += n_reloads + 1000  # here and in the engine's own
    card.figure("pairs of texts", 4 * 50 * 50)


if __name__ == "__main__":
    main("T23", run)
