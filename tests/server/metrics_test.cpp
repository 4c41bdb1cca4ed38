#include "server/metrics.h"

#include <ranges>

#include <gtest/gtest.h>

#include "proto/base/printable.h"
#include "server/adapter_metrics.h"
#include "tests/support/prometheus.h"

namespace lorad::server::metrics_test {
namespace {

bool has_line(const std::string& text, const std::string& line) {
    return text.find("\n" + line + "\n") != std::string::npos;
}

TEST(Metrics, HistogramBucketsAreCumulativeAndTheLastIsTheCount) {
    Histogram histogram({1.0, 2.0, 5.0});
    for (double value : {0.5, 1.0, 1.5, 100.0}) histogram.observe(value);
    std::string text = "\n";
    histogram.write(text, "h", "a=\"b\"", "help");
    EXPECT_TRUE(has_line(text, "h_bucket{a=\"b\",le=\"1\"} 2")) << text;
    EXPECT_TRUE(has_line(text, "h_bucket{a=\"b\",le=\"2\"} 3"));
    EXPECT_TRUE(has_line(text, "h_bucket{a=\"b\",le=\"5\"} 3"));
    EXPECT_TRUE(has_line(text, "h_bucket{a=\"b\",le=\"+Inf\"} 4"));
    EXPECT_TRUE(has_line(text, "h_sum{a=\"b\"} 103"));
    EXPECT_TRUE(has_line(text, "h_count{a=\"b\"} 4"));
}

TEST(Metrics, LabelsAreEscaped) {
    Metrics metrics({"a\"b\\c\nd", 64, 10, 4, "dev", "drv", false});
    EXPECT_NE(metrics.text({}).find(R"(model_name="a\"b\\c\\nd")"), std::string::npos);
}

TEST(Metrics, MaximaAndSharesFollowTheSteps) {
    Metrics metrics({"m", 64, 10, 4, "dev", "drv", false});
    metrics.on_step({5, 3, 2, 2, 0.1});
    metrics.on_step({4, 4, 1, 0, 0.1});
    metrics.set_kv_blocks(5, 2);
    metrics.set_active_adapters("a,b", "c");
    metrics.on_finished({.reason = FinishReason::kStop, .total_s = 1.0});
    std::string text = metrics.text({{"a", 1000}}, "d");
    EXPECT_TRUE(has_line(text, "lorad_step_rows_max{model_name=\"m\"} 5")) << text;
    EXPECT_TRUE(has_line(text, "lorad_step_sequences_max{model_name=\"m\"} 4"));
    EXPECT_TRUE(has_line(text, "lorad_step_adapters_max{model_name=\"m\"} 2"));
    EXPECT_TRUE(has_line(text, "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5"));
    EXPECT_TRUE(has_line(text, "lorad_adapter_bytes{adapter_name=\"a\"} 1000"));
    EXPECT_TRUE(has_line(text, "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1"));
    EXPECT_NE(text.find("vllm:lora_requests_info{max_lora=\"4\",running_lora_adapters=\"a,b\","
                        "waiting_lora_adapters=\"c,d\"}"),
              std::string::npos);
}

TEST(AdapterMetrics, NameTheBusiestAndCountAll) {
    std::vector<adapters::AdapterInfo> list(5000);
    for (size_t i = 0; i < list.size(); ++i) {
        list[i].name = std::to_string(i);
        list[i].tier = adapters::Tier::kRam;
        list[i].n_leases = i == 4321 ? 9 : 1;
        list[i].n_waiting = i == 77;
    }
    list[0].name = "a\"b";
    adapters::RegistryStats stats;
    stats.n_loads = 7;
    std::string text = adapter_metrics_text(list, stats, "m");
    EXPECT_TRUE(has_line(text, "lorad_adapter_requests_running{adapter_name=\"4321\"} 9"));
    EXPECT_TRUE(has_line(text, "lorad_adapter_requests_waiting{adapter_name=\"77\"} 1"));
    EXPECT_TRUE(has_line(text, "vllm:num_cpu_loaded_lora_adapters{model_name=\"m\"} 5000"));
    EXPECT_TRUE(has_line(text, "lorad_adapter_loads_total{model_name=\"m\"} 7"));
    EXPECT_NE(text.find(R"(adapter_name="a\"b")"), std::string::npos);
    size_t n_series = 0;
    for (size_t at = text.find("adapter_name="); at != std::string::npos; at = text.find("adapter_name=", at + 1))
        ++n_series;
    EXPECT_LE(n_series, 3 * kNamedSeriesMax);
    EXPECT_EQ(names_waiting_for_place(list), "77");
}

TEST(AdapterTraffic, CountsRequestsTokensAndTimesByName) {
    AdapterTraffic traffic(2);
    traffic.add({.adapter = "", .n_prompt = 5, .n_generated = 2, .total_s = 1.5, .first_token_s = 0.5});
    traffic.add({.adapter = "sql", .n_prompt = 3, .n_generated = 0, .total_s = 0.25});
    traffic.add({.adapter = "sql", .n_prompt = 4, .n_generated = 7, .total_s = 0.5, .first_token_s = 0.125});
    const std::string text = traffic.text("base");
    for (const char* line : {"lorad_adapter_requests_total{adapter_name=\"base\"} 1",
                             "lorad_adapter_requests_total{adapter_name=\"sql\"} 2",
                             "lorad_adapter_prompt_tokens_total{adapter_name=\"sql\"} 7",
                             "lorad_adapter_generation_tokens_total{adapter_name=\"sql\"} 7",
                             "lorad_adapter_request_seconds_total{adapter_name=\"sql\"} 0.75",
                             "lorad_adapter_first_token_seconds_total{adapter_name=\"sql\"} 0.125",
                             "lorad_adapter_first_tokens_total{adapter_name=\"sql\"} 1"})
        EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
    // A third name takes the place of the one that was used longest ago.
    traffic.add({.adapter = "late", .total_s = 1});
    EXPECT_FALSE(has_line(traffic.text("base"), "lorad_adapter_requests_total{adapter_name=\"base\"} 1"));
    EXPECT_TRUE(has_line(traffic.text("base"), "lorad_adapter_requests_total{adapter_name=\"sql\"} 2"));
    EXPECT_TRUE(has_line(traffic.text("base"), "lorad_adapter_requests_total{adapter_name=\"late\"} 1"));
}

TEST(PrometheusText, TellsWhatAScraperWouldReject) {
    const std::string head = "# HELP a text\n# TYPE a gauge\n";
    EXPECT_TRUE(testing::PrometheusText(head + "a 1\na{x=\"y\\\\\\\"\\n\"} NaN\n").ok());
    for (const std::string& bad :
         {head + "a 1", head + "a 1\n\na{x=\"y\"} 1\n", head + "a 1\na 2\n", head + "b 1\n", head + "a{x=\"y} 1\n",
          head + "a{x=\"\\t\"} 1\n", head + "a{x=\"1\",x=\"2\"} 1\n", head + "a{1x=\"2\"} 1\n", head + "a one\n",
          head + "a  1\n", head + "a 1\n" + head, std::string("a 1\n"), std::string("# TYPE a gauge\na 1\n"),
          std::string("# HELP c x\n# TYPE c counter\nc -1\n"),
          std::string("# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 1\nh_count 1\n"),
          std::string(
              "# HELP h x\n# TYPE h histogram\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 1\nh_sum 1\nh_count 1\n"),
          std::string("# HELP h x\n# TYPE h histogram\nh_bucket{le=\"+Inf\"} 2\nh_sum 1\nh_count 1\n")}) {
        EXPECT_FALSE(testing::PrometheusText(bad).ok()) << bad;
    }
}

// Names that would break a line, a label or a scraper, and more of them than there may be series.
TEST(Metrics, AreStrictPrometheusTextWhateverNamesThereAre) {
    Metrics metrics({.model_name = "m\"\\\n",
                     .block_tokens = 64,
                     .n_kv_blocks = 10,
                     .n_adapters_max = 4,
                     .device_name = "dev \"x\"",
                     .device_driver = "drv\nv1"});
    std::string names;
    std::vector<adapters::AdapterInfo> list(3000);
    std::vector<Metrics::Resident> resident;
    for (size_t i = 0; i < list.size(); ++i) {
        list[i].name = "n" + std::to_string(i) + "\"\\\n,\x7d";
        list[i].tier = i % 2 ? adapters::Tier::kRam : adapters::Tier::kGpu;
        list[i].n_leases = 1;
        names += (i ? "," : "") + list[i].name;
        if (i < kNamedSeriesMax) resident.push_back({list[i].name, i});
    }
    metrics.set_active_adapters(names, names);
    for (int i = 0; i < 1000; ++i) {
        metrics.on_first_token(i * 0.001);
        metrics.on_finished({.reason = FinishReason(i % 6),
                             .total_s = i * 0.1,
                             .queue_s = i % 7 - 1.0,
                             .prefill_s = 0.1,
                             .decode_s = 0.2,
                             .n_prompt = uint64_t(i) * 1000,
                             .n_generated = uint64_t(i % 3),
                             .n_tokens_max = 5});
        metrics.on_step({uint32_t(i), 3, 2, 2, i * 0.01});
    }
    std::string text = metrics.text(resident, names) + adapter_metrics_text(list, {}, "m\"");
    testing::PrometheusText parsed(text);
    ASSERT_TRUE(parsed.ok()) << parsed.error();
    for (const char* name : {"vllm:num_requests_running",
                             "vllm:num_requests_waiting",
                             "vllm:kv_cache_usage_perc",
                             "vllm:prefix_cache_queries_total",
                             "vllm:prefix_cache_hits_total",
                             "vllm:lora_requests_info",
                             "vllm:lora_adapter_loaded",
                             "vllm:cache_config_info",
                             "vllm:time_to_first_token_seconds",
                             "vllm:inter_token_latency_seconds",
                             "vllm:e2e_request_latency_seconds",
                             "vllm:request_queue_time_seconds",
                             "vllm:request_prefill_time_seconds",
                             "vllm:request_decode_time_seconds",
                             "vllm:request_inference_time_seconds",
                             "vllm:request_prompt_tokens",
                             "vllm:request_generation_tokens",
                             "vllm:prompt_tokens_total",
                             "vllm:generation_tokens_total",
                             "vllm:request_success_total",
                             "vllm:num_preemptions_total",
                             "vllm:iteration_tokens_total"}) {
        EXPECT_TRUE(parsed.types().contains(name)) << name;
        EXPECT_GT(parsed.n_samples_of(name), 0u) << name;
    }
    for (const auto& [name, type] : parsed.types()) {
        EXPECT_LE(parsed.n_samples_of(name), kNamedSeriesMax) << name;
        EXPECT_EQ(type == "counter", name.ends_with("_total") && type != "histogram") << name;
    }
    EXPECT_LT(text.size(), 512u * 1024) << "a label grows with the number of adapters";
}

// Names are checked, but a store of an older version may have others, and drivers say what they like.
TEST(Metrics, HoldNothingThatATerminalObeysOrAReaderTakesForALinesEnd) {
    EXPECT_EQ(escaped_label("a\xc2\x85"
                            "b\xe2\x80\xa8"
                            "c\xe2\x80\xae"
                            "d\x1b\x7f\xff\n\\\""),
              R"(a\\u0085b\\u2028c\\u202ed\\u001b\\u007f)"
              "\xef\xbf\xbd"
              R"(\\n\\\")");
    EXPECT_EQ(escaped_label("caf\xc3\xa9 \xe6\x97\xa5"), "caf\xc3\xa9 \xe6\x97\xa5");
    const std::string hostile = "n\xe2\x80\xa8"
                                "forged 1\xc2\x9b"
                                "31m\x1b]0;x\x07\xe2\x80\xae\r\xff";
    Metrics metrics({.model_name = hostile,
                     .block_tokens = 64,
                     .n_kv_blocks = 10,
                     .n_adapters_max = 4,
                     .device_name = hostile,
                     .device_driver = hostile});
    metrics.set_active_adapters(hostile, hostile);
    std::vector<adapters::AdapterInfo> list(1);
    list[0].name = hostile;
    list[0].tier = adapters::Tier::kGpu;
    const std::string text = metrics.text({{hostile, 1}}, hostile) + adapter_metrics_text(list, {}, hostile);
    ASSERT_TRUE(testing::PrometheusText(text).ok());
    for (const auto line : std::views::split(std::string_view(text), '\n')) {
        EXPECT_TRUE(is_printable(std::string_view(line.begin(), line.end())))
            << std::string_view(line.begin(), line.end());
    }
}

}  // namespace
}  // namespace lorad::server::metrics_test
