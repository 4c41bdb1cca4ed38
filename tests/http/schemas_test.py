#!/usr/bin/env python3
"""Random schemas of the kinds that the JSON-Schema-Test-Suite has: every answer that is whole is valid, but for what a header
says is not enforced; every refusal says why.

    tests/http/run.sh schemas --lorad build/dev/lorad [--n 1000] [--seed 1]

An answer that max_tokens cuts is not whole; the generator bounds most things, so that most answers come to their end. The judge is Python's
jsonschema with its format checks.
"""

import argparse
import collections
import concurrent.futures
import http.client
import json
import pathlib
import random
import sys
import time

import jsonschema

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))

from harness import SAMPLES, Server, check, check_equal  # noqa: E402

WORDS = ["a", "b", "id", "name", "foo", "bar", "x y", "größe", "quote\"d", "slash/", "", "very_long_property_name", "日本"]
PATTERNS = ["^[a-c]{1,4}$", "^\\d{2,3}$", "[xyz]", "^a|b$", "^(foo|bar)+$", "^.{0,5}$", "^[^a-z]{2}$", "^\\w+$", "\\.$", "^é?[0-9a-f]{4}$"]
FORMATS = ["date", "time", "date-time", "uuid", "email", "ipv4", "hostname", "ipv6", "duration", "uri", "regex", "unknown-format"]


class Schemas:
    """One schema after the other, the same for the same seed."""

    def __init__(self, seed):
        self.rng = random.Random(seed)

    def next(self):
        self.n_defs = 0
        self.defs = {}
        schema = self.schema(3)
        if isinstance(schema, dict):
            if self.defs:
                schema = {**schema, "$defs": self.defs}
            if self.rng.random() < 0.2:
                schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "T", "description": "d", **schema}
        return schema

    def schema(self, depth):
        rng = self.rng
        kinds = [self.integer, self.number, self.string, self.string, self.boolean, self.null, self.enum, self.const]
        if depth > 0:
            kinds += [self.object] * 6 + [self.array] * 3 + [self.any_of, self.one_of, self.all_of, self.reference, self.types, self.boolean_schema, self.rare]
        return rng.choice(kinds)(depth)

    def value(self, depth=2):
        rng = self.rng
        plain = [lambda: rng.randrange(-20, 1000), lambda: rng.choice([0.5, -1.25, 1e3, 0.0]), lambda: rng.choice(WORDS), lambda: rng.random() < 0.5, lambda: None]
        if depth > 0:
            plain += [lambda: [self.value(depth - 1) for _ in range(rng.randrange(3))],
                      lambda: {rng.choice(WORDS): self.value(depth - 1) for _ in range(rng.randrange(3))}]
        return rng.choice(plain)()

    def maybe(self, probability, schema, key, value):
        if self.rng.random() < probability:
            schema[key] = value
        return schema

    def integer(self, depth):
        rng = self.rng
        low = rng.randrange(-1000, 1000)
        schema = {"type": "integer"}
        self.maybe(0.8, schema, rng.choice(["minimum", "exclusiveMinimum"]), low)
        self.maybe(0.8, schema, rng.choice(["maximum", "exclusiveMaximum"]), low + rng.randrange(2, 2000))
        return self.maybe(0.15, schema, "multipleOf", rng.choice([1, 2, 5, 10]))

    def number(self, depth):
        rng = self.rng
        low = rng.choice([-1.5, 0, 0.25, 10, -100.75])
        schema = {"type": "number"}
        self.maybe(0.9, schema, rng.choice(["minimum", "exclusiveMinimum"]), low)
        self.maybe(0.9, schema, rng.choice(["maximum", "exclusiveMaximum"]), low + rng.choice([0.5, 1, 12.25, 1000]))
        return self.maybe(0.1, schema, "multipleOf", rng.choice([0.5, 0.01, 2]))

    def string(self, depth):
        rng = self.rng
        kind = rng.random()
        if kind < 0.25:
            return self.maybe(0.2, {"type": "string", "pattern": rng.choice(PATTERNS)}, "maxLength", 12)
        if kind < 0.45:
            return {"type": "string", "format": rng.choice(FORMATS)}
        low = rng.randrange(4)
        schema = {"type": "string", "maxLength": low + rng.randrange(12)}
        return self.maybe(0.5, schema, "minLength", low)

    def boolean(self, depth):
        return {"type": "boolean"}

    def null(self, depth):
        return {"type": "null"}

    def enum(self, depth):
        return self.maybe(0.1, {"enum": [self.value() for _ in range(self.rng.randrange(1, 5))]}, "type", self.rng.choice(["string", "integer"]))

    def const(self, depth):
        return {"const": self.value()}

    def object(self, depth):
        rng = self.rng
        names = rng.sample(WORDS, rng.randrange(5))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        required = [name for name in names if rng.random() < 0.7]
        self.maybe(0.9, schema, "required", required)
        schema["additionalProperties"] = rng.choice([False, False, False, False, self.schema(0)])
        if rng.random() < 0.05:
            schema["required"] = required + ["elsewhere"]
        self.maybe(0.07, schema, "patternProperties", {rng.choice(["^x", "y$", "[0-9]"]): self.schema(0)})
        self.maybe(0.05, schema, "minProperties", rng.randrange(3))
        self.maybe(0.05, schema, "maxProperties", rng.randrange(1, 5))
        self.maybe(0.04, schema, "propertyNames", {"maxLength": 9})
        return self.maybe(0.04, schema, "dependentRequired", {name: required for name in names[:1]})

    def array(self, depth):
        rng = self.rng
        low = rng.randrange(3)
        schema = {"type": "array", "maxItems": low + rng.randrange(3)}
        self.maybe(0.6, schema, "minItems", low)
        if rng.random() < 0.3:
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(rng.randrange(1, 3))]
            schema["items"] = rng.choice([False, self.schema(0)])
        else:
            schema["items"] = self.schema(depth - 1)
        self.maybe(0.05, schema, "uniqueItems", rng.random() < 0.5)
        return self.maybe(0.05, schema, "contains", self.schema(0))

    def any_of(self, depth):
        return {"anyOf": [self.schema(depth - 1) for _ in range(self.rng.randrange(1, 4))]}

    def one_of(self, depth):
        return {"oneOf": [self.schema(depth - 1) for _ in range(self.rng.randrange(1, 4))]}

    def all_of(self, depth):
        rng = self.rng
        if rng.random() < 0.5:
            low = rng.randrange(100)
            return {"allOf": [{"type": "integer", "minimum": low}, {"maximum": low + 40}]}
        return {"allOf": [self.schema(depth - 1) for _ in range(rng.randrange(1, 3))]}

    def reference(self, depth):
        if self.defs and self.rng.random() < 0.4:
            name = self.rng.choice(list(self.defs))
        else:
            name = f"d{self.n_defs}"
            self.n_defs += 1
            self.defs[name] = True  # what it refers to within itself
            self.defs[name] = self.schema(depth - 1)
        return {"$ref": f"#/$defs/{name}"}

    def types(self, depth):
        kinds = self.rng.sample(["integer", "boolean", "null", "string"], 2)
        return {"type": kinds, "maxLength": 6, "minimum": 0, "maximum": 99}

    def boolean_schema(self, depth):
        return self.rng.random() < 0.9

    def rare(self, depth):
        rng = self.rng
        return rng.choice([{"not": self.schema(0)}, {"if": self.schema(0), "then": self.schema(0), "else": self.schema(0)}, {},
                           {"type": "object", "unevaluatedProperties": False}, {"$ref": "#/$defs/nowhere"}, {"type": "nonsense"},
                           {"type": "string", "contentEncoding": "base64"}, {"$dynamicRef": "#x"}, {"minimum": 3, "maximum": 2, "type": "integer"},
                           {"type": "string", "minLength": 5, "maxLength": 2}, {"enum": []}, {"format": "date"}, {"maxItems": 1}])


FORMATS_OF = jsonschema.Draft202012Validator.FORMAT_CHECKER


def is_year_0(error):
    """RFC 3339, and so JSON Schema, has the year 0; Python's calendar begins with 1."""
    instance = error.instance
    return error.validator == "format" and isinstance(instance, str) and instance.startswith("0000-") and FORMATS_OF.conforms(
        "0004" + instance[4:], error.validator_value)


def post(server, path, **body):
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), server.headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read()), response.getheader("x-lorad-not-enforced") or ""
    finally:
        connection.close()


def answer_to(server, schema, seed):
    """What came of it: a kind and what there is to tell of it."""
    status, body, header = post(server, "/v1/chat/completions", model="base", messages=SAMPLES[seed % len(SAMPLES)]["messages"], max_tokens=300, seed=seed, temperature=1.0,
                               response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": schema, "strict": True}})
    if status == 400:
        error = body["error"]
        said = error["code"] == "invalid_request" and error["param"].startswith("response_format") and len(error["message"]) > len(error["param"]) + 10
        return ("refused", error["message"]) if said else ("bad", f"a refusal that does not say why: {error}")
    if status != 200:
        return "bad", f"{status} {body}"
    choice = body["choices"][0]
    text = choice["message"]["content"]
    if choice["finish_reason"] == "length":
        return "cut", text
    if choice["finish_reason"] != "stop":
        return "bad", f"{choice['finish_reason']}: {text}"
    try:
        value = json.loads(text)
    except ValueError as error:
        return "bad", f"no JSON: {error}: {text!r}"
    try:
        problems = [error.message for error in jsonschema.Draft202012Validator(schema, format_checker=FORMATS_OF).iter_errors(value) if not is_year_0(error)]
        if problems and header:  # what it names need not be obeyed
            return "loose", f"{header}: {problems[0][:200]}"
    except Exception as error:  # the judge itself cannot take the schema: it should not have been accepted
        return "bad", f"accepted, although jsonschema says {type(error).__name__}: {str(error)[:200]}"
    return ("bad", f"{text!r}: {problems[0][:300]}") if problems else ("valid", text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lorad", required=True)
    parser.add_argument("--n", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    source = Schemas(args.seed)
    schemas = [source.next() for _ in range(args.n)]
    began = time.monotonic()
    with Server(args.lorad, "--max-queue", "200", adapters=()) as server:
        with concurrent.futures.ThreadPoolExecutor(48) as pool:
            found = list(pool.map(lambda job: answer_to(server, job[1], job[0]), enumerate(schemas)))
    counts = collections.Counter(kind for kind, _ in found)
    reasons = collections.Counter(text.split(": ", 1)[-1][:90] for kind, text in found if kind == "refused")
    print(f"seed {args.seed}: {args.n} schemas in {time.monotonic() - began:.0f} s: {dict(counts)}")
    for reason, n in reasons.most_common(25):
        print(f"  refused {n} times: {reason}")
    for i, (kind, text) in enumerate(found):
        if kind == "bad":
            print(f"FAIL {i}: {json.dumps(schemas[i], ensure_ascii=False)}\n     {text}")
    check_equal(counts["bad"], 0, "answers that are not right")
    check(counts["loose"] <= args.n // 10, f"{counts['loose']} answers break what is not enforced")
    check(counts["valid"] >= args.n // 2, f"only {counts['valid']} answers came to their end")
    check_equal(server.process.returncode, 0, "exit status of the server")
    print("schemas: passed")


if __name__ == "__main__":
    main()
