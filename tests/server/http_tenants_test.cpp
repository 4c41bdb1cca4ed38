// What is another tenant's does not exist: in answers, lists, errors, events, files and cached prefixes.
#include <gmock/gmock.h>

#include "tests/server/access_fixture.h"

namespace lorad::server::http_tenants_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class TenantsTest : public AccessTest {
  protected:
    TenantsTest() {
        for (const char* name : {"red-pirate", "blue-shout"}) {
            auto loaded =
                registry.load(name, demo_folder(std::string(name).substr(std::string(name).find('-') + 1)), {});
            EXPECT_TRUE(loaded.ok()) << loaded.error().message;
            context.lora_scales.add(name);  // 0 and 1
        }
    }
    static std::string replaced(std::string text, const std::string& from, const std::string& to) {
        for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
            text.replace(at, from.size(), to);
        return text;
    }
    static std::string cached(const HttpReply& reply) {
        size_t at = reply.body.find("\"cached_tokens\":");
        return at == std::string::npos ? reply.body
                                       : reply.body.substr(at + 16, reply.body.find_first_of("},", at) - at - 16);
    }
};

TEST_F(TenantsTest, AnothersAdapterIsAnsweredAsOneThatIsNotThere) {
    struct Call {
        const char* method;
        const char* target;
        const char* body;
    };
    const Call calls[] = {
        {"POST", "/v1/completions", R"({"model":"NAME","prompt":[5,6],"max_tokens":2})"},
        {"POST", "/v1/completions", R"({"model":"base:NAME","prompt":[5,6],"max_tokens":2})"},
        {"POST", "/v1/completions", R"({"model":"NAME","prompt":[5,6],"max_tokens":100000})"},
        {"POST", "/v1/completions", R"({"model":"NAME","prompt":[5,6],"lora":[]})"},
        {"POST", "/v1/completions", R"({"adapter":"NAME","prompt":[5,6]})"},
        {"POST", "/v1/completions", R"({"adapters":[{"name":"NAME","scale":0}],"prompt":[5,6],"max_tokens":2})"},
        {"POST", "/v1/completions",
         R"({"adapters":[{"name":"blue-shout"},{"name":"NAME"}],"prompt":[5,6],"max_tokens":2})"},
        {"POST", "/v1/completions", R"({"lora":[{"id":NUMBER,"scale":1}],"prompt":[5,6],"max_tokens":2})"},
        {"POST", "/v1/completions", R"({"lora":[{"id":NUMBER,"scale":0}],"prompt":[5,6],"max_tokens":2})"},
        {"POST", "/v1/chat/completions",
         R"({"model":"NAME","messages":[{"role":"user","content":"x"}],"stream":true})"},
        {"POST", "/v1/responses", R"({"model":"NAME","input":"x"})"},
        {"POST", "/v1/messages", R"({"model":"NAME","max_tokens":4,"messages":[{"role":"user","content":"x"}]})"},
        {"POST", "/v1/messages/count_tokens", R"({"model":"NAME","messages":[{"role":"user","content":"x"}]})"},
        {"POST", "/v1/embeddings", R"({"model":"NAME","input":"x"})"},
        {"POST", "/v1/completions/render", R"({"model":"NAME","prompt":"x"})"},
        {"POST", "/tokenize", R"({"model":"NAME","prompt":"x"})"},
        {"POST", "/detokenize", R"({"model":"NAME","tokens":[5]})"},
        {"GET", "/v1/models/NAME", ""},
        {"DELETE", "/v1/adapters/NAME", ""},
        {"POST", "/v1/adapters/NAME/activate", ""},
        {"POST", "/v1/adapters/NAME/activate", R"({"mode":"merged"})"},
        {"POST", "/v1/adapters/NAME/deactivate", ""},
        {"POST", "/v1/adapters/NAME/rollback", ""},
        {"POST", "/v1/adapters/NAME/validate", ""},
        {"GET", "/v1/adapters/NAME", ""},
        {"POST", "/v1/unload_lora_adapter", R"({"lora_name":"NAME"})"},
        {"POST", "/unload_lora_adapter", R"({"lora_name":"NAME"})"},
        {"POST", "/v1/adapters", R"({"name":"blue-mix","adapters":[{"name":"NAME"}]})"},
    };
    int n_calls = 0;
    for (const Call& call : calls) {
        SCOPED_TRACE(std::string(call.method) + " " + call.target + " " + call.body);
        auto answer = [&](const std::string& name, const std::string& number) {
            auto with = [&](std::string text) {
                return replaced(replaced(std::move(text), "NAME", name), "NUMBER", number);
            };
            HttpReply reply = ask_as("blue", call.method, with(call.target), with(call.body));
            reply.body = replaced(replaced(reply.body, name, "NAME"), "number " + number, "number NUMBER");
            return reply;
        };
        // its own has the number 0
        const HttpReply others = answer("red-pirate", "1"), nobodys = answer("blue-nobody", "7");
        EXPECT_GE(others.status, 400);
        EXPECT_EQ(others.status, nobodys.status);
        EXPECT_EQ(others.body, nobodys.body);
        EXPECT_EQ(others.headers, nobodys.headers);
        n_calls += 2;
    }
    EXPECT_TRUE(registry.find("red-pirate").has_value());
    EXPECT_EQ(
        ask_as("red", "POST", "/v1/completions", R"({"model":"red-pirate","prompt":[5,6],"max_tokens":2})").status,
        200);
    RecordProperty("trials", n_calls);
}

TEST_F(TenantsTest, ListsHoldWhatTheKeyMayUse) {
    ASSERT_TRUE(registry
                    .register_mix("blue-mix",
                                  std::vector<adapters::AdapterTerm>{{"red-pirate", 0.5f}, {"blue-shout", 0.5f}}, {})
                    .ok());
    for (const char* target :
         {"/v1/models", "/v1/adapters", "/v1/adapters?limit=1", "/v1/adapters?limit=1&after=blue-mix",
          "/v1/adapters?limit=1&after=blue-shout", "/v1/lora_adapters", "/lora-adapters", "/v1/adapters/blue-mix"}) {
        HttpReply blue = ask_as("blue", "GET", target);
        EXPECT_EQ(blue.status, 200) << target;
        EXPECT_THAT(blue.body, Not(HasSubstr("red-"))) << target;
    }
    EXPECT_THAT(ask_as("blue", "GET", "/v1/adapters?limit=1").body, HasSubstr("\"has_more\":true"));
    EXPECT_THAT(ask_as("blue", "GET", "/v1/adapters?limit=2").body, HasSubstr("\"has_more\":false"));
    EXPECT_THAT(ask_as("adapters:read", "GET", "/v1/adapters").body, HasSubstr("red-pirate"));
    EXPECT_THAT(ask_as("blue", "POST", "/unload_lora_adapter", R"({"lora_name":"blue-mix"})").body,
                Not(HasSubstr("red-")));
    EXPECT_EQ(ask_as("blue", "GET", "/metrics").status, 403);
}

TEST_F(TenantsTest, NamesAreGivenWithinThePatterns) {
    // Whether there is such a one or not.
    for (const char* name : {"red-pirate", "red-nobody"}) {
        HttpReply refused =
            ask_as("blue", "POST", "/v1/adapters",
                   std::string(R"({"name":")") + name + R"(","adapters":[{"name":"blue-shout"}],"replace":true})");
        EXPECT_EQ(refused.status, 403);
        EXPECT_THAT(refused.body, HasSubstr(std::string("this key may not name an adapter \\\"") + name));
    }
    EXPECT_EQ(ask_as("blue", "POST", "/v1/adapters", R"({"name":"green","adapters":[{"name":"blue-shout"}]})").status,
              403);
    EXPECT_EQ(ask_as("blue", "POST", "/v1/adapters", R"({"name":"blue-2","adapters":[{"name":"blue-shout"}]})").status,
              201);
    EXPECT_EQ(ask_as("blue", "DELETE", "/v1/adapters/blue-2").status, 200);
    // Files of the server are for whoever may do everything.
    EXPECT_EQ(ask_as("blue", "POST", "/v1/load_lora_adapter", R"({"lora_name":"blue-3","lora_path":"/etc"})").status,
              403);
    EXPECT_EQ(ask_as("blue", "POST", "/v1/adapters/validate", R"({"path":"/etc"})").status, 403);
}

TEST_F(TenantsTest, AnothersFilesAreNotThere) {
    const std::string config_text = file_text(demo_folder("pirate") + "/adapter_config.json");
    const std::string weights = file_text(demo_folder("pirate") + "/adapter_model.safetensors");
    auto put = [&](const std::string& id, const std::string& content) {
        return client()
            .Put("/v1/adapters/blobs/sha256:" + sha256_of(content), {{"x-api-key", key_of(id)}}, content,
                 "application/octet-stream")
            ->status;
    };
    EXPECT_EQ(put("red", config_text), 201);
    EXPECT_EQ(put("red", weights), 201);
    const std::string files = "\"files\":{\"adapter_config.json\":\"sha256:" + sha256_of(config_text) +
                              "\",\"adapter_model.safetensors\":\"sha256:" + sha256_of(weights) + "\"}}";
    const std::string blob = "/v1/adapters/blobs/sha256:" + sha256_of(weights);
    EXPECT_EQ(ask_as("red", "HEAD", blob).status, 200);
    EXPECT_EQ(ask_as("blue", "HEAD", blob).status, 404);
    EXPECT_EQ(ask_as("blue", "POST", "/v1/adapters/validate", "{" + files).status, 404);
    HttpReply stolen = ask_as("blue", "POST", "/v1/adapters", "{\"name\":\"blue-stolen\"," + files);
    EXPECT_EQ(stolen.status, 404);
    EXPECT_THAT(stolen.body, HasSubstr("adapter_file_not_found"));
    EXPECT_EQ(put("blue", config_text), 201);
    EXPECT_EQ(put("blue", weights), 201);
    EXPECT_EQ(ask_as("blue", "POST", "/v1/adapters", "{\"name\":\"blue-own\"," + files).status, 201);
    EXPECT_EQ(ask_as("adapters:write", "HEAD", blob).status, 200) << "a key for all adapters";
}

// Nobody's refused registration, removal or restart of what they share takes a tenant's acknowledged upload away, and
// nobody's uploads its room.
TEST_F(TenantsTest, AnUploadStaysWhateverOtherTenantsDo) {
    const std::string config_text = file_text(demo_folder("pirate") + "/adapter_config.json") + " ";
    const std::string weights = file_text(demo_folder("pirate") + "/adapter_model.safetensors");
    const std::string junk("\x08\0\0\0\0\0\0\0{}      ", 16);
    auto put = [&](const std::string& id, const std::string& content) {
        return client()
            .Put("/v1/adapters/blobs/sha256:" + sha256_of(content), {{"x-api-key", key_of(id)}}, content,
                 "application/octet-stream")
            ->status;
    };
    auto registered = [&](const std::string& id, const std::string& name, const std::string& second) {
        return ask_as(id, "POST", "/v1/adapters",
                      R"({"name":")" + name + R"(","files":{"adapter_config.json":"sha256:)" + sha256_of(config_text) +
                          R"(","adapter_model.safetensors":"sha256:)" + sha256_of(second) + "\"}}")
            .status;
    };
    for (const std::string& content : {config_text, weights}) EXPECT_EQ(put("red", content), 201);
    for (const std::string& content : {config_text, junk}) EXPECT_EQ(put("blue", content), 201);
    EXPECT_EQ(registered("blue", "blue-x", junk), 422);
    EXPECT_EQ(put("blue", weights), 201);
    EXPECT_EQ(registered("blue", "blue-x", weights), 201);
    EXPECT_EQ(ask_as("blue", "DELETE", "/v1/adapters/blue-x").status, 200);
    EXPECT_EQ(registered("red", "red-x", weights), 201);
    // A bound for each.
    context.uploads.held_bytes_max = 1000;
    EXPECT_EQ(put("blue", std::string(900, 'a')), 201);
    EXPECT_EQ(put("blue", std::string(200, 'b')), 507);
    EXPECT_EQ(put("red", std::string(200, 'b')), 201);
    context.uploads.n_held_max = 2;
    EXPECT_EQ(put("red", "one more"), 201);
    EXPECT_EQ(put("red", "too many"), 507);
}

TEST_F(TenantsTest, NumbersOfAdaptersCountThoseOfTheKeyOnly) {
    // "red-pirate" has the number 0 among all.
    EXPECT_THAT(ask_as("adapters:read", "GET", "/lora-adapters").body, HasSubstr(R"({"id":1,"path":"blue-shout")"));
    EXPECT_THAT(ask_as("blue", "GET", "/lora-adapters").body, ::testing::StartsWith(R"([{"id":0,"path":"blue-shout")"));
    ASSERT_TRUE(registry.load("red-json", demo_folder("json"), {}).ok());
    ASSERT_TRUE(registry.load("blue-json", demo_folder("json"), {}).ok());
    EXPECT_THAT(ask_as("blue", "GET", "/lora-adapters").body, HasSubstr(R"({"id":1,"path":"blue-json")"));
    const auto completed = [&](const std::string& which) {
        const std::string body = ask_as("blue", "POST", "/v1/completions",
                                        "{" + which + R"(,"prompt":[5,6],"max_tokens":4,"ignore_eos":true})")
                                     .body;
        return body.substr(body.find("\"text\""), body.find("\"logprobs\"") - body.find("\"text\""));
    };
    EXPECT_EQ(completed(R"("lora":[{"id":0,"scale":1}])"), completed(R"("model":"blue-shout")"));
    EXPECT_EQ(completed(R"("lora":[{"id":1,"scale":1}])"), completed(R"("model":"blue-json")"));
    EXPECT_NE(completed(R"("model":"blue-shout")"), completed(R"("model":"blue-json")"));
    EXPECT_EQ(
        ask_as("blue", "POST", "/v1/completions", R"({"lora":[{"id":2,"scale":1}],"prompt":[5,6],"max_tokens":2})")
            .status,
        400);
    // A name keeps its number when it goes and comes back.
    ASSERT_TRUE(registry.remove("blue-shout").ok());
    EXPECT_THAT(ask_as("blue", "GET", "/lora-adapters").body, ::testing::StartsWith(R"([{"id":1,"path":"blue-json")"));
}

TEST_F(TenantsTest, EventsAreOfVisibleNames) {
    struct Sink final : HttpSink {
        std::string text;
        bool write(std::string_view bytes) override {
            text += bytes;
            return true;
        }
        bool client_gone() override { return true; }
    };
    ASSERT_TRUE(registry.remove("red-pirate").ok());
    ASSERT_TRUE(registry.remove("blue-shout").ok());
    auto events = [&](const std::string& id) {
        HttpReply reply = ask_as(id, "GET", "/v1/adapters/events?after=0");
        EXPECT_EQ(reply.status, 200);
        Sink sink;
        reply.stream(sink);
        return sink.text;
    };
    EXPECT_THAT(events("blue"), HasSubstr("blue-shout"));
    EXPECT_THAT(events("blue"), Not(HasSubstr("red-")));
    EXPECT_THAT(events("adapters:read"), HasSubstr("red-pirate"));
}

TEST_F(TenantsTest, ScalesForEverybodyAreNotForKeysWithSomeAdapters) {
    const std::string body = R"({"prompt":[5,6],"max_tokens":4,"ignore_eos":true})";
    const std::string base = ask_as("blue", "POST", "/v1/completions", body).body;
    ASSERT_EQ(ask_as("admin", "POST", "/lora-adapters", R"([{"id":0,"scale":1},{"id":1,"scale":1}])").status, 200);
    auto text = [](const std::string& answer) {
        return answer.substr(answer.find("\"text\""), answer.find("\"logprobs\"") - answer.find("\"text\""));
    };
    EXPECT_EQ(text(ask_as("blue", "POST", "/v1/completions", body).body), text(base));
    EXPECT_NE(text(ask_as("generate", "POST", "/v1/completions", body).body), text(base));
}

TEST_F(TenantsTest, PrefixesAreSharedWithinATenantOnly) {
    std::string tokens;
    for (int i = 0; i < 200; ++i) tokens += (i > 0 ? "," : "") + std::to_string(10 + i % 50);
    auto body = [&](const std::string& more) { return R"({"max_tokens":1,"prompt":[)" + tokens + "]" + more + "}"; };
    auto asked = [&](const std::string& id, const std::string& more = {}) {
        return cached(ask_as(id, "POST", "/v1/completions", body(more)));
    };
    EXPECT_EQ(asked("red"), "0");
    EXPECT_EQ(asked("red"), "192");
    EXPECT_EQ(asked("blue"), "0");
    EXPECT_EQ(asked("generate"), "0");
    EXPECT_EQ(asked("admin"), "0");
    EXPECT_EQ(asked("blue", R"(,"cache_salt":"red")"), "0");
    EXPECT_EQ(asked("blue"), "192");
}

TEST_F(TenantsTest, AGatewaysHeaderCountsWithAKeyForEverythingOnly) {
    std::string tokens;
    for (int i = 0; i < 200; ++i) tokens += (i > 0 ? "," : "") + std::to_string(10 + i % 50);
    auto asked = [&](const std::string& id, const std::string& tenant) {
        HttpRequest request;
        request.method = "POST";
        request.target = "/v1/completions";
        request.body = R"({"max_tokens":1,"prompt":[)" + tokens + "]}";
        request.x_api_key = key_of(id);
        request.fairness_id = tenant;
        return cached(router.handle(std::move(request)));
    };
    EXPECT_EQ(asked("admin", "a"), "0");
    EXPECT_EQ(asked("admin", "b"), "0");
    EXPECT_EQ(asked("admin", "a"), "192");
    EXPECT_EQ(asked("red", "a"), "0");
    EXPECT_EQ(asked("red", "b"), "192") << "what the client says is nobody's name";
}

TEST_F(TenantsTest, TokensHaveAQuota) {
    // 100 tokens a minute; an answer is estimated at 64 until it is known.
    auto status = [&] {
        return ask_as("few", "POST", "/v1/completions", R"({"prompt":[5,6],"max_tokens":40,"ignore_eos":true})");
    };
    EXPECT_EQ(status().status, 200);
    EXPECT_EQ(status().status, 200);
    HttpReply refused = status();
    EXPECT_EQ(refused.status, 429);
    EXPECT_THAT(refused.body, HasSubstr("rate_limited"));
    const int seconds = std::stoi("0" + header(refused, "Retry-After"));
    EXPECT_GE(seconds, 10);
    EXPECT_LE(seconds, 20);
    EXPECT_EQ(ask_as("generate", "POST", "/v1/completions", R"({"prompt":[5,6],"max_tokens":40})").status, 200);
}

}  // namespace
}  // namespace lorad::server::http_tenants_test
