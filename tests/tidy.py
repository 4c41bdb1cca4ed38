#!/usr/bin/env python3
"""Checks the rules of docs/STYLE.md that a compiler does not: layers, fences, sizes of files, functions and classes, words that must not be in the tree.

    tests/tidy.py              checks this tree; prints file:line: what, and exits 1 if anything is wrong
    tests/tidy.py --self-test  plants one violation of each rule in a scratch tree and fails if one goes unseen
"""

import collections
import os
import re
import subprocess
import sys
import tempfile

LAYERS = ["proto", "gpu", "model", "adapters", "server"]
CODE = (".h", ".cpp", ".comp", ".glsl", ".rs")
WIDE = (".h", ".cpp")  # what clang-format wraps
TEXT = CODE + (".js", ".css", ".html", ".py", ".sh", ".md", ".txt", ".cmake", ".json", ".toml", ".yaml", ".service", ".in", ".supp")
SKIPPED_FOLDERS = {".git", "build", "__pycache__", ".cache", "target"}
SKIPPED_PREFIXES = ("deploy/demo-model/", "tests/golden/", "tests/fuzz/corpus/", "model/text/Cargo.lock")

WIDTH = 120  # columns of C++; a line with a string may be longer
WARN_LINES, FAIL_LINES, FAIL_LINES_TESTS = 400, 600, 800
WARN_SOURCES, FAIL_SOURCES = 40, 50  # in one folder of a layer: .h and .cpp
FUNCTION_LINES = 90  # of a function of a layer or the benchmarks, its signature and braces included
PUBLIC_FUNCTIONS = 30  # of a class's objects, by name: overloads are one, and constructors none
MODULE_BUDGET = 138  # SPIR-V modules, so that variants stay a choice and never a cross product; serving and training together

# (what is fenced, pattern on an include line, files that may have it, what to use instead)
INCLUDE_FENCES = [
    ("JSON library", r"<nlohmann/", r"^(proto/.*\.cpp|tests/.*|bench/.*)$", "read through proto/json/json.h"),
    ("HTTP library", r"<httplib\.h>", r"^(server/http/listener\.cpp|tests/.*|bench/.*)$", "go through server/http/listener.h"),
    ("Vulkan", r"<vulkan/", r"^(gpu/[^/]*\.cpp|gpu/vk\.h|tests/vulkan_layer/.*)$", "use the handles of gpu/*.h"),
    ("logging library", r"<spdlog/", r"^proto/base/log\.cpp$", "use proto/base/log.h"),
]

# (rule, pattern, files it holds for, files that may break it, what to do)
LINE_FENCES = [
    ("getenv", r"\b(secure_)?getenv\s*\(", r"^(proto|gpu|model|adapters|server)/.*\.(h|cpp)$", r"^server/config[^/]*\.cpp$",
     "configuration comes in through server/config"),
    ("catch", r"\bcatch\s*\(", r"^(proto|gpu|model|adapters|server)/.*\.(h|cpp)$",
     r"^(proto/.*|server/http/(listener|guard/guard|guard/workers)|server/config[^/]*|server/main)\.cpp$",
     "exceptions end where the library that throws them is wrapped"),
    ("throw", r"\bthrow\b", r"^(proto|gpu|model|adapters|server)/.*\.(h|cpp)$", r"^$", "return a Result"),
    ("vendor id", r"(?i)\b(0x10de|0x1002|0x8086|0x13b5|0x5143|0x10005|VK_VENDOR_ID_\w+)\b",
     r"^(gpu|model|adapters|server)/.*\.(h|cpp|comp|glsl)$", r"^gpu/device[^/]*\.(h|cpp)$",
     "one table of device quirks: gpu/device*.cpp"),
]

UNFINISHED = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
# Spelled in pieces so that this file passes its own check. A path of one machine, or the host of a package registry.
MACHINE_WORDS = re.compile(r"(/wo" r"rk/|deb\.deb" r"ian\.org|pypi\.o" r"rg|crates\.i" r"o\b|arti" r"factory|artifact-reg" r"istry)")


def tracked_files(root):
    """Every file that is, or could be, in the repository: what git ignores is left out where git is there to ask."""
    try:
        listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                                check=True, capture_output=True, text=True).stdout.split("\0")
        names = [name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        names = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
            names += [os.path.relpath(os.path.join(folder, f), root) for f in files]
    return sorted(n for n in set(names) if os.path.isfile(os.path.join(root, n)) and not n.startswith(SKIPPED_PREFIXES))


def strip_comment(line):
    return line.split("//", 1)[0]


def layer_of(path):
    top = path.split("/", 1)[0]
    return top if top in LAYERS else None


def check_includes(path, number, line, report):
    match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
    if not match:
        return
    target = match.group(2)
    layer, target_layer = layer_of(path), layer_of(target)
    if layer:
        if target.startswith(("tests/", "bench/")):
            report(path, number, f"{layer} includes {target}: nothing includes tests or bench")
        elif match.group(1) == '"' and not target_layer:
            report(path, number, f'"{target}": include paths start at the repository root, with a layer\'s name')
        elif target_layer and LAYERS.index(target_layer) > LAYERS.index(layer):
            report(path, number, f"{layer} includes {target}: the order is {' <- '.join(LAYERS)}")
    for what, pattern, allowed, advice in INCLUDE_FENCES:
        if re.search(pattern, line) and not re.match(allowed, path):
            report(path, number, f"{what} header outside its fence: {advice}")


def check_file(root, path, report, warn):
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        lines = file.read().splitlines()
    check_functions(path, "\n".join(lines), report)
    check_classes(path, "\n".join(lines), report)
    check_dialect(path, "\n".join(lines), report)
    is_code = path.endswith(CODE)
    if is_code:
        limit = FAIL_LINES_TESTS if path.startswith(("tests/", "bench/")) else FAIL_LINES
        if len(lines) > limit:
            report(path, len(lines), f"{len(lines)} lines, at most {limit}: split it")
        elif len(lines) > WARN_LINES:
            warn(path, len(lines), f"{len(lines)} lines, more than {WARN_LINES}")
    if path.endswith(".h") and layer_of(path) and not path.endswith(".params.h"):
        if not any(line.startswith("#pragma once") for line in lines):
            report(path, 1, "no #pragma once")
    for number, line in enumerate(lines, 1):
        if path.endswith((".h", ".cpp")):
            check_includes(path, number, line, report)
            for what, pattern, holds_for, allowed, advice in LINE_FENCES:
                if re.match(holds_for, path) and not re.match(allowed, path) and re.search(pattern, strip_comment(line)):
                    report(path, number, f"{what} outside its fence: {advice}")
        if path.endswith(WIDE) and len(line) > WIDTH and '"' not in line:
            report(path, number, f"{len(line)} columns, at most {WIDTH}")
        if UNFINISHED.search(line):
            report(path, number, "unfinished work marked in the tree: finish it, or open an issue")
        if MACHINE_WORDS.search(line):
            report(path, number, f"a machine's path or a registry's host ({MACHINE_WORDS.search(line).group(1)})")


def check_kernels(root, report):
    path = "gpu/kernels/CMakeLists.txt"
    if not os.path.exists(os.path.join(root, path)):
        return
    with open(os.path.join(root, path), encoding="utf-8") as file:
        text = file.read()
    modules = len(re.findall(r"(?m)^\s*add_kernel\(", text))
    if modules > MODULE_BUDGET:
        report(path, 1, f"{modules} SPIR-V modules, at most {MODULE_BUDGET}: use a specialization constant")
    folder = os.path.join(root, "gpu/kernels")
    for directory, _, names in sorted(os.walk(folder)):
        for name in sorted(names):
            shader = os.path.relpath(os.path.join(directory, name), folder)
            if name.endswith(".comp") and not re.search(rf"add_kernel\(\s*gpu\s+{re.escape(shader)}[\s)]", text):
                report(f"gpu/kernels/{shader}", 1, f"a shader without an add_kernel line in {path}")


ASSERTION = re.compile(r"\b(EXPECT_|ASSERT_|FAIL\(|ADD_FAILURE)")


def body_at(text, brace):
    """The text between the brace at `brace` and the one that closes it."""
    depth = 0
    for end in range(brace, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[brace:end]
    return text[brace:]


def check_tests_assert(root, path, report):
    """A TEST body without any expectation, and that calls no function with one (of this file or of a header), proves nothing."""
    with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
        text = file.read()
    tests = [(m, body_at(text, m.end() - 1)) for m in
             re.finditer(r"(?m)^(?:TEST|TEST_F|TEST_P|TYPED_TEST)\(\s*(\w+),\s*(\w+)\s*\)\s*\{", text)]
    sources = [text]
    for name in re.findall(r'#include "(tests/[^"]+)"', text):
        if os.path.exists(os.path.join(root, name)):
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as file:
                sources.append(file.read())
    asserting = {m.group(1) for source in sources
                 for m in re.finditer(r"\b(\w+)\s*\([^;{}]*\)\s*(?:const\s*)?\{", source)
                 if m.group(1) not in ("if", "for", "while", "switch") and ASSERTION.search(body_at(source, m.end() - 1))}
    for match, body in tests:
        if not ASSERTION.search(body) and not asserting.intersection(re.findall(r"\b(\w+)\s*\(", body)):
            line = text.count("\n", 0, match.start()) + 1
            report(path, line, f"{match.group(1)}.{match.group(2)} asserts nothing")


# Files that are compiled by themselves (CMakeLists.txt, compile_together).
COMPILED_APART = re.compile(r"^(server/(http/listener|main)|bench/(engine|kernels))\.cpp$")
UNNAMED = re.compile(r"(?ms)^namespace \{\n(.*?)^\}  // namespace$")
FUNCTION = re.compile(r"(?m)^(?!return\b|if\b|for\b|using\b)[A-Za-z][\w:<>,&* ]*[ &*](\w+)\(([^;{}()]*)\)[^;{}()=]*\{")


def names_of_a_file_alone(text):
    """(namespace, name) of constants, types and functions, these with their parameters' types, in unnamed namespaces; and where."""
    for block in UNNAMED.finditer(text):
        outer = (re.findall(r"(?m)^namespace (lorad[\w:]*) \{", text[:block.start()]) or [""])[-1]
        found = []
        for line in re.finditer(r"(?m)^(?:inline )?const(?:expr)? .*$", block.group(1)):
            found += [(m.group(1), line.start()) for m in re.finditer(r"\b(k[A-Z]\w*)(?:\[\w*\])? ?(?:=(?!=)|\{)", line.group())]
        found += [(m.group(1), m.start()) for m in re.finditer(r"(?m)^(?:class|struct|enum class|union) (\w+)", block.group(1))]
        for m in FUNCTION.finditer(block.group(1)):
            types = [re.sub(r"[ &*]?\w+$", "", p.strip()) for p in m.group(2).split(",")]
            if re.search(r"(?m)^template <[^\n]*>\n\Z", block.group(1)[:m.start()]):
                types = [f"{len(types)} of a template"]  # whose parameters may have other names
            found.append((f"{m.group(1)}({', '.join(types)})", m.start()))
        for name, at in found:
            yield (outer, name), text.count("\n", 0, block.start(1) + at) + 1


def check_names(root, paths, report):
    """Files of a layer are compiled together: which ones changes with each new file, so what is a file's own has a name of its own."""
    first = {}
    for path in paths:
        layer = "bench" if path.startswith("bench/") else layer_of(path)
        if not layer or not path.endswith(".cpp") or COMPILED_APART.match(path):
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            text = file.read()
        for key, line in names_of_a_file_alone(text):
            other = first.setdefault((layer, *key), path)
            if other != path:
                report(path, line, f"{key[1]} is also in the unnamed namespace of {other}: they may be compiled together")


# Comments, texts and characters, which may hold braces; and lines of the preprocessor.
OPAQUE = re.compile(r'''(?sm)//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*''')
NO_FUNCTION = re.compile(r"(?s)\s*(?:inline\s+)?(?:template\s*<.*?>\s*)?(?:namespace|class|struct|union|enum|extern)\b")

IN_INITIALISERS = re.compile(r"\)\s*(?:noexcept\s*)?:(?!:)[^;]*\w$")  # of a constructor: the brace behind is not its body's


def without_opaque(text):
    return OPAQUE.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)


def functions_of(text):
    """(name, first line, last line) of each function with a body that is in no other."""
    text = without_opaque(text)
    depth, inits, name, first, begin = 0, 0, None, 0, 0
    for m in re.finditer(r"[{};]", text):
        if depth > 0:
            depth += {"{": 1, "}": -1}.get(m.group(), 0)
            if depth == 0:
                yield name, first, text.count("\n", 0, m.start()) + 1
                begin = m.end()
            continue
        head = text[begin:m.start()]
        if inits > 0 or (m.group() == "{" and IN_INITIALISERS.search(head)):
            inits += {"{": 1, "}": -1}.get(m.group(), 0)
        elif m.group() == "{" and "(" in head and not NO_FUNCTION.match(head):
            depth = 1
            name = (re.findall(r"([\w:~]+)\s*\(", head) or ["?"])[0]
            first = text.count("\n", 0, begin + len(head) - len(head.lstrip())) + 1
        else:
            begin = m.end()


def check_functions(path, text, report):
    if not (layer_of(path) or path.startswith("bench/")) or not path.endswith(".cpp"):
        return
    for name, first, last in functions_of(text):
        if last - first + 1 > FUNCTION_LINES:
            report(path, first, f"{name}() has {last - first + 1} lines, at most {FUNCTION_LINES}: it is two functions")


# The dialect of docs/STYLE.md, where the tree has it throughout. A file that shaders read too has their casts.
ONE_DIALECT = re.compile(r"^(gpu|proto)/.*\.(h|cpp)$")
NUMBER = r"(?:(?:std::)?(?:u?int(?:8|16|32|64)_t|size_t|ptrdiff_t)|int|unsigned|long|char|bool|float|double)"
CAST = re.compile(rf"(?<![\w:<>&*.])(?<!operator ){NUMBER}\((?!\)|[^()]*\)>)|(?<![\w>])\(\s*(?:unsigned )?{NUMBER}(?: const)?[ *]*\)\s*[\w(&*~-]")
# As a statement, or where a loop goes on: there nobody reads what was before.
OPERAND = r"[A-Za-z_*](?:[\w.]|->|::|\[[^\[\];]*\])*(?:\+\+|--)"
POSTFIX = re.compile(rf"(?:\A|[;{{}}:)]|\b(?:else|do)\b)\s*({OPERAND})(?=\s*;)")
GOES_ON = re.compile(rf"\bfor\s*\([^;{{}}]*;[^;{{}}]*;(?:[^;{{}}]*,)?\s*({OPERAND})\s*[,)]")


def check_dialect(path, text, report):
    if not ONE_DIALECT.match(path):
        return
    code = without_opaque(text)
    for m in CAST.finditer(code):
        if "__cplusplus" not in text:
            report(path, code.count("\n", 0, m.start()) + 1,
                   f"{m.group().strip()}...: static_cast<T>(x) where something may be lost, else T{{x}}")
    for pattern in (POSTFIX, GOES_ON):
        for m in pattern.finditer(code):
            report(path, code.count("\n", 0, m.start(1)) + 1, f"{m.group(1)}: ++i and --i where nobody reads what was before")


def public_functions(body):
    """Names of the functions that the text of a class, behind its brace, declares or defines as public."""
    depth, begin, is_public, names = 0, 0, False, set()
    for m in re.finditer(r"[{};]|\b(public|private|protected)\s*:(?!:)", body):
        if m.group(1):
            if depth == 0:
                is_public, begin = m.group(1) == "public", m.end()
            continue
        if depth == 0 and m.group() != "}" and is_public:
            head = body[begin:m.start()]
            name = re.search(r"(~?\w+|operator\W+)\s*\(", head)
            if name and not NO_FUNCTION.match(head) and not re.match(r"\s*(using|friend|static|static_assert|typedef)\b", head) \
                    and not head.endswith("= delete"):
                names.add(name.group(1))
        depth += {"{": 1, "}": -1}.get(m.group(), 0)
        if depth == 0:
            begin = m.end()
    return names


def check_classes(path, text, report):
    if not layer_of(path) or not path.endswith(".h"):
        return
    text = without_opaque(text)
    for m in re.finditer(r"(?m)^\s*class (?:\w+\([^)]*\) )?(\w+)[^;{}()]*\{", text):
        n = len(public_functions(body_at(text, m.end() - 1)[1:]) - {m.group(1), "~" + m.group(1)})
        if n > PUBLIC_FUNCTIONS:
            report(path, text.count("\n", 0, m.start(1)) + 1, f"{m.group(1)} has {n} public functions, "
                   f"at most {PUBLIC_FUNCTIONS}: it is two classes")


def check_folders(paths, report, warn):
    folders = collections.defaultdict(list)
    for path in paths:
        if layer_of(path) and path.endswith((".h", ".cpp")):
            folders[os.path.dirname(path)].append(path)
    for folder, sources in sorted(folders.items()):
        if len(sources) > FAIL_SOURCES:
            report(sources[0], 1, f"{len(sources)} sources in {folder}, at most {FAIL_SOURCES}: make rooms")
        elif len(sources) > WARN_SOURCES:
            warn(sources[0], 1, f"{len(sources)} sources in {folder}, more than {WARN_SOURCES}")


def check_decisions(paths, report):
    """Decisions are numbered from 1 without holes, so that a missing one is not looked for."""
    decisions = sorted(p for p in paths if re.match(r"docs/adr/\d{4}-", p))
    for number, path in enumerate(decisions, 1):
        if int(os.path.basename(path)[:4]) != number:
            report(path, 1, f"decision {number:04d} is missing before it, or twice there")
            break


def check_version(root, report):
    """What project() calls this version has its part in the change log."""
    names = ("CMakeLists.txt", "CHANGELOG.md")
    if not all(os.path.exists(os.path.join(root, name)) for name in names):
        return
    cmake, changes = (open(os.path.join(root, name), encoding="utf-8").read() for name in names)
    version = re.search(r"(?m)^project\(\w+ VERSION ([\d.]+)", cmake)
    if version and not re.search(rf"(?m)^## {re.escape(version.group(1))}\b", changes):
        report("CHANGELOG.md", 1, f"nothing is said of version {version.group(1)}, which CMakeLists.txt has")


def check_tree(root):
    problems, warnings = [], []

    def report(path, line, message):
        problems.append(f"{path}:{line}: {message}")

    def warn(path, line, message):
        warnings.append(f"{path}:{line}: {message}")

    for path in tracked_files(root):
        if path.endswith(TEXT) or os.path.basename(path) in ("CMakeLists.txt", "run", "Dockerfile"):
            check_file(root, path, report, warn)
        if path.startswith("tests/") and path.endswith("_test.cpp"):
            check_tests_assert(root, path, report)
    check_names(root, tracked_files(root), report)
    check_kernels(root, report)
    check_folders(tracked_files(root), report, warn)
    check_decisions(tracked_files(root), report)
    check_version(root, report)
    return problems, warnings


# One file per rule that must be found, and what the finding says; then files that must pass.
PLANTED = [
    ("gpu/upward.cpp", '#include "server/engine/engine.h"\n', "the order is proto"),
    ("proto/upward.h", '#pragma once\n#include "gpu/buffer.h"\n', "the order is proto"),
    ("model/tests_in.cpp", '#include "tests/support/x.h"\n', "nothing includes tests"),
    ("model/relative.cpp", '#include "weights.h"\n', "include paths start at the repository root"),
    ("model/json.cpp", "#include <nlohmann/json.hpp>\n", "JSON library"),
    ("proto/json_in_header.h", "#pragma once\n#include <nlohmann/json.hpp>\n", "JSON library"),
    ("server/http/routes.cpp", "#include <httplib.h>\n", "HTTP library"),
    ("adapters/vulkan.cpp", "#include <vulkan/vulkan.h>\n", "Vulkan"),
    ("gpu/buffer.h", "#pragma once\n#include <vulkan/vulkan.h>\n", "Vulkan"),
    ("server/loud.cpp", "#include <spdlog/spdlog.h>\n", "logging library"),
    ("gpu/environment.cpp", 'auto v = std::getenv("X");\n', "getenv"),
    ("model/catches.cpp", "try { f(); } catch (...) {}\n", "catch"),
    ("model/throws.cpp", "throw 1;\n", "throw"),
    ("gpu/vendor.cpp", "if (id == 0x10DE) {}\n", "vendor id"),
    ("gpu/wide.cpp", "int " + "a" * WIDTH + ";\n", "columns"),
    ("gpu/long.cpp", "int a;\n" * (FAIL_LINES + 1), "split it"),
    ("tests/gpu/long_test.cpp", "int a;\n" * (FAIL_LINES_TESTS + 1), "split it"),
    ("gpu/no_pragma.h", "int a;\n", "no #pragma once"),
    ("server/unfinished.cpp", "// TO" "DO later\n", "unfinished work"),
    ("docs/path.md", "see /wo" "rk/main\n", "a machine's path"),
    ("tests/gpu/empty_test.cpp", "TEST(A, B) {\n    f();\n}\n", "asserts nothing"),
    ("model/second.cpp", "namespace lorad::model {\nnamespace {\n\nconstexpr int kA = 1, kSame = 2;\n\n}  // namespace\n", "kSame is also in the unnamed"),
    ("model/second_too.cpp", "namespace lorad::model {\nnamespace {\n\nint same(int b) {\n}\n\n}  // namespace\n", "same(int) is also in the unnamed"),
    ("gpu/long_function.cpp", "namespace lorad {\nint f(int a) {\n    g(\"}\");  // }\n" + "    h();\n" * (FUNCTION_LINES - 2) + "}\n}\n", f"f() has {FUNCTION_LINES + 1} lines"),
    ("bench/long_function.cpp", "struct A {\n    A() : a_{1} {\n" + "        h();\n" * (FUNCTION_LINES - 1) + "    }\n};\n", "it is two functions"),
    ("gpu/wide_class.h", "#pragma once\nclass A {\n  public:\n" + "".join(f"    int f{i}(int a = g()) const {{ return h({{1}}); }}\n    void g{i}(\n        int b);\n" for i in range(15)) + "    void h();\n};\n", "A has 31 public functions"),
    ("model/second_template.cpp", "namespace lorad::model {\nnamespace {\n\ntemplate <class B>\nint same(B a, int b) {\n}\n\n}  // namespace\n", "same(2 of a template) is also"),
    ("gpu/cast.cpp", "const auto a = b + uint32_t(c);\n", "uint32_t(...: static_cast"),
    ("proto/cast.cpp", "const auto a = (uint8_t)c;\n", "else T{x}"),
    ("gpu/postfix.cpp", "void f() {\n    for (int i = 0; i < 3; i++) g(i);\n}\n", "i++: ++i"),
    ("proto/postfix.h", "#pragma once\nvoid f() {\n    if (a) b->c[d]--;\n}\n", "b->c[d]--: ++i"),
    ("adapters/full/a.cpp", "int a;\n", "make rooms"),
    ("CHANGELOG.md", "# Changes\n\n## 0.1.0\n", "nothing is said of version 0.2.0"),
    ("docs/adr/0003-behind-a-hole.md", "# 3\n", "decision 0002 is missing"),
    ("gpu/kernels/orphan.comp", "#version 450\n", "without an add_kernel line"),
    ("gpu/kernels/room/orphan.comp", "#version 450\n", "without an add_kernel line"),
]
INNOCENT = [
    ("gpu/kernels/CMakeLists.txt", "add_kernel(gpu used.comp)\n"),
    ("gpu/kernels/used.comp", "#version 450\n"),
    ("docs/adr/0001-first.md", "# 1\n"),
    ("CMakeLists.txt", "project(lorad VERSION 0.2.0 LANGUAGES CXX)\n"),
    ("gpu/vk.h", "#pragma once\n#include <vulkan/vulkan.h>\n"),
    ("gpu/device.cpp", '#include <vulkan/vulkan.h>\n#include "proto/base/log.h"\nauto nvidia = 0x10de;\n'),
    ("proto/json/json.cpp", "#include <nlohmann/json.hpp>\n// we never throw here\n"),
    ("server/http/listener.cpp", '#include <httplib.h>\n#include "model/text/text.h"\n'),
    ("server/config.cpp", 'auto v = std::getenv("X");\n'),
    ("model/first.cpp", "namespace lorad::model {\nnamespace {\n\nconstexpr int kSame = 1;\nint same(int a) {\n}\ntemplate <class A>\nint same(A a, int b) {\n}\n\n}  // namespace\n"),
    ("model/third.cpp", "namespace lorad::model {\nnamespace {\n\nint same(long a) {\n    int kSame = 1;\n}\n\n}  // namespace\n"),
    ("gpu/nearly_long_function.cpp", "int f() {\n" + "    h();\n" * (FUNCTION_LINES - 2) + "}\nconst int a[] = {\n" + "    1,\n" * FUNCTION_LINES + "};\n"),
    ("gpu/nearly_wide_class.h", "#pragma once\nclass A : public B {\n    void f();\n\n  public:\n" + "".join(f"    void g{i}();\n    void g{i}(int);\n" for i in range(30)) + "    A(const A&) = delete;\n    ~A();\n    struct C {\n        void f();\n    };\n    int a = 1;\n\n  private:\n" + "    void h();\n" * 9 + "};\n"),
    ("gpu/dialect.cpp", "void f(uint32_t (*g)(uint32_t), std::function<int(int)> h) {\n    const auto a = static_cast<uint32_t>(b) + uint64_t{c};\n"
     "    (void)k(b++, c--);  // i++;\n    explicit operator bool() const;\n    a = f(c, d++) - *p++ + sizeof(float) * (b);\n    for (;;) a[i++] = int64_t{1} << *p++;\n}\n"),
    ("proto/shared.h", "#ifdef __cplusplus\n#pragma once\n#endif\nuint64_t f() { return uint64_t(1); }\n"),
    ("model/other_dialect.cpp", "const auto a = uint32_t(c);\n"),
    ("gpu/nearly_long.cpp", "int a;\n" * FAIL_LINES),
    ("tests/gpu/verb_test.cpp", "void same(int a) {\n    EXPECT_EQ(a, 1);\n}\nTEST(A, B) {\n    same(1);\n}\n"),
    *[(f"adapters/full/b{i}.cpp", "int a;\n") for i in range(FAIL_SOURCES)],
    *[(f"adapters/tidy/b{i}.cpp", "int a;\n") for i in range(FAIL_SOURCES)],
    ("tests/gpu/good_test.cpp", '#include <nlohmann/json.hpp>\nTEST(A, B) {\n    EXPECT_EQ(1, 1);\n}\n'),
]


def self_test():
    failures = []
    with tempfile.TemporaryDirectory() as root:
        for path, content in INNOCENT + [(path, content) for path, content, _ in PLANTED]:
            os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(content)
        problems, _ = check_tree(root)
        for path, _, expected in PLANTED:
            if not any(p.startswith(f"{path}:") and expected in p for p in problems):
                failures.append(f"planted violation not found: {path}: expected '{expected}'")
        for path, _ in INNOCENT:
            failures += [f"false alarm: {p}" for p in problems if p.startswith(f"{path}:")]
    for failure in failures:
        print(failure)
    print(f"tidy self-test: {len(PLANTED)} planted, {len(failures)} wrong")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    if sys.argv[1:]:
        print(__doc__)
        return 2
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    problems, warnings = check_tree(root)
    for warning in warnings:
        print(f"warning: {warning}")
    for problem in problems:
        print(problem)
    print(f"tidy: {len(problems)} problems, {len(warnings)} warnings")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
