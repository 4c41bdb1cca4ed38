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
    Plant("T6", "server/http/guard/conversation.cpp", "    c.closes = true;\n    if (end != GuardEnd::kBusy)", "    c.closes = false;\n    if (end != GuardEnd::kBusy)",
          part="malformed requests", why="the connection goes on after a refusal"),
    Plant("T6", "server/http/guard/request_head.cpp", '{"host", "content-length", ', '{"host", ', part="malformed requests", why="two lengths"),
    Plant("T6", "server/http/guard/request_head.cpp", "if ((c == '\\n') != after_return)", "if (c != '\\n' && after_return)", part="malformed requests",
          why="a bare LF ends a line"),
    Plant("T10", "server/http/routes_adapters.cpp", '{"DELETE", "/v1/adapters/{}", kWritesAdapters,', '{"DELETE", "/v1/adapters/{}", kGenerates,',
          ("lorad", "server_tests"), part="no administration with a user's key", why="a user's key removes adapters"),
    Plant("T10", "server/access/key_store.cpp", "for (size_t b = 0; b < digest.size(); ++b) difference", "for (size_t b = 0; b < digest.size() && difference == 0; ++b) difference",
          ("lorad", "server_tests"), part="the comparison takes the same time", why="a comparison that ends at the first difference"),
    Plant("T10", "server/access/key_store.cpp", "now_s < principal->expires_s ? Verdict::kValid", "now_s < now_s + principal->expires_s ? Verdict::kValid",
          ("lorad", "server_tests"), part="every route over HTTP with every kind of key", why="keys do not expire"),
    Plant("T11", "server/http/generation.cpp", '{{"id", head.id},', '{{"id", prompt_text(0)},', ("lorad", "server_tests"), part="the log from start to end, text",
          why="prompts in the log"),
    Plant("T11", "server/http/router.cpp", ': "unknown key");', ": request.authorization);", ("lorad", "server_tests"), part="the log from start to end, json",
          why="keys that were refused in the log"),
    Plant("T24", "server/http/generation.cpp", "(key != nullptr ? key->prefix_salt : std::string())", "std::string()", ("lorad", "server_tests"),
          part="another tenant's prefix takes as long as nobody's", why="one cache for all tenants"),
    Plant("T26", "server/http/generation.cpp", '"user " + request.user : key->tenant;', '"user " + request.user : std::string();', ("lorad", "server_tests"),
          part="an equal share for whoever always asks", tier="nightly", why="one share for all keys"),
    Plant("T26", "server/engine/fair_share.cpp", "    ticket.tenant->cost += cost;", "    ticket.tenant->cost += 1;", ("lorad", "server_tests"),
          part="the service of two backlogged tenants", why="requests are counted, not what they cost"),
    Plant("T26", "server/engine/fair_share.cpp", "return tenant->rows + std::min<uint64_t>(n_left, n_ahead);", "return prompt->arrival + 0 * n_ahead;", ("lorad", "server_tests"),
          part="the prompts of tenants share the rows", why="prompts are computed in their order of arrival"),
    Plant("T13", "server/engine/engine.cpp", "            if (auto reason = sequence->request.stream->cancelled())\n",
          "            auto reason = sequence->request.stream->cancelled();\n            if (reason && !sequence->was_admitted)\n",
          ("lorad", "server_tests"), part="over HTTP", why="requests that run are not cancelled"),
    Plant("T25", "adapters/catalogue.cpp", "    if (found != aliases.end() && !options.replace) {\n", "    if (found != aliases.end() && !options.replace && name.ends_with('0')) {\n",
          part="one order", why="a name that exists is registered anew without being asked to"),
    Plant("T27", "gpu/memory_pool.cpp", "    if (const uint64_t value = buffer.last_upload.load(); value != 0) settle_(value);\n", "",
          ("lorad", "lorad_fault_layer"), part="every start with a fault", why="memory is given back under uploads that are still to come"),
    Plant("T27", "server/engine/executor_runner.h", "return queue_ == nullptr ? ok_status() : queue_->health();", "return ok_status();",
          ("lorad", "lorad_fault_layer"), part="a lost device", why="an idle engine does not see that an upload lost the device"),
    Plant("T27", "model/executor.cpp", "        std::vector<const gpu::CommandBuffer*> behind;\n        TRY(it.add_epilogues(next, behind));\n", "",
          ("lorad", "lorad_fault_layer"), part="made the next time", why="what a masked step's draw needs is made when the step has begun"),
    Plant("T27", "gpu/kernels/kernels.cpp", "        if (made.error().code != ErrorCode::kKernelRefused) {\n", "        if (false) {\n",
          ("lorad", "lorad_fault_layer"), part="made the next time", why="a kernel that once found no memory is never made"),
    Plant("T7", "server/http/guard/conversation.cpp", "        c.n_lingered += uint64_t(n);\n", "        c.n_lingered += uint64_t(n);\n        c.in.append(piece, size_t(n));\n",
          part="each attack alone", why="what is refused is kept"),
    Plant("T7", "server/http/guard/request_head.cpp", 'if (count_of("content-encoding") > 0 && ', "if (false && ", part="each attack alone",
          why="compressed bodies are taken"),
    Plant("T8", "server/http/guard/accepting.cpp", "set_deadline(c, GuardClock::now() + options_.head_time);", "set_deadline(c, GuardClock::now() + std::chrono::hours(1));",
          part="slow heads", why="no deadline for a head"),
    Plant("T8", "server/http/guard/accepting.cpp", "n_counted_ >= options_.n_connections_max && !evict_idle()", "n_counted_ >= 100000u && !evict_idle()",
          part="at the cap", why="no cap"),
    Plant("T14", "server/http/guard/exchange.h", "write_stall{5000}", "write_stall{100000}", part="clients stop reading", why="a stalled reader is waited for"),
    Plant("T15", "server/ops/lifecycle.cpp", "        engine_.drain(timeout);\n", "        engine_.drain(std::chrono::seconds(0));\n", part="SIGTERM under load",
          why="running requests get no time"),
    Plant("T15", "server/http/routes.cpp", 'if (!context->engine.accepting()) return health(false, "draining");', "", part="SIGTERM under load",
          why="ready while draining"),
    Plant("T15", "server/ops/signals.cpp", "    if (g_n_stops > 1) _exit(kExitAtOnce);\n", "", part="the second SIGTERM", why="the second signal is not heard"),
    Plant("T16", "server/ops/reload.cpp", "    TRY_ASSIGN(Config next, read_());\n", "    Result<Config> read = read_();\n    Config next = read.ok() ? *read : Config();\n",
          part="of broken ones", why="a broken configuration is taken as one of defaults"),
    Plant("T16", "server/ops/lifecycle.cpp", "    manager_.reloading();\n", "    manager_.reloading();\n    if (dup(0) < 0) return;\n",
          part="descriptors, threads", why="each reload leaves a descriptor open"),
    Plant("T17", "server/ops/lifecycle.cpp", " || !vitals_.feeds(*manager_.watchdog_time())) return;", ") return;", part="the engine's thread stops",
          why="a timer feeds the watchdog"),
    Plant("T17", "server/ops/vitals.cpp", "        probes_.look_at_registry();\n", "", ("lorad", "server_tests"), part="a registry lock",
          why="nobody looks at the registry's lock"),
    Plant("T17", "server/ops/service_manager.cpp", "        if (!is_alive_()) continue;\n", "", ("lorad", "server_tests"), part="a registry lock",
          why="a start that hangs asks for time for ever"),
    Plant("T29", "deploy/systemd/lorad.service", "CapabilityBoundingSet=\n", "", (), part="systemd-analyze security", why="the unit keeps capabilities"),
    Plant("T29", "server/config.h", 'std::string host = "127.0.0.1";', 'std::string host = "0.0.0.0";', part="it listens where it says", why="open to every network"),
    Plant("T1", "model/safetensors.cpp", "    if (at != n_data_bytes) {", "    if (at > n_data_bytes) {", ("adapter_reader", "lorad"),
          part="each is refused", why="bytes behind the last tensor are taken"),
    Plant("T1", "model/safetensors.cpp", "    if (n_header_bytes > n_rest) {", "    if (n_header_bytes > n_rest + 8) {",
          ("adapter_reader", "lorad"), why="a header beyond the end of the file: the sanitizers see it"),
    Plant("T2", "model/safetensors.cpp", "return {kAdapterHeaderBytesMax, 1u << 17};", "return {kSafetensorsHeaderBytesMax, 1u << 26};", ("adapter_reader", "lorad"),
          part="files, on a stack", why="a header may take any memory"),
    Plant("T2", "proto/json_parse.cpp", "    if (text.size() > options.max_values) {", "    if (text.size() > (size_t{1} << 40)) {", ("adapter_reader", "lorad"),
          part="over HTTP", why="values are built before they are counted"),
    Plant("T3", "model/safetensors.cpp", 'header.starts_with("\\xef\\xbb\\xbf")', 'header.starts_with("\\xff")', ("adapter_reader",),
          part="against a reader of another make", why="a byte order mark, as JSON files may have"),
    Plant("T3", "adapters/tensor_names.cpp", " || (digits.size() > 1 && digits.front() == '0')", "", ("adapter_reader",), part="cases that do not fit",
          why="a layer written otherwise is taken for the base's"),
    Plant("T4", "adapters/plan_checks.cpp", "base.checks_numbers ? first_unusable(*tensor) : std::nullopt", "false ? first_unusable(*tensor) : std::nullopt",
          ("lorad", "server_tests"), part="refused over HTTP", why="numbers are not looked at"),
    Plant("T5", "adapters/file_system.cpp", "O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC", "O_RDONLY | O_NONBLOCK | O_CLOEXEC", ("lorad", "adapters_tests"),
          part="links, fifos", why="a link that is planted while the server runs is followed"),
    Plant("T5", "proto/base/log.cpp", "escape_unprintable(line)", "line", part="the log is clean", why="names go into the log as they are"),
    Plant("T5", "adapters/adapter.cpp", "if (!is_printable(name)) {", "if (name.find('\\n') != name.npos) {", part="hostile names", why="names may hide, turn and end lines"),
    Plant("T9", "proto/error.cpp", 'ErrorInfo{ErrorCode::kInvalidRequest, 400,', 'ErrorInfo{ErrorCode::kInvalidRequest, 500,', part="values of parameters",
          why="a refusal blames the server"),
    Plant("T20", "adapters/store_disk.cpp", "        return read_only(status.error());\n", "        return ok_status();\n", ("lorad", "fail_at", "adapters_tests"),
          part="fsync fails", why="a sync that failed is acknowledged"),
    Plant("T18", "adapters/store_disk.cpp", '(void)files_->remove("incoming/" + entry.name).ok();', "(void)entry;", ("store_faults", "lorad"),
          part="killed before", why="what a killed upload leaves stays"),
    Plant("T19", "adapters/store_disk.cpp", "            TRY(store_.synced(*file_));\n", "", ("store_faults", "adapters_tests"),
          part="bytes, then name", why="a blob gets its name before its bytes are synced"),
    Plant("T21", "adapters/store_disk.cpp", "if (contents.ok() && sha256_hex(contents->span()) == sha256) return contents;", "if (contents.ok()) return contents;",
          ("store_faults", "lorad"), part="bits, cuts, swaps", why="what is read is not compared with its digest"),
    Plant("T22", "adapters/pool_waiting.cpp", "        if (generation->n_uses > 0 || generation->n_pins > 0) continue;\n", "        if (generation->n_pins > 0) continue;\n",
          ("lorad", "server_tests"), part="fake device, deterministic, with faults", why="a slot is given away while steps read it"),
    Plant("T28", "model/forward.cpp", "        recorder_.barrier();\n    }\n\n    void embed_extras() {", "    }\n\n    void embed_extras() {",
          ("lorad", "lorad_fault_layer", "server_tests"), part="other way round", why="a layer reads what the embedding has not written yet"),
]
