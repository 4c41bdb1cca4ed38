#!/usr/bin/env python3
"""Writes cases.json: schemas of functions, and what Python's jsonschema says of arguments for them.

    python3 tests/goldens/tool-schemas/make.py    (needs jsonschema)

Each case: "schema"; "valid" and "invalid": arguments, as the validator judges them; "beyond": arguments that are valid only because the
schema says nothing of further properties, which functions close.
"""

import json
import pathlib

import jsonschema

S, N = {"type": "string"}, {"type": "integer"}
A, B, P, Q = {"a": "x"}, {"b": 1}, {"p": {"a": "x"}}, {"p": {"a": "x", "b": 1}}
OBJECT_A = {"type": "object", "properties": {"a": S}}
OBJECT_B = {"type": "object", "properties": {"b": N}, "required": ["b"]}

# schema, arguments to judge, arguments that closing leaves out
CASES = [
    ({"properties": {"a": S}}, [{}, A, {"a": 1}], [{"a": "x", "z": 1}]),
    ({"properties": {"a": OBJECT_A}}, [{"a": A}, {"a": {"a": 1}}], [{"a": {"z": 1}}, {"z": 1}]),
    ({"properties": {"a": S}, "required": ["b"]}, [A, B, {"a": "x", "b": None}, {"b": {"c": 1}}, {}], []),
    ({"required": ["b"]}, [A, B, {"b": [1], "c": 2}, {}], []),
    ({"properties": {"a": S}, "minProperties": 2}, [{}, A, {"a": "x", "z": 1}], []),
    ({"properties": {"a": S, "b": N}, "minProperties": 1}, [A, B], []),
    # Alternatives of what is required, of properties that are all named.
    ({"properties": {"a": S, "b": N}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, [A, B, {"a": "x", "b": 1}, {}], [{"a": "x", "z": 1}]),
    ({"properties": {"a": S}, "anyOf": [{"required": ["a"]}, {"required": ["c"]}]}, [A, {"c": 1}, {}], []),
    ({"properties": {"p": OBJECT_A}, "anyOf": [{"required": ["p"]}]}, [P, {}], [{"p": {"a": "x", "z": 1}}]),
    # Several schemas of one object, or of one that is in it.
    ({"allOf": [OBJECT_A, OBJECT_B]}, [A, B, {"a": "x", "b": 1}, {"a": 1, "b": 1}], []),
    ({"properties": {"a": S}, "allOf": [OBJECT_B]}, [A, B, {"a": "x", "b": 1}], []),
    ({"allOf": [OBJECT_A]}, [A, {"a": 1}], [{"a": "x", "z": 1}]),
    ({"allOf": [OBJECT_A], "required": ["b"]}, [A, {"a": "x", "b": 1}, {"b": 2}], []),
    ({"allOf": [{"properties": {"p": OBJECT_A}}, {"properties": {"p": OBJECT_B}}], "required": ["p"]}, [P, Q, {"p": {"b": 1}}, {"p": {"b": "x"}}], []),
    ({"properties": {"p": OBJECT_A}, "allOf": [{"properties": {"p": OBJECT_B}}], "required": ["p"]}, [P, Q, {"p": {"b": "x"}}], []),
    ({"properties": {"p": {"type": "array", "items": OBJECT_A}}, "allOf": [{"properties": {"p": {"items": OBJECT_B, "minItems": 1}}}],
      "required": ["p"]}, [{"p": [{"a": "x", "b": 1}]}, {"p": [{"a": "x"}]}, {"p": []}], []),
    ({"anyOf": [OBJECT_A, OBJECT_B]}, [A, B, {"a": 1}], [{"a": "x", "z": 1}]),
    ({"anyOf": [OBJECT_A, {"type": "object", "properties": {"c": N}}], "required": ["b"]}, [A, {"a": "x", "b": 1}, {"b": 1}], []),
    ({"properties": {"k": S}, "anyOf": [OBJECT_A, OBJECT_B], "required": ["k"]}, [A, {"k": "x", "a": "y"}, {"k": "x", "b": 1}, {"k": "x"}], []),
    ({"properties": {"k": S}, "oneOf": [{"properties": {"a": S}, "required": ["a"]}, {"properties": {"b": N}, "required": ["b"]}], "required": ["k"]},
     [{"k": "x", "a": "y"}, {"k": "x", "b": 1}, {"k": "x"}], []),
    ({"properties": {"p": {"anyOf": [OBJECT_A, OBJECT_B]}}, "required": ["p"]}, [P, {"p": {"b": 1}}, {"p": {"a": 1}}], [{"p": {"a": "x", "z": 1}}]),
    # References, alone and beside other words.
    ({"properties": {"p": {"$ref": "#/$defs/A"}}, "$defs": {"A": OBJECT_A}}, [P, {"p": {"a": 1}}], [{"p": {"z": 1}}]),
    ({"properties": {"p": {"$ref": "#/$defs/A", "required": ["b"]}}, "required": ["p"], "$defs": {"A": OBJECT_A}}, [P, Q, {"p": {"b": 2}}], []),
    ({"properties": {"p": {"$ref": "#/$defs/A", "properties": {"b": N}, "required": ["b"]}}, "required": ["p"], "$defs": {"A": OBJECT_A}},
     [P, Q, {"p": {"b": "x"}}], []),
    ({"properties": {"p": {"$ref": "#/$defs/A", "anyOf": [OBJECT_B]}}, "required": ["p"], "$defs": {"A": OBJECT_A}}, [P, Q], []),
    ({"properties": {"p": {"allOf": [{"$ref": "#/$defs/A"}], "description": "as pydantic writes it"}}, "required": ["p"], "$defs": {"A": OBJECT_A}},
     [P, {"p": {"a": 1}}], [{"p": {"a": "x", "z": 1}}]),
    ({"properties": {"p": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}], "default": None}}, "$defs": {"A": OBJECT_A}},
     [P, {"p": None}, {"p": 1}], [{"p": {"z": 1}}]),
    # Names by pattern.
    ({"properties": {"a": S}, "patternProperties": {"^x_": N}}, [A, {"x_b": 1}, {"x_b": "no"}, {"a": "x", "x_c": 2}], []),
    ({"patternProperties": {"^x_": N}, "required": ["x_a"]}, [{"x_a": 1}, {"x_a": "no"}, {}], []),
    ({"properties": {"xp": OBJECT_A}, "patternProperties": {"^x": OBJECT_B}, "required": ["xp"]}, [{"xp": {"a": "x", "b": 1}}, {"xp": {"a": "x"}}], []),
    ({"properties": {"a": S}, "patternProperties": {"^x_": N}, "additionalProperties": False}, [A, {"x_b": 1}, {"z": 1}], []),
    # Values, and what depends on one another.
    ({"properties": {"a": S}, "enum": [{"b": 1}, {"a": "x"}]}, [A, B], []),
    ({"properties": {"p": {"properties": {"a": S}, "const": {"a": "x", "c": 1}}}, "required": ["p"]}, [{"p": {"a": "x", "c": 1}}, P], []),
    ({"enum": [{"a": "x", "c": 1}, {"b": 1}], "anyOf": [OBJECT_A, OBJECT_B]}, [{"a": "x", "c": 1}, B, A], []),
    # Said by themselves.
    ({"properties": {"a": S}, "additionalProperties": True}, [A, {"a": "x", "z": 1}], []),
    ({"properties": {"a": S}, "additionalProperties": N}, [A, {"z": 1}, {"z": "x"}], []),
    ({"properties": {"p": {"additionalProperties": OBJECT_A}}}, [{"p": {"q": {"a": "x"}}}, {"p": {"q": {"a": 1}}}], [{"p": {"q": {"z": 1}}}]),
    ({"properties": {"a": S}, "not": {"required": ["b"]}}, [A, {"a": "x", "b": 1}], []),
]


def main():
    cases = []
    for schema, arguments, beyond in CASES:
        whole = {"type": "object", **schema}
        judge = jsonschema.Draft202012Validator(whole)
        case = {"schema": whole, "valid": [], "invalid": [], "beyond": beyond}
        for one in arguments:
            case["valid" if judge.is_valid(one) else "invalid"].append(one)
        assert case["valid"] and all(judge.is_valid(one) for one in beyond), schema
        cases.append(case)
    lines = ",\n ".join(json.dumps(case, ensure_ascii=False) for case in cases)
    (pathlib.Path(__file__).parent / "cases.json").write_text("[\n " + lines + "\n]\n")


main()
