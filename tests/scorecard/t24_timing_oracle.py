#!/usr/bin/env python3
"""T24: what another tenant has asked cannot be told from the time of an answer; within a tenant a cached prefix still saves most of it.

The attacker guesses a prompt that the victim has sent a moment ago, and one that nobody has sent, in random order; AUC is how well times tell the two
apart (0.5: not at all). Each guess is another prompt: the second guess of one would find the attacker's own.
"""
# beside others: yes

import json
import math
import statistics
import time

from frame import check, check_equal, main
from t10_authorisation import key_file, key_of

SHORT, LONG = 128, 1792  # tokens of a guessed prompt, and of one that is worth caching


class Tenant:
    """One connection that stays, so that times are of the answer alone."""

    def __init__(self, server, key):
        import http.client
        self.connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
        self.used = 0.0
        self.headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key_of(key)}"}

    def ask(self, tokens):
        """Seconds, and how many tokens were found in the cache."""
        body = json.dumps({"prompt": tokens, "max_tokens": 1, "temperature": 0})
        if time.monotonic() - self.used > 2:  # the server may have closed it meanwhile
            self.connection.close()
            self.connection.connect()
        began = time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, self.headers)
        response = self.connection.getresponse()
        answer = json.loads(response.read())
        seconds = time.perf_counter() - began
        self.used = time.monotonic()
        check_equal(response.status, 200, f"an answer: {answer}")
        return seconds, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def auc_of(ones, others):
    """The share of pairs in which the first is faster, ties half; not below 0.5, since either order tells them apart."""
    pairs = sorted([(value, 0) for value in ones] + [(value, 1) for value in others])
    rank_sum, i = 0.0, 0
    while i < len(pairs):
        j = i
        while j < len(pairs) and pairs[j][0] == pairs[i][0]:
            j += 1
        rank_sum += (i + 1 + j) / 2 * sum(kind == 0 for _, kind in pairs[i:j])
        i = j
    share = 1 - (rank_sum - len(ones) * (len(ones) + 1) / 2) / (len(ones) * len(others))
    return max(share, 1 - share)


def guess(card, victim, attacker, n):
    """Times of guesses that the victim has asked, and of others; what the cache had of either."""
    times, cached = ([], []), [0, 0]
    for _ in range(n):
        prompts = [[card.random.randrange(10, 4000) for _ in range(SHORT)] for _ in range(2)]
        victim.ask(prompts[0])
        order = [0, 1]
        card.random.shuffle(order)
        for kind in order:
            seconds, found = attacker.ask(prompts[kind])
            times[kind].append(seconds)
            cached[kind] += found
    return times, cached


def run(card):
    card.gtest("salts and shares of tenants", "server_tests", "KeyFileTest.TenantsHaveSaltsOfTheirOwn:TenantsTest.PrefixesAreSharedWithinATenantOnly:"
                                                              "TenantsTest.AGatewaysHeaderCountsWithAKeyForEverythingOnly")
    path = key_file(card.folder, victim={"tenant": "red"}, colleague={"tenant": "red"}, attacker={"tenant": "blue"})
    with card.server("--api-key-file", path, adapters=(), lorad=card.lorad) as server:
        victim, colleague, attacker = (Tenant(server, name) for name in ("victim", "colleague", "attacker"))
        guess(card, victim, attacker, 1)  # warm
        with card.part("the times of guesses can be told apart at all"):
            times, cached = guess(card, victim, colleague, 6 if card.quick else 100)
            check(cached[0] > 0 and cached[1] == 0, f"cached tokens within a tenant: {cached}")
            control = auc_of(*times)
            card.figure("AUC within a tenant", control)
            # The fewer guesses, the more of it is chance: the counts above stand for it then.
            check(card.quick or control >= 0.8, f"an attacker of the same tenant has AUC {control}: the test could not see an oracle")
        n = 8 if card.quick else 2000
        with card.part("another tenant's prefix takes as long as nobody's"):
            times, cached = guess(card, victim, attacker, n)
            card.trials += 2 * n
            auc = auc_of(*times)
            # Three standard deviations of an AUC that is 0.5.
            noise = 3 * math.sqrt((2 * n + 1) / (12 * n * n))
            check_equal(cached, [0, 0], "cached tokens that another tenant has computed")
            check(card.quick or auc <= 0.55 + noise, f"AUC {auc}: medians {statistics.median(times[0])} s and {statistics.median(times[1])} s")
            card.grade("AUC across tenants", auc, 0.55)
        with card.part("a cached prefix is faster"):
            ratios = []
            for _ in range(1 if card.quick else 30):
                prompt = [card.random.randrange(10, 4000) for _ in range(LONG // 2 if card.quick else LONG)]
                miss, none = victim.ask(prompt)
                hit, found = colleague.ask(prompt)
                check(none == 0 and found >= len(prompt) - 64, f"cached tokens {none} and {found} of {len(prompt)}")
                ratios.append(miss / hit)
            card.grade("hit faster by", statistics.median(ratios), 5, better="higher")
    if card.quick:
        card.short_of("2,000 guesses of either kind: --tier nightly")


if __name__ == "__main__":
    main("T24", run)
