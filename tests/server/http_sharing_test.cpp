// What requests of several clients share over HTTP, and what they do not: prefixes, places, the log.
#include "tests/server/http_fixture.h"
#include "tests/support/prometheus.h"

namespace lorad::server::http_sharing_test {
namespace {

class HttpSharing : public HttpTest {
  protected:
    static std::string prompt_json(uint32_t n) {
        std::string out = "[";
        for (uint32_t i = 0; i < n; ++i) out += (i ? "," : "") + std::to_string(i * 7 % 900);
        return out + "]";
    }
    // Cached tokens that the answer tells of.
    uint64_t cached(const std::string& tenant, const std::string& more = "", uint32_t n_prompt = 150) {
        httplib::Headers headers;
        if (!tenant.empty()) headers.emplace("x-gateway-inference-fairness-id", tenant);
        std::string body = "{\"max_tokens\":4,\"ignore_eos\":true,\"prompt\":" + prompt_json(n_prompt) + more + "}";
        Answer answer = read(client().Post("/v1/completions", headers, body, "application/json"));
        EXPECT_EQ(answer.status, 200) << answer.body;
        Result<JsonDocument> document = parse_json(answer.body);
        if (!document.ok() || answer.status != 200) return 0;
        auto details = document->root().find("usage")->find("prompt_tokens_details");
        return details ? uint64_t(*details->int_or("cached_tokens", 0)) : 0;
    }
};

TEST_F(HttpSharing, CachedTokensAreTold) {
    EXPECT_EQ(cached(""), 0u);
    EXPECT_EQ(cached(""), 128u);
    EXPECT_EQ(cached("", "", 100), 64u);
    EXPECT_EQ(metric("vllm:prefix_cache_hits_total{model_name=\"base\"} "), 192.0);
}

TEST_F(HttpSharing, TenantsAndSaltsShareNoPrefixes) {
    const std::pair<std::string, std::string> all[] = {{"", ""},
                                                       {"a", ""},
                                                       {"b", ""},
                                                       {"", ",\"cache_salt\":\"a\""},
                                                       {"a", ",\"cache_salt\":\"a\""},
                                                       {"", ",\"cache_salt\":\"1:a\""}};
    for (const auto& [tenant, salt] : all) EXPECT_EQ(cached(tenant, salt), 0u) << tenant << salt;
    for (const auto& [tenant, salt] : all) EXPECT_EQ(cached(tenant, salt), 128u) << tenant << salt;
    // Who asked makes no difference to the share of what is known.
    EXPECT_EQ(cached("", ",\"user\":\"somebody\""), 128u);
}

TEST_F(HttpSharing, ALogLineForEachRequestHasItsSizesAndNothingOfItsText) {
    ::testing::internal::CaptureStderr();
    set_log_level(LogLevel::kInfo);
    Answer answer =
        post("/v1/completions", R"({"max_tokens":3,"ignore_eos":true,"prompt":"a secret","user":"someone"})");
    EXPECT_EQ(answer.status, 200) << answer.body;
    listener->stop();
    set_log_level(LogLevel::kWarn);
    std::string log = ::testing::internal::GetCapturedStderr();
    EXPECT_NE(log.find("request ended id=\"cmpl-"), std::string::npos) << log;
    EXPECT_NE(log.find(" reason=\"length\" choices=1 prompt_tokens=8 cached_tokens=0 completion_tokens=3 "),
              std::string::npos)
        << log;
    EXPECT_EQ(log.find("secret"), std::string::npos);
    EXPECT_EQ(log.find("someone"), std::string::npos);
}

TEST_F(HttpSharing, MetricsAreStrictPrometheusText) {
    load_pirate();
    cached("t", ",\"model\":\"pirate\"");
    (void)post("/v1/completions", "{");
    testing::PrometheusText parsed(get("/metrics").body);
    ASSERT_TRUE(parsed.ok()) << parsed.error();
    EXPECT_EQ(parsed.samples().at("vllm:request_queue_time_seconds_count{model_name=\"base\"}"), 1.0);
    EXPECT_EQ(parsed.samples().at("vllm:request_prompt_tokens_sum{model_name=\"base\"}"), 150.0);
}

}  // namespace
}  // namespace lorad::server::http_sharing_test
