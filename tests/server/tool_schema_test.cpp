// What the schemas of functions let through, beside what a validator says of the same arguments
// (tests/goldens/tool-schemas).
#include <algorithm>
#include <fstream>

#include <nlohmann/json.hpp>

#include "proto/generate/generate_request.h"
#include "tests/server/grammar_accepts.h"
#include "tests/support/source_dir.h"

namespace lorad::server::tool_schema_test {
namespace {

using json = nlohmann::ordered_json;

// On one line, as models write calls.
std::string spoken(const json& value) {
    std::string text;
    if (value.is_object()) {
        for (const auto& [key, member] : value.items())
            text += (text.empty() ? "" : ", ") + json(key).dump() + ": " + spoken(member);
        return "{" + text + "}";
    }
    if (!value.is_array()) return value.dump();
    for (const json& element : value) text += (text.empty() ? "" : ", ") + spoken(element);
    return "[" + text + "]";
}

struct Compiled {
    proto::Structure structure;
    bool is_enforced = false;  // all of it
};

Compiled compiled(const json& schema, const json& strict) {
    json function{{"name", "f"}, {"parameters", schema}, {"strict", strict}};
    json body{{"messages", {{{"role", "user"}, {"content", "hi"}}}},
              {"tools", {{{"type", "function"}, {"function", function}}}},
              {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}};
    auto request = proto::parse_generate_request(body.dump(), proto::ApiKind::kChat, 1000);
    EXPECT_TRUE(request.ok()) << request.error().message;
    if (!request.ok()) return {};
    return {*request->structure, request->not_enforced.empty()};
}

// With its members in some order: grammars have one of their own.
bool lets_through(const Compiled& function, const json& arguments) {
    std::vector<std::string> keys;
    for (const auto& [key, value] : arguments.items()) keys.push_back(key);
    std::ranges::sort(keys);
    do {
        json ordered = json::object();
        for (const std::string& key : keys) ordered[key] = arguments.at(key);
        if (accepts(function.structure, spoken(ordered))) return true;
    } while (std::ranges::next_permutation(keys).found);
    return false;
}

const json& cases() {
    static const json kCases = [] {
        std::ifstream file(lorad::testing::source_dir() / "tests/goldens/tool-schemas/cases.json");
        return json::parse(file);
    }();
    return kCases;
}

TEST(ToolSchema, ClosingAnObjectLeavesWhatTheSchemaAsksFor) {
    size_t n_closed = 0, n_enforced = 0;
    for (const json& one : cases()) {
        SCOPED_TRACE(one["schema"].dump());
        const Compiled function = compiled(one["schema"], nullptr);
        for (const json& arguments : one["valid"])
            EXPECT_TRUE(lets_through(function, arguments)) << arguments << "\n" << function.structure.source;
        for (const json& arguments : one["invalid"]) {
            EXPECT_FALSE(function.is_enforced && lets_through(function, arguments)) << arguments << "\n"
                                                                                    << function.structure.source;
        }
        n_enforced += function.is_enforced;
        for (const json& arguments : one["beyond"])
            EXPECT_FALSE(lets_through(function, arguments)) << arguments << "\n" << function.structure.source;
        n_closed += !one["beyond"].empty();
    }
    EXPECT_GE(cases().size(), 35u);
    EXPECT_GE(n_closed, 10u);
    EXPECT_GE(n_enforced, 33u);
}

TEST(ToolSchema, NothingIsClosedWhereTheFunctionSaysSo) {
    size_t n_enforced = 0;
    for (const json& one : cases()) {
        SCOPED_TRACE(one["schema"].dump());
        const Compiled function = compiled(one["schema"], false);
        for (const char* kind : {"valid", "beyond"}) {
            for (const json& arguments : one[kind])
                EXPECT_TRUE(lets_through(function, arguments)) << arguments << "\n" << function.structure.source;
        }
        for (const json& arguments : one["invalid"]) {
            EXPECT_FALSE(function.is_enforced && lets_through(function, arguments)) << arguments << "\n"
                                                                                    << function.structure.source;
        }
        n_enforced += function.is_enforced;
    }
    EXPECT_GE(n_enforced, 33u);
}

}  // namespace
}  // namespace lorad::server::tool_schema_test
