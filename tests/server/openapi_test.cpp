// GET /openapi.json against what the server has: routes, fields that parsers know, and their limits.
#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include <nlohmann/json.hpp>

#include "proto/base/version.h"
#include "proto/known_fields.h"
#include "proto/training/fine_tuning_request.h"
#include "server/http/embedded_files.h"
#include "tests/server/http_fixture.h"

namespace lorad::server::openapi_test {
namespace {

using nlohmann::json;

const json& document() {
    static const json kDocument = json::parse(openapi_files().front().content);
    return kDocument;
}

const json& resolved(const json& schema) {
    if (!schema.contains("$ref")) return schema;
    return document().at(json::json_pointer(schema["$ref"].get<std::string>().substr(1)));
}

// Of a schema and all that it is made of.
std::map<std::string, json> properties_of(const json& schema) {
    std::map<std::string, json> out;
    const json& own = resolved(schema);
    for (const char* parts : {"allOf", "anyOf"}) {
        if (!own.contains(parts)) continue;
        for (const json& part : own[parts]) {
            for (auto& [name, value] : properties_of(part)) out[name] = value;
        }
    }
    if (own.contains("properties")) {
        for (auto& [name, value] : own["properties"].items()) out[name] = value;
    }
    return out;
}

const json& request_schema(const std::string& path) {
    return document()
        .at("paths")
        .at(path)
        .at("post")
        .at("requestBody")
        .at("content")
        .at("application/json")
        .at("schema");
}

// The values with which a field that is not honoured is accepted.
json neutral_values(proto::Neutral neutral) {
    using proto::Neutral;
    switch (neutral) {
        case Neutral::kNone: return {nullptr};
        case Neutral::kFalse: return {false, nullptr};
        case Neutral::kTrue: return {true, nullptr};
        case Neutral::kZero: return {0, nullptr};
        case Neutral::kOne: return {1, nullptr};
        case Neutral::kEmpty: return {"", json::array(), json::object(), nullptr};
        case Neutral::kNoTools: return {"none", "auto", nullptr};
        case Neutral::kAuto: return {"auto", "default", nullptr};
        case Neutral::kMedium: return {"medium", nullptr};
        case Neutral::kDisabled: return {"disabled", nullptr};
        case Neutral::kTextOnly:
        case Neutral::kAny: break;
    }
    return {};
}

void expect_fields(const std::string& path, std::span<const proto::KnownField> known) {
    SCOPED_TRACE(path);
    std::map<std::string, json> properties = properties_of(request_schema(path));
    for (const proto::KnownField& field : known) {
        SCOPED_TRACE(std::string(field.name));
        auto found = properties.find(std::string(field.name));
        if (found == properties.end()) {
            ADD_FAILURE() << "the parser knows it, the document does not";
            continue;
        }
        const json values = neutral_values(field.hint == proto::Neutral::kNone ? field.neutral : field.hint);
        if (field.honoured) {
            EXPECT_FALSE(found->second.value("description", "").starts_with("Known, but not done here"));
        } else if (!values.empty()) {
            EXPECT_EQ(found->second.value("enum", json()), values);
        }
        properties.erase(found);
    }
    for (const auto& [name, schema] : properties)
        ADD_FAILURE() << name << " is in the document, the parser does not know it";
}

// Heads are refused before they are routed.
TEST(OpenApi, EveryOperationMayRefuseAMalformedHead) {
    for (const auto& [path, operations] : document()["paths"].items()) {
        for (const auto& [method, operation] : operations.items()) {
            if (method == "parameters") continue;
            EXPECT_TRUE(operation["responses"].contains("400")) << method << " " << path;
        }
    }
}

TEST_F(HttpTest, DocumentNamesEveryRouteAndNoOther) {
    std::set<std::string> served, described;
    for (const auto& [method, path, access] : router.routes()) {
        std::string shape = path.ends_with("/*") ? path.substr(0, path.size() - 1) + "{}" : path;
        std::string verb = method;
        std::ranges::transform(verb, verb.begin(), [](unsigned char c) { return char(std::tolower(c)); });
        served.insert(verb + " " + shape);
    }
    std::set<std::string> operation_ids;
    for (const auto& [path, item] : document().at("paths").items()) {
        const std::string shape = std::regex_replace(path, std::regex(R"(\{[^}]*\})"), "{}");
        for (const auto& [verb, operation] : item.items()) {
            if (verb == "parameters") continue;
            described.insert(verb + " " + shape);
            EXPECT_TRUE(operation_ids.insert(operation.at("operationId")).second) << operation.at("operationId");
            EXPECT_FALSE(operation.at("responses").empty()) << path;
        }
    }
    EXPECT_EQ(served, described);
}

TEST_F(HttpTest, DocumentSaysWhoMayCallWhat) {
    for (const Router::RouteInfo& route : router.routes()) {
        std::string verb = route.method;
        std::ranges::transform(verb, verb.begin(), [](unsigned char c) { return char(std::tolower(c)); });
        const std::string shape =
            route.path.ends_with("/*") ? route.path.substr(0, route.path.size() - 1) + "{}" : route.path;
        const json* operation = nullptr;
        for (const auto& [path, item] : document().at("paths").items()) {
            if (std::regex_replace(path, std::regex(R"(\{[^}]*\})"), "{}") == shape && item.contains(verb))
                operation = &item[verb];
        }
        ASSERT_NE(operation, nullptr) << verb << " " << shape;
        SCOPED_TRACE(verb + " " + shape);
        EXPECT_EQ(operation->at("x-lorad-access"), route.access.text());
        EXPECT_EQ(operation->contains("security"), route.access.is_open());
        EXPECT_EQ(operation->at("responses").contains("401"), !route.access.is_open());
        EXPECT_EQ(operation->at("responses").contains("429"), !route.access.is_open());
        access::Scopes none;
        EXPECT_TRUE(route.access.allows(none) || operation->at("responses").contains("403"));
    }
}

TEST_F(HttpTest, DocumentIsServedAsItIs) {
    gate = nullptr;
    auto answer = client().Get("/openapi.json");
    ASSERT_TRUE(bool(answer));
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->get_header_value("Content-Type"), "application/json");
    EXPECT_EQ(json::parse(answer->body), document());
    EXPECT_EQ(
        client().Get("/openapi.json", httplib::Headers{{"If-None-Match", answer->get_header_value("ETag")}})->status,
        304);
    EXPECT_EQ(document().at("openapi"), "3.1.0");
    EXPECT_EQ(document().at("info").at("version"), version());
}

TEST(OpenApi, ReferencesLeadSomewhereAndPathsNameTheirParameters) {
    std::set<std::string> used;
    auto visit = [&](auto&& self, const json& value) -> void {
        if (value.is_object() && value.contains("$ref")) {
            std::string target = value["$ref"];
            used.insert(target);
            EXPECT_TRUE(document().contains(json::json_pointer(target.substr(1)))) << target;
        }
        if (value.is_structured()) {
            for (const json& part : value) self(self, part);
        }
    };
    visit(visit, document());
    for (const auto& [name, schema] : document().at("components").at("schemas").items())
        EXPECT_TRUE(used.contains("#/components/schemas/" + name)) << name << " is used nowhere";
    for (const auto& [path, item] : document().at("paths").items()) {
        for (const auto& [verb, operation] : item.items()) {
            if (verb == "parameters") continue;
            std::set<std::string> named;
            for (const json* list : {&item, &operation}) {
                if (!list->contains("parameters")) continue;
                for (const json& parameter : (*list)["parameters"]) {
                    if (resolved(parameter).at("in") == "path") named.insert(resolved(parameter).at("name"));
                }
            }
            std::regex part(R"(\{([^}]*)\})");
            std::set<std::string> wanted;
            for (std::sregex_iterator it(path.begin(), path.end(), part), end; it != end; ++it) wanted.insert((*it)[1]);
            EXPECT_EQ(named, wanted) << verb << " " << path;
        }
    }
}

TEST(OpenApi, EveryFieldThatAParserKnowsIsDescribedAsItIs) {
    using proto::Endpoint;
    for (const char* suffix : {"", "/render"}) {
        expect_fields(std::string("/v1/completions") + suffix, proto::request_fields(Endpoint::kCompletions));
        expect_fields(std::string("/v1/chat/completions") + suffix, proto::request_fields(Endpoint::kChats));
    }
    for (const char* path : {"/v1/responses", "/v1/responses/input_tokens"})
        expect_fields(path, proto::request_fields(Endpoint::kResponses));
    for (const char* path : {"/v1/messages", "/v1/messages/count_tokens"})
        expect_fields(path, proto::request_fields(Endpoint::kMessages));
    expect_fields("/v1/embeddings", proto::embeddings_fields());
    expect_fields("/v1/fine_tuning/jobs", proto::fine_tuning_fields());
}

// The limits are the parser's: just inside is taken, just outside is refused.
TEST(OpenApi, LimitsAreThoseOfTheParser) {
    uint32_t n_limits = 0;
    for (bool chat : {false, true}) {
        const std::string path = chat ? "/v1/chat/completions" : "/v1/completions";
        json body = chat ? json{{"messages", {{{"role", "user"}, {"content", "x"}}}}} : json{{"prompt", "x"}};
        if (chat) body["logprobs"] = true;
        for (const auto& [name, schema] : properties_of(request_schema(path))) {
            const json& kind = schema.value("type", json());
            bool is_integer = kind == json{"integer", "null"}, is_number = kind == json{"number", "null"};
            if (!is_integer && !is_number) continue;
            SCOPED_TRACE(path + " " + name);
            const auto taken = [&](const json& value) {
                json with = body;
                with[name] = value;
                if (name == "max_tokens" || name == "max_completion_tokens") with["echo"] = chat ? json() : json(true);
                return proto::parse_generate_request(with.dump(),
                                                     chat ? proto::ApiKind::kChat : proto::ApiKind::kCompletion, 1000)
                    .ok();
            };
            for (const char* bound : {"minimum", "maximum", "exclusiveMinimum"}) {
                if (!schema.contains(bound)) continue;
                const json& limit = schema[bound];
                // Chats have no answer of no tokens; the document does not tell the two apart.
                bool is_special = chat && name.starts_with("max_") && std::string_view(bound) == "minimum";
                bool inside = std::string_view(bound) != "exclusiveMinimum";
                EXPECT_TRUE(is_special || taken(limit) == inside) << bound;
                const int step = bound[1] == 'a' ? 1 : -1;  // maximum, minimum
                json beyond = limit;
                if (is_integer && limit != INT64_MIN && limit != INT64_MAX) beyond = limit.get<int64_t>() + step;
                if (is_number && inside) beyond = limit.get<double>() + 1e-3 * step;
                EXPECT_TRUE(beyond == limit || !taken(beyond)) << "beyond " << bound;
                ++n_limits;
            }
            EXPECT_TRUE(taken(nullptr));
            EXPECT_FALSE(taken("text"));
        }
    }
    EXPECT_GT(n_limits, 60u);
}

}  // namespace
}  // namespace lorad::server::openapi_test
