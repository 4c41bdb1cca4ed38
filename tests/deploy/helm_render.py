"""Renders the part of Helm's template language that deploy/helm uses, to check the chart where helm is not installed."""

import hashlib
import json
import pathlib
import re

import yaml

TAG = re.compile(r"\{\{(-?)\s*(.*?)\s*(-?)\}\}", re.S)


def tokens_of(text):
    """Literal texts and actions in turn; a dash eats the white space on its side."""
    out, at, eat = [], 0, False
    for match in TAG.finditer(text):
        literal = text[at:match.start()]
        literal = literal.lstrip() if eat else literal
        out.append(("text", literal.rstrip() if match.group(1) else literal))
        out.append(("action", match.group(2)))
        at, eat = match.end(), bool(match.group(3))
    out.append(("text", text[at:].lstrip() if eat else text[at:]))
    return out


def parse(tokens, defines, stop=("end",)):
    """[("text", t) | ("value", expression) | (block, head, children, else_children)] up to a stop word."""
    out = []
    while tokens:
        kind, body = tokens.pop(0)
        if kind == "text":
            out.append(("text", body))
            continue
        word, _, rest = body.partition(" ")
        if word in stop:
            return out, word
        if word in ("if", "with", "range", "define"):
            children, ended = parse(tokens, defines, ("end", "else"))
            others = parse(tokens, defines)[0] if ended == "else" else []
            if word == "define":
                defines[rest.strip('"')] = children
            else:
                out.append((word, rest, children, others))
        elif not body.startswith("/*"):
            out.append(("value", body))
    return out, "end"


def to_yaml(value):
    return yaml.safe_dump(value, default_flow_style=False, sort_keys=True).rstrip("\n").removesuffix("\n...")


def as_text(value):
    return "" if value is None else {True: "true", False: "false"}.get(value, str(value)) if isinstance(value, bool) else str(value)


class Renderer:
    def __init__(self, defines):
        self.defines = defines
        self.functions = {
            "include": lambda name, dot: self.render(self.defines[name], dot, {}),
            "nindent": lambda n, text: "\n" + "\n".join(" " * n + line if line else line for line in text.split("\n")),
            "toYaml": to_yaml, "toJson": lambda value: json.dumps(value, sort_keys=True, separators=(",", ":")),
            "quote": lambda value: json.dumps(as_text(value)), "default": lambda other, value: value or other,
            "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
            "add": lambda *numbers: sum(numbers), "div": lambda a, b: a // b,
        }

    def operand(self, word, dot, variables):
        if word.startswith('"'):
            return json.loads(word)
        if re.fullmatch(r"-?\d+", word):
            return int(word)
        if word.startswith("$"):
            return variables[word]
        if word == ".":
            return dot
        if not word.startswith("."):
            raise AssertionError(f"the chart uses {word}, which the renderer of the test does not know")
        for part in word[1:].split("."):
            dot = (dot or {}).get(part)
        return dot

    def value(self, expression, dot, variables):
        result, piped = None, False
        for stage in expression.split("|"):
            words = re.findall(r'"[^"]*"|\S+', stage)
            if words[0] in self.functions:
                operands = [self.operand(word, dot, variables) for word in words[1:]] + ([result] if piped else [])
                result = self.functions[words[0]](*operands)
            else:
                result = self.operand(words[0], dot, variables)
            piped = True
        return result

    def render(self, nodes, dot, variables):
        out = []
        for node in nodes:
            if node[0] == "text":
                out.append(node[1])
            elif node[0] == "value":
                out.append(as_text(self.value(node[1], dot, variables)))
            elif node[0] == "range":
                names, _, expression = node[1].partition(":=")
                key, item = (name.strip() for name in names.split(","))
                for k, v in sorted((self.value(expression.strip(), dot, variables) or {}).items()):
                    out.append(self.render(node[2], dot, dict(variables, **{key: k, item: v})))
            else:
                value = self.value(node[1], dot, variables)
                out.append(self.render(node[2] if value else node[3], value if node[0] == "with" and value else dot, variables))
        return "".join(out)


def merged(a, b):
    return {**a, **{key: merged(a[key], value) if isinstance(value, dict) and isinstance(a.get(key), dict) else value for key, value in b.items()}}


def render_chart(folder, overrides=None, release="test"):
    """Every document of the chart with these values."""
    folder = pathlib.Path(folder)
    defines, templates = {}, {}
    for file in sorted((folder / "templates").iterdir()):
        templates[file.name] = parse(tokens_of(file.read_text()), defines)[0]
    values = merged(yaml.safe_load((folder / "values.yaml").read_text()), overrides or {})
    chart = {key[0].upper() + key[1:]: value for key, value in yaml.safe_load((folder / "Chart.yaml").read_text()).items()}
    dot = {"Values": values, "Release": {"Name": release}, "Chart": chart}
    documents = []
    for name, nodes in templates.items():
        if name.startswith("_"):
            continue
        text = Renderer(defines).render(nodes, dot, {})
        try:
            documents += [document for document in yaml.safe_load_all(text) if document]
        except yaml.YAMLError as error:
            raise AssertionError(f"{name} is no YAML: {error}\n{text}") from error
    return documents
