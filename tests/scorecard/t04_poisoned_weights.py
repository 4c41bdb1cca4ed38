#!/usr/bin/env python3
"""T4: weights that are not finite, or absurd, are refused; were they loaded, their requests would end by themselves and no bit of others would change."""
# beside others: yes

import json
import struct

from frame import check, check_equal, check_error, main

from adapter_checks import FILES, files_of, ids, register

VALUES = {"F32": {"NaN": 0x7fc00000, "signalling NaN": 0x7f800001, "infinity": 0x7f800000, "-infinity": 0xff800000, "1e38": 0x7e967699, "-1e38": 0xfe967699},
          "BF16": {"NaN": 0x7fc0, "infinity": 0x7f80, "-infinity": 0xff80, "1e38": 0x7e96},
          "F16": {"NaN": 0x7e00, "infinity": 0x7c00, "-infinity": 0xfc00}}


def tensors_of(weights):
    n = int.from_bytes(weights[:8], "little")
    return 8 + n, {name: entry for name, entry in json.loads(weights[8:8 + n]).items() if name != "__metadata__"}


def with_value(weights, tensor, index, bits):
    begin, tensors = tensors_of(weights)
    entry = tensors[tensor]
    width = 4 if entry["dtype"] == "F32" else 2
    at = begin + entry["data_offsets"][0] + index * width
    return weights[:at] + struct.pack("<I" if width == 4 else "<H", bits) + weights[at + width:]


def with_all(weights, value):
    """Every weight replaced by a number that is finite and allowed, far beyond what is trained."""
    begin, tensors = tensors_of(weights)
    out = bytearray(weights)
    for entry in tensors.values():
        packed = {"F32": struct.pack("<f", value), "BF16": struct.pack("<f", value)[2:], "F16": struct.pack("<e", min(value, 60000.0))}[entry["dtype"]]
        first, last = entry["data_offsets"]
        out[begin + first:begin + last] = packed * ((last - first) // len(packed))
    return bytes(out)


def run(card):
    card.gtest("refused where numbers are checked", "server_tests", "PoisonedAdapter.IsRefused*")
    n_tokens = 300 if card.quick else 100_000
    card.gtest("without the check: its own requests end, others keep every bit", "server_tests", "PoisonedAdapter.EndsItsOwn*",
               env={"LORAD_TEST_TOKENS": str(n_tokens)}, seconds=7200, less_when_quick=True)
    files = files_of("pirate")
    with card.part("refused over HTTP, with the place"), card.server("--batch-invariant", "--log-level", "error") as server:
        check_equal(register(server, "pirate", files)[0], 201, "the adapter as it is")
        _, tensors = tensors_of(files[FILES[1]])
        n = 0
        for tensor in card.random.sample(sorted(tensors), min(len(tensors), 3 if card.quick else 40)):
            entry = tensors[tensor]
            n_columns = entry["shape"][1]
            for what, bits in VALUES[entry["dtype"]].items():
                index = card.random.randrange(entry["shape"][0] * n_columns)
                poisoned = dict(files, **{FILES[1]: with_value(files[FILES[1]], tensor, index, bits)})
                check_error(register(server, "poisoned", poisoned), 422, "adapter_invalid",
                            contains=[tensor, f"at [{index // n_columns}, {index % n_columns}]"])
                n += 1
        card.figure("poisoned files refused", f"{n} of {n}")
        card.trials += n
        # What the check allows may overflow all the same: that request ends with its code, and no other one does.
        before = ids(server, 16, model="pirate")
        status, answer = register(server, "loud", dict(files, **{FILES[1]: with_all(files[FILES[1]], 1e6)}))
        check_equal(status, 201, f"large, but allowed: {answer}")
        status, answer = server.post("/v1/completions", model="loud", prompt=[5, 6, 7], max_tokens=8, temperature=0)
        check(status == 200 or (status == 500 and answer["error"]["code"] == "output_not_finite"), f"{status} {answer}")
        check_equal(ids(server, 16, model="pirate"), before, "others afterwards")
        card.figure("weights of 1e6", "answered" if status == 200 else "output_not_finite")
    if card.quick:
        card.short_of("100,000 tokens of others: tests/scorecard.sh --tier nightly --only T4")


if __name__ == "__main__":
    main("T4", run)
