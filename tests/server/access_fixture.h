// The server of http_fixture.h with keys: one for each scope, and some with quotas or adapters of their own.
#pragma once

#include <filesystem>

#include "server/access/audit.h"
#include "server/access/key_store.h"
#include "tests/server/http_fixture.h"

namespace lorad::server {

class AccessTest : public HttpTest {
  protected:
    class TextBody final : public HttpBody {
      public:
        explicit TextBody(std::string text) : text_(std::move(text)) {}
        std::optional<uint64_t> length() const override { return text_.size(); }
        Status read(uint64_t, const Take& take) override { return text_.empty() ? ok_status() : take(text_); }

      private:
        std::string text_;
    };

    AccessTest() {
        path = std::filesystem::temp_directory_path() / ("lorad-access-" + std::to_string(getpid()));
        std::string text;
        for (const char* scope :
             {"generate", "adapters:read", "adapters:write", "training:read", "training:write", "metrics", "admin"})
            text += line(scope, std::string("\"") + scope + "\"");
        text += line("old", R"("admin")", R"(,"expires":"2020-01-01")");
        text += line("slow", R"("generate")", R"(,"requests_per_minute":2)");
        text += line("few", R"("generate")", R"(,"tokens_per_minute":100)");
        text += line("red", R"("generate","adapters:write")", R"(,"adapters":["red-*"])");
        text += line("blue", R"("generate","adapters:write")", R"(,"adapters":["blue-*"])");
        std::ofstream(path) << text;
        auto created = access::KeyStore::create({.file = path});
        EXPECT_TRUE(created.ok()) << created.error().message;
        keys = std::move(*created);
        router.set_guard({.keys = keys.get(), .audit = &audit});
        set_log_level(LogLevel::kError);
    }
    ~AccessTest() override { std::filesystem::remove(path); }

    static std::string key_of(const std::string& id) { return "key-of-" + id; }
    static std::string line(const std::string& id, const std::string& scopes, const std::string& more = {}) {
        std::string plain = id;
        std::ranges::replace(plain, ':', '-');
        return "{\"id\":\"" + plain + "\",\"sha256\":\"" + sha256_of(key_of(id)) + "\",\"scopes\":[" + scopes + "]" +
               more + "}\n";
    }
    HttpReply ask(const std::string& method, const std::string& target, const std::string& key,
                  const std::string& body = {}, ListenerRole listener_role = ListenerRole::kMain) {
        HttpRequest request;
        request.method = method;
        request.target = target;
        request.body = body;
        request.content_type = "application/json";
        request.listener = listener_role;
        TextBody stream(body);
        request.stream = &stream;
        request.body_bytes_max = 100000;
        request.body.clear();
        if (!key.empty()) request.authorization = "Bearer " + key;
        return router.handle(std::move(request));
    }
    HttpReply ask_as(const std::string& id, const std::string& method, const std::string& target,
                     const std::string& body = {}) {
        return ask(method, target, key_of(id), body);
    }
    static std::string header(const HttpReply& reply, const std::string& name) {
        for (const auto& [key, value] : reply.headers) {
            if (key == name) return value;
        }
        return {};
    }
    // The route's path with something in place of what it leaves open.
    static std::string example(std::string route) {
        if (route.ends_with("/*")) route = route.substr(0, route.size() - 1) + "x";
        if (route == "/console/{}") return "/console/main.js";
        for (size_t at; (at = route.find("{}")) != std::string::npos;) route.replace(at, 2, "x");
        return route;
    }

    std::string path;
    std::unique_ptr<access::KeyStore> keys;
    access::Audit audit;
};

}  // namespace lorad::server
