#!/usr/bin/env python3
"""T21: a stored file of which a bit, the length or the contents have changed is found before it is served; its adapter is put aside with a reason, others go on."""
# beside others: yes

from frame import check, check_equal, check_error, main

from adapter_checks import FILES, digest_of, files_of, ids, registered
from faults import store_folder


def flip(path, random):
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def run(card):
    card.gtest("bits, cuts, swaps in files of adapters", "store_faults", "BitRot.InAnyFileIsFoundBeforeItIsServed",
               env={"LORAD_TEST_ADAPTERS": "40" if card.quick else "500"}, seconds=3600, less_when_quick=True)
    card.gtest("the registry is mended from its copy", "store_faults", "BitRot.InTheRegistryIsMendedFromItsCopy")
    state = card.folder / "state"
    flags = ("--state-dir", str(state), "--log-level", "error")
    with card.part("over HTTP"):
        with card.server(*flags, adapters=()) as server:
            for name in ("pirate", "shout"):
                registered(server, name, files_of(name))
            alone = {name: ids(server, 8, model=name) for name in ("pirate", "shout")}
        weights = digest_of(files_of("pirate")[FILES[1]])
        store = store_folder(state)
        flip(store / "blobs" / weights, card.random)
        flip(store / "registry.json", card.random)
        with card.server(*flags, adapters=()) as server:
            ask = {"prompt": [1, 2, 3], "max_tokens": 1}
            check_error(server.post("/v1/completions", model="pirate", **ask), 507, "lora_storage_unavailable", contains=["damaged", weights])
            check_error(server.post("/v1/adapters/pirate/activate"), 507, "lora_storage_unavailable")
            check((store / "damaged" / weights).exists() and not (store / "blobs" / weights).exists(), "it was not put aside")
            shown = server.request("GET", "/v1/adapters/pirate")[1]
            check_equal(shown["state"], "damaged", f"state of {shown}")
            check_equal(ids(server, 8, model="shout"), alone["shout"], "the other adapter")
            check_equal(server.request("GET", "/health/live")[0], 200, "the server")
            check_equal(server.post("/v1/completions", model="base", **ask)[0], 200, "the base")
            registered(server, "pirate", files_of("pirate"), replace=True)
            check_equal(ids(server, 8, model="pirate"), alone["pirate"], "uploaded again")
    card.figure("changed and served", 0)
    card.trials += 2
    if card.quick:
        card.short_of("1,000 bits and 200 cuts: tests/scorecard.sh --tier nightly --only T21")


if __name__ == "__main__":
    main("T21", run)
