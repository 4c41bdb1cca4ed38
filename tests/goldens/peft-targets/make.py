#!/usr/bin/env python3
"""Writes cases.json: which modules PEFT adapts under a configuration, as its own function decides it.

    python3 tests/goldens/peft-targets/make.py    (needs peft, but not PyTorch: the one function is run by itself)
"""

import ast
import importlib.util
import json
import pathlib
import re
import types

MODULES = [
    "lm_head", "model.embed_tokens", "model.norm", "embed_tokens", "model.lm_head", "language_model.lm_head", "lm_head.0.q_proj", "xlm_head",
    "model.layers.0.self_attn.q_proj", "model.layers.1.self_attn.q_proj", "model.layers.2.self_attn.q_proj", "model.layers.12.self_attn.q_proj",
    "model.layers.2.mlp.down_proj", "layers.0.self_attn.q_proj", "layers.2.self_attn.q_proj", "model.layers.1.experts.0.down_proj",
    "model.layers.2.experts.1.down_proj", "model.h.2.q_proj", "h.2.q_proj", "model.xlayers.2.q_proj", "model.layers.q_proj", "q_proj",
    "model.decoder.layers.1.blocks.2.q_proj", "model.layers.02.self_attn.q_proj", "model.layers.12345678901.q_proj",
]
TARGETS = [["q_proj"], ["lm_head", "q_proj"], ["q_proj", "embed_tokens", "lm_head", "down_proj"], ["model.layers.2.self_attn.q_proj", "head"]]
LAYERS = [{}, {"layers_to_transform": 2}, {"layers_to_transform": [0, 1]}, {"layers_to_transform": []}, {"layers_to_transform": [2, 12345678901]}]
PATTERNS = [{}, {"layers_pattern": "layers"}, {"layers_pattern": ["h", "layers"]}, {"layers_pattern": ["experts", "layers"]}, {"layers_pattern": ""},
            {"layers_pattern": []}, {"layers_pattern": [""]}, {"layers_pattern": ["lm_head"]}, {"layers_pattern": "(layers|blocks)"},
            {"layers_pattern": "model.layers"}, {"layers_pattern": ["blocks", "h"]}]
MORE = [{"target_modules": ".*(q|down)_proj"}, {"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj", "lm_head"], "exclude_modules": ["lm_head"], "layers_to_transform": [2], "layers_pattern": "layers"},
        {"target_modules": ["q_proj", "lm_head"], "exclude_modules": "lm_head|.*[.]1[.].*"},
        {"target_modules": ["q_proj"], "modules_to_save": ["self_attn"], "layers_to_transform": [2]}]


def pefts_function():
    path = pathlib.Path(importlib.util.find_spec("peft").origin).parent / "tuners" / "tuners_utils.py"
    tree = ast.parse(path.read_text())
    wanted = [node for node in tree.body if getattr(node, "name", "") in ("check_target_module_exists", "_ExcludedModule")]
    scope = {"re": re, "match_target_against_key": re.fullmatch}
    code = ast.Module(body=[ast.parse("from __future__ import annotations").body[0], *wanted], type_ignores=[])
    exec(compile(code, str(path), "exec"), scope)
    return scope["check_target_module_exists"]


def main():
    targets = pefts_function()
    configs = [{"target_modules": names, **layers, **pattern} for names in TARGETS for layers in LAYERS for pattern in PATTERNS
               if layers or not pattern] + MORE
    cases = []
    for config in configs:
        fields = {"exclude_modules": None, "modules_to_save": None, "target_parameters": None, "layers_to_transform": None, "layers_pattern": None}
        judge = types.SimpleNamespace(**{**fields, **config})
        cases.append({"config": config, "targets": [name for name in MODULES if bool(targets(judge, name))]})
    rows = ",\n  ".join(json.dumps(case) for case in cases)
    text = '{\n "modules": ' + json.dumps(MODULES) + ',\n "cases": [\n  ' + rows + "\n ]\n}\n"
    (pathlib.Path(__file__).parent / "cases.json").write_text(text)


main()
