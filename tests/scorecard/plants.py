"""Planted bugs: each test of the scorecard must fail where its bug is in the program. tests/scorecard.sh --controls tries them, in a copy of the
tree with a build folder of its own (build/plants).

Plant(test, file, old, new, targets): in `file` the text `old`, which must occur exactly once, becomes `new`; `targets` are built (none, where the file
is not compiled); then the test's quick form must fail. `part`: the part that must be among what fails, where another one failing would prove nothing.
`tier`: where only a longer form finds it. Several plants of one test must all be found.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Plant:
    test: str
    file: str
    old: str
    new: str
    targets: tuple = ("lorad",)
    part: str = ""
    tier: str = "commit"
    why: str = ""


PLANTS = [
    Plant("T23", "adapters/cache_identity.cpp", "    add_text(digest, Tag::kTenant, tenant_salt);\n", "    digest.add(tenant_salt);\n",
          ("lorad", "adapters_tests", "server_tests"), part="every field has a tag", why="a field without tag and length"),
    Plant("T23", "server/engine/prefix_identity.cpp", "adapters.push_back({content.generation, content.scale});",
          'adapters.push_back({"x", content.scale});', ("lorad", "server_tests"), part="over HTTP",
          why="an adapter's content does not count"),
    Plant("T6", "server/http/guard/guard.cpp", "    c.closes = true;\n    if (end != GuardEnd::kBusy)", "    c.closes = false;\n    if (end != GuardEnd::kBusy)",
          part="malformed requests", why="the connection goes on after a refusal"),
    Plant("T6", "server/http/guard/request_head.cpp", '{"host", "content-length", ', '{"host", ', part="malformed requests", why="two lengths"),
    Plant("T6", "server/http/guard/request_head.cpp", "if ((c == '\\n') != after_return)", "if (c != '\\n' && after_return)", part="malformed requests",
          why="a bare LF ends a line"),
]
