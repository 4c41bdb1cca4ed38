// No part of a body is dropped in silence: to every object that the interface's description knows, in the bodies of all
// routes, one more member is added, which the answer has to name.
#include <nlohmann/json.hpp>

#include "server/http/embedded_files.h"
#include "tests/server/http_fixture.h"

namespace lorad::server::unknown_fields_test {
namespace {

using nlohmann::json;

constexpr const char* kUnknown = "x_unknown";

const json& document() {
    static const json kDocument = json::parse(openapi_files().front().content);
    return kDocument;
}

const json& resolved(const json& schema) {
    if (!schema.contains("$ref")) return schema;
    return resolved(document().at(json::json_pointer(schema["$ref"].get<std::string>().substr(1))));
}

// All alternatives of a schema, each with one meaning for every property.
std::vector<json> alternatives(const json& given) {
    const json& schema = resolved(given);
    std::vector<json> out{schema};
    out.front().erase("anyOf");
    out.front().erase("allOf");
    const auto merge = [](json one, const json& other) {
        for (const auto& [key, value] : other.items()) {
            if (key == "properties") {
                for (const auto& [name, property] : value.items()) one["properties"][name] = property;
            } else if (key == "required" && one.contains("required")) {
                one["required"].insert(one["required"].end(), value.begin(), value.end());
            } else {
                one[key] = value;
            }
        }
        return one;
    };
    const auto multiply = [&](const std::vector<json>& others) {
        std::vector<json> all;
        for (const json& one : out) {
            for (const json& other : others) all.push_back(merge(other, one));
        }
        out = std::move(all);
    };
    if (schema.contains("allOf")) {
        for (const json& part : schema["allOf"]) multiply(alternatives(part));
    }
    if (schema.contains("anyOf")) {
        std::vector<json> any;
        for (const json& part : schema["anyOf"]) {
            for (json& one : alternatives(part)) any.push_back(std::move(one));
        }
        multiply(any);
    }
    return out;
}

// A value that the schema allows, as small as it may be. Names are "f", of an adapter and a function.
json smallest(const json& given) {
    const json schema = alternatives(given).front();
    if (schema.contains("const")) return schema["const"];
    if (schema.contains("enum")) return schema["enum"].front();
    json type = schema.value("type", json("string"));
    if (type.is_array()) type = type.front();
    if (type == "integer" || type == "number") return std::max(schema.value("minimum", 0), 0);
    if (type == "boolean") return false;
    if (type == "null") return nullptr;
    if (type == "array")
        return schema.value("minItems", 0) > 0 ? json::array({smallest(schema["items"])}) : json::array();
    if (type != "object") return "f";
    json object = json::object();
    for (const json& name : schema.value("required", json::array()))
        object[name.get<std::string>()] = smallest(schema["properties"][name.get<std::string>()]);
    return object;
}

struct Site {
    json body;
    std::string object;  // path of the object that has the unknown member, as errors and headers have it
    std::string member;  // likewise; empty object: the body itself
};

std::string joined(const std::string& path, const std::string& more) {
    if (path.empty() || more.empty()) return path + more;
    return path + (more.front() == '[' ? "" : ".") + more;
}

// Every object of the schema that has members of its own, once for each of its alternatives.
void add_sites(const json& given, std::vector<Site>& sites) {
    for (const json& schema : alternatives(given)) {
        json type = schema.value("type", json(""));
        if (schema.contains("const") || schema.contains("enum")) continue;
        const bool is_object = type == "object" || (type.is_array() && type.front() == "object");
        const bool is_array = type == "array" || (type.is_array() && type.front() == "array");
        if (is_array && schema.contains("items")) {
            std::vector<Site> inner;
            add_sites(schema["items"], inner);
            for (Site& site : inner)
                sites.push_back({json::array({site.body}), joined("[0]", site.object), joined("[0]", site.member)});
        }
        if (!is_object || !schema.contains("properties")) continue;
        const json plain = smallest(schema);
        Site own{plain, "", kUnknown};
        own.body[kUnknown] = 1;
        sites.push_back(own);
        for (const auto& [name, property] : schema["properties"].items()) {
            std::vector<Site> inner;
            add_sites(property, inner);
            for (Site& site : inner) {
                json body = plain;
                body[name] = site.body;
                sites.push_back({body, joined(name, site.object), joined(name, site.member)});
            }
        }
    }
}

// What a body has to have besides, so that nothing else is wrong with it.
void complete(const std::string& path, json& body) {
    if (!body.is_object()) return;
    const bool is_chat = path.starts_with("/v1/chat/") || path == "/tokenize";
    const json last{{"role", "user"}, {"content", "f"}};
    if (body.contains("messages") && body["messages"].is_array()) body["messages"].push_back(last);
    if (path.starts_with("/v1/responses") && body["input"].is_array()) body["input"].push_back(last);
    if (body.contains("lora_path") && path.ends_with("load_lora_adapter")) {
        body["lora_path"] = (lorad::testing::source_dir() / "deploy/demo-model/adapters/pirate").string();
        body["load_inplace"] = true;
    }
    if (body.contains("stream_options") && body["stream_options"].is_object()) body["stream"] = true;
    for (const char* limit : {"max_tokens", "max_output_tokens", "max_completion_tokens"}) {
        if (body.contains(limit)) body[limit] = 2;
    }
    if (body.contains("tool_choice") && !body.contains("tools")) {
        const json& choice = body["tool_choice"];
        if (path.starts_with("/v1/responses"))
            body["tools"] = {{{"type", "function"}, {"name", "f"}}};
        else if (is_chat)
            body["tools"] = {{{"type", "function"}, {"function", {{"name", "f"}}}}};
        else
            body["tools"] = {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}};
        // A custom tool is chosen as what it is.
        const bool names_custom =
            choice.is_object() && (choice.contains("custom") || choice.dump().find("\"custom\"") != std::string::npos);
        if (names_custom && is_chat) body["tools"] = {{{"type", "custom"}, {"custom", {{"name", "f"}}}}};
        if (names_custom && path.starts_with("/v1/responses")) body["tools"] = {{{"type", "custom"}, {"name", "f"}}};
    }
    // Blocks belong to who may write them.
    if (body.contains("messages") && body["messages"].is_array() && !body["messages"].empty()) {
        json& message = body["messages"][0];
        const std::string content = message.value("content", json()).dump();
        const bool is_assistants = content.find("\"tool_use\"") != std::string::npos ||
                                   content.find("\"thinking\"") != std::string::npos ||
                                   message.contains("tool_calls") || content.find("\"refusal\"") != std::string::npos;
        if (is_assistants) message["role"] = "assistant";
        if (is_chat && !message.contains("content")) message["content"] = "f";
    }
}

// Anything may be said.
class AnyConstraint final : public TokenConstraint {
  public:
    Status next_mask(std::vector<uint32_t>& words) override {
        words.assign(kFakeVocab / 32 + 1, 0xffffffffu);
        return ok_status();
    }
    Status accept(TokenId) override { return ok_status(); }
    Result<std::unique_ptr<TokenConstraint>> duplicate() const override {
        return std::unique_ptr<TokenConstraint>(std::make_unique<AnyConstraint>());
    }
};
// The fixture's, but for grammars.
class AnyCodec final : public TextCodec {
  public:
    Result<std::vector<TokenId>> encode(std::string_view text, bool specials) const override {
        return codec_.encode(text, specials);
    }
    Result<std::string> decode(std::span<const TokenId> tokens, bool skip) const override {
        return codec_.decode(tokens, skip);
    }
    std::optional<TokenId> token_id(std::string_view spelling) const override { return codec_.token_id(spelling); }
    std::string token_bytes(TokenId token) const override { return codec_.token_bytes(token); }
    Result<RenderedChat> render_chat(const ChatInput& chat) const override { return codec_.render_chat(chat); }
    std::unique_ptr<TextDecoder> make_decoder(DecodeOptions options) const override {
        return codec_.make_decoder(std::move(options));
    }
    Result<std::unique_ptr<TokenConstraint>> make_constraint(const proto::Structure&, std::span<const TokenId>,
                                                             uint32_t, const access::Holder&) const override {
        return std::unique_ptr<TokenConstraint>(std::make_unique<AnyConstraint>());
    }
    model::ToolFormat tool_format() const override { return codec_.tool_format(); }

  private:
    FakeCodec codec_;
};

class UnknownFieldsTest : public HttpTest {
  protected:
    UnknownFieldsTest() {
        EXPECT_EQ(register_demo("f", "pirate").status, 201);
        gate = &mine;
    }
    ~UnknownFieldsTest() override { gate = &context; }

    // Of every route that reads JSON.
    static std::vector<std::pair<std::string, Site>> all_sites() {
        std::vector<std::pair<std::string, Site>> all;
        for (const auto& [path, item] : document().at("paths").items()) {
            const json::json_pointer schema("/post/requestBody/content/application~1json/schema");
            if (!item.contains(schema)) continue;
            // This server trains no models by calls, so these routes read no body; TinkerRequests tests their fields.
            if (path.starts_with("/api/v1/")) continue;
            std::vector<Site> sites;
            add_sites(item.at(schema), sites);
            for (Site& site : sites) {
                complete(path, site.body);
                all.emplace_back(path, std::move(site));
            }
        }
        return all;
    }
    static std::string address(std::string path) {
        const size_t name = path.find("{name}");
        return name == std::string::npos ? path : path.replace(name, 6, "f");
    }

    AnyCodec any_codec;
    ServerContext mine{engine,     metrics,       registry,   any_codec,  "base",
                       kFakeVocab, kPositionsMax, defaults(), 1700000000, kFakeHidden};
};

// The error is about the member, or about the object that has it, which is of a kind that is not taken here.
bool names(const std::string& text, const Site& site, bool is_param) {
    const auto is = [&](const std::string& path) { return is_param ? text == path : text.starts_with(path + ":"); };
    return is(site.member) || (!site.object.empty() && (is(site.object) || is(site.object + ".type")));
}

TEST_F(UnknownFieldsTest, AreNamedInTheHeaderOrRefused) {
    const auto sites = all_sites();
    std::map<std::string, size_t> n_of;
    for (const auto& [path, site] : sites) {
        SCOPED_TRACE(path + " " + site.member + " " + site.body.dump());
        ++n_of[path];
        auto result = client().Post(address(path), site.body.dump(), "application/json");
        ASSERT_TRUE(result);
        const Answer answer = read(result);
        const std::string header = ", " + result->get_header_value("x-lorad-ignored-fields") + ",";
        const bool is_listed = header.find(", " + site.member + ",") != std::string::npos;
        const bool is_refused =
            answer.status >= 400 && (names(answer.param, site, true) || names(answer.message, site, false));
        EXPECT_TRUE(is_listed || is_refused) << answer.status << " " << header << " " << answer.body.substr(0, 300);
        if (path.find("unload") != std::string::npos) register_demo("f", "pirate");
    }
    // Every kind of object that bodies have; a route with fewer has lost some of its description.
    EXPECT_GE(n_of["/v1/chat/completions"], 30u);
    EXPECT_GE(n_of["/v1/responses"], 30u);
    EXPECT_GE(n_of["/v1/messages"], 20u);
    EXPECT_GE(n_of.size(), 18u) << "routes";
}

TEST_F(UnknownFieldsTest, AreRefusedByAStrictServer) {
    mine.strict = true;
    for (const auto& [path, site] : all_sites()) {
        SCOPED_TRACE(path + " " + site.member + " " + site.body.dump());
        const Answer answer = post(address(path), site.body.dump());
        EXPECT_EQ(answer.status / 100, 4) << answer.body.substr(0, 300);
        EXPECT_TRUE(names(answer.param, site, true) || names(answer.message, site, false))
            << answer.body.substr(0, 300);
    }
}

}  // namespace
}  // namespace lorad::server::unknown_fields_test
