// Who may call what: every route with every kind of key, and other ways to write its path.
#include <map>

#include "tests/server/access_fixture.h"

namespace lorad::server::http_access_test {
namespace {

// The whole table. A route that is not here, or asks for something else than here, fails the test.
const std::map<std::string, std::string> kAccess = {
    {"GET /health", "open"},
    {"GET /health/live", "open"},
    {"GET /health/ready", "open"},
    {"GET /", "open"},
    {"GET /console", "open"},
    {"GET /console/", "open"},
    {"GET /console/{}", "open"},
    {"GET /version", "any key"},
    {"GET /openapi.json", "any key"},
    {"GET /metrics", "metrics"},
    {"GET /v1/models", "generate or adapters:read"},
    {"GET /v1/models/*", "generate or adapters:read"},
    {"POST /v1/completions", "generate"},
    {"POST /v1/chat/completions", "generate"},
    {"POST /v1/completions/render", "generate"},
    {"POST /v1/chat/completions/render", "generate"},
    {"POST /v1/responses", "generate"},
    {"POST /v1/responses/input_tokens", "generate"},
    {"GET /v1/responses/{}", "generate"},
    {"DELETE /v1/responses/{}", "generate"},
    {"GET /v1/responses/{}/input_items", "generate"},
    {"POST /v1/messages", "generate"},
    {"POST /v1/messages/count_tokens", "generate"},
    {"POST /v1/embeddings", "generate"},
    {"POST /tokenize", "generate"},
    {"POST /detokenize", "generate"},
    {"GET /tokenizer_info", "generate"},
    {"POST /v1/files", "training:write"},
    {"GET /v1/files", "training:read"},
    {"GET /v1/files/{}", "training:read"},
    {"DELETE /v1/files/{}", "training:write"},
    {"GET /v1/files/{}/content", "training:read"},
    {"POST /v1/files/{}/check", "training:read"},
    {"POST /v1/fine_tuning/jobs", "training:write"},
    {"GET /v1/fine_tuning/jobs", "training:read"},
    {"GET /v1/fine_tuning/jobs/{}", "training:read"},
    {"POST /v1/fine_tuning/jobs/{}/cancel", "training:write"},
    {"POST /v1/fine_tuning/jobs/{}/pause", "training:write"},
    {"POST /v1/fine_tuning/jobs/{}/resume", "training:write"},
    {"GET /v1/fine_tuning/jobs/{}/events", "training:read"},
    {"GET /v1/fine_tuning/jobs/{}/checkpoints", "training:read"},
    {"GET /v1/fine_tuning/jobs/{}/adapter", "training:read"},
    {"POST /v1/fine_tuning/jobs/{}/checkpoints/{}/publish", "training:write"},
    {"GET /api/v1/healthz", "any key"},
    {"POST /api/v1/client/config", "any key"},
    {"POST /api/v1/client/dynamic_config", "any key"},
    {"POST /api/v1/telemetry", "any key"},
    {"GET /api/v1/get_server_capabilities", "any key"},
    {"POST /api/v1/create_session", "generate or training:write"},
    {"POST /api/v1/session_heartbeat", "generate or training:write"},
    {"POST /api/v1/sessions/{}/finish", "generate or training:write"},
    {"POST /api/v1/create_model", "training:write"},
    {"POST /api/v1/unload_model", "training:write"},
    {"POST /api/v1/get_info", "training:read"},
    {"POST /api/v1/forward_backward", "training:write"},
    {"POST /api/v1/optim_step", "training:write"},
    {"POST /api/v1/save_weights_for_sampler", "training:write"},
    {"POST /api/v1/save_weights", "training:write"},
    {"POST /api/v1/load_weights", "training:write"},
    {"POST /api/v1/create_sampling_session", "generate or training:write"},
    {"GET /api/v1/samplers/{}", "generate or training:read"},
    {"POST /api/v1/asample", "generate"},
    {"POST /api/v1/retrieve_future", "generate or training:read"},
    {"POST /api/v1/cancel_future", "generate"},
    {"GET /api/v1/*", "any key"},
    {"POST /api/v1/*", "any key"},
    {"GET /v1/adapters", "adapters:read"},
    {"GET /v1/adapters/{}", "adapters:read"},
    {"GET /v1/adapters/events", "adapters:read"},
    {"GET /v1/lora_adapters", "adapters:read"},
    {"GET /lora-adapters", "adapters:read"},
    {"POST /v1/adapters", "adapters:write"},
    {"DELETE /v1/adapters/{}", "adapters:write"},
    {"POST /v1/adapters/{}/activate", "adapters:write"},
    {"POST /v1/adapters/{}/deactivate", "adapters:write"},
    {"POST /v1/adapters/{}/rollback", "adapters:write"},
    {"POST /v1/adapters/{}/validate", "adapters:write"},
    {"POST /v1/adapters/validate", "adapters:write"},
    {"PUT /v1/adapters/blobs/{}", "adapters:write"},
    {"HEAD /v1/adapters/blobs/{}", "adapters:write"},
    {"POST /v1/unload_lora_adapter", "adapters:write"},
    {"POST /unload_lora_adapter", "adapters:write"},
    {"POST /v1/load_lora_adapter", "admin"},
    {"POST /load_lora_adapter", "admin"},
    {"POST /lora-adapters", "admin"},
};

TEST_F(AccessTest, TheTableNamesEveryRoute) {
    std::map<std::string, std::string> served;
    for (const Router::RouteInfo& route : router.routes())
        served[route.method + " " + route.path] = route.access.text();
    EXPECT_EQ(served, kAccess);
    RecordProperty("routes", int(served.size()));
}

TEST_F(AccessTest, EveryRouteAsksForItsScope) {
    int n_calls = 0;
    for (const Router::RouteInfo& route : router.routes()) {
        SCOPED_TRACE(route.method + " " + route.path);
        const std::string target = example(route.path);
        auto status = [&](const std::string& key) {
            ++n_calls;
            return ask(route.method, target, key).status;
        };
        if (route.access.is_open()) {
            EXPECT_LT(status(""), 400);
            continue;
        }
        EXPECT_EQ(status(""), 401);
        EXPECT_EQ(status("key-of-nobody"), 401);
        EXPECT_EQ(status(key_of("old")), 401) << "an expired key of all scopes";
        EXPECT_EQ(status("KEY-OF-admin"), 401) << "keys are not words";
        EXPECT_NE(status(key_of("admin")), 401);
        EXPECT_NE(status(key_of("admin")), 403);
        for (access::Scope scope : access::kAllScopes) {
            access::Scopes scopes;
            scopes.add(scope);
            int found = status(key_of(std::string(access::name_of(scope))));
            EXPECT_NE(found, 401);
            EXPECT_EQ(found == 403, !route.access.allows(scopes)) << access::name_of(scope);
        }
    }
    RecordProperty("trials", n_calls);
}

// Neither is a path that somebody might read as another one: what is served is what the table says, letter by letter.
TEST_F(AccessTest, OtherWaysToWriteAPathLeadNowhere) {
    int n_calls = 0;
    for (const Router::RouteInfo& route : router.routes()) {
        const std::string target = example(route.path);
        std::string upper = target, first_slash = target;
        std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return char(std::toupper(c)); });
        const size_t last = target.rfind('/');
        const std::vector<std::string> forms = {"/" + target,
                                                target + "/",
                                                target + "//",
                                                upper,
                                                "/." + target,
                                                "/x/.." + target,
                                                "/%2e" + target,
                                                "/%2e%2e" + target,
                                                "/;" + target,
                                                target + ";x",
                                                target + ".",
                                                target + "%00",
                                                target + "%20",
                                                target + "/.",
                                                target + "/..",
                                                target.substr(0, last) + "//" + target.substr(last + 1),
                                                target.substr(0, last) + "%2f" + target.substr(last + 1),
                                                target.substr(0, last) + "%2F" + target.substr(last + 1),
                                                target.substr(0, last) + "\\" + target.substr(last + 1),
                                                "http://x" + target,
                                                target.substr(1),
                                                target + "%",
                                                "*"};
        for (const std::string& form : forms) {
            if (form == target) continue;  // "/" in capitals
            SCOPED_TRACE(route.method + " " + form);
            ++n_calls;
            const int without = ask(route.method, form, "").status;
            // The console's own files may be asked for by any name.
            EXPECT_TRUE(without == 401 || form.starts_with("/console/")) << without;
            if (!route.access.is_administrative()) continue;
            const int as_user = ask_as("generate", route.method, form).status;
            EXPECT_TRUE(as_user == 400 || as_user == 403 || as_user == 404 || as_user == 405) << as_user;
        }
    }
    RecordProperty("trials", n_calls);
}

TEST_F(AccessTest, OtherMethodsAndUnknownPathsLookAlikeWithoutAKey) {
    const std::string refusal = ask("GET", "/v1/adapters", "").body,
                      of_messages = ask("GET", "/v1/messages/nothing", "").body;
    for (const char* method :
         {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"}) {
        for (const char* target : {"/v1/adapters", "/v1/messages", "/v1/messages/x", "/v1/completions", "/nothing",
                                   "/metrics", "/lora-adapters", "/v1/adapters/x/activate"}) {
            HttpReply reply = ask(method, target, "");
            EXPECT_EQ(reply.status, 401) << method << target;
            // By the path alone, in the words of those who call such paths.
            EXPECT_EQ(reply.body, std::string_view(target).starts_with("/v1/messages") ? of_messages : refusal)
                << method << target;
            EXPECT_EQ(header(reply, "WWW-Authenticate"), "Bearer realm=\"lorad\"");
            EXPECT_EQ(header(reply, "Allow"), "");
        }
    }
    EXPECT_EQ(header(ask("GET", "/v1/adapters", "wrong"), "WWW-Authenticate"),
              "Bearer realm=\"lorad\", error=\"invalid_token\"");
    EXPECT_EQ(ask_as("generate", "GET", "/nothing").status, 404);
}

TEST_F(AccessTest, KeysGoOverTheWire) {
    httplib::Client with = client();
    with.set_bearer_token_auth(key_of("generate").c_str());
    EXPECT_EQ(with.Get("/v1/models")->status, 200);
    EXPECT_EQ(client().Get("/v1/models")->status, 401);
    EXPECT_EQ(client().Get("/v1/models", {{"x-api-key", key_of("generate")}})->status, 200);
    EXPECT_EQ(client().Get("/health/ready")->status, 200);
    EXPECT_EQ(client().Get("/console")->status, 200);
}

TEST_F(AccessTest, AdministrationMayHaveAListenerOfItsOwn) {
    router.set_guard({.keys = keys.get(), .audit = &audit, .administers_elsewhere = true});
    for (const Router::RouteInfo& route : router.routes()) {
        if (!route.access.is_administrative()) continue;
        SCOPED_TRACE(route.method + " " + route.path);
        const std::string target = example(route.path);
        HttpReply here = ask(route.method, target, key_of("admin"));
        HttpReply there = ask(route.method, target, key_of("admin"), {}, ListenerRole::kAdmin);
        EXPECT_TRUE(here.status == 404 || here.status == 405) << here.status;
        EXPECT_EQ(header(here, "Allow").find(route.method), std::string::npos);
        EXPECT_NE(there.status, 405);
        EXPECT_EQ(ask(route.method, target, "", {}, ListenerRole::kAdmin).status, 401);
    }
    EXPECT_EQ(ask("GET", "/v1/adapters", key_of("admin")).status, 200);
    EXPECT_EQ(ask("POST", "/lora-adapters", key_of("admin"), "[]").status, 405);
    EXPECT_EQ(ask("POST", "/lora-adapters", key_of("admin"), "[]", ListenerRole::kAdmin).status, 200);
}

TEST_F(AccessTest, MetricsMayBeOpenAndNothingElseThen) {
    EXPECT_EQ(ask("GET", "/metrics", "").status, 401);
    router.set_guard({.keys = keys.get(), .audit = &audit, .metrics_without_key = true});
    for (const std::string& key : {std::string(), std::string("nobody"), key_of("generate"), key_of("metrics")})
        EXPECT_EQ(ask("GET", "/metrics", key).status, 200) << key;
    EXPECT_EQ(ask("HEAD", "/metrics", "").status, 200);
    for (const Router::RouteInfo& route : router.routes()) {
        if (route.path == "/metrics" || route.access.is_open()) continue;
        EXPECT_EQ(ask(route.method, example(route.path), "").status, 401) << route.method << " " << route.path;
    }
    EXPECT_EQ(ask("GET", "/metrics/x", "").status, 401);
}

TEST_F(AccessTest, AKeyHasItsRate) {
    EXPECT_EQ(ask_as("slow", "GET", "/v1/models").status, 200);
    EXPECT_EQ(ask_as("slow", "GET", "/v1/models").status, 200);
    HttpReply refused = ask_as("slow", "GET", "/nothing");
    EXPECT_EQ(refused.status, 429);
    EXPECT_NE(refused.body.find("rate_limited"), std::string::npos);
    EXPECT_EQ(header(refused, "Retry-After"), "30");
    EXPECT_EQ(ask_as("generate", "GET", "/v1/models").status, 200);
}

}  // namespace
}  // namespace lorad::server::http_access_test
