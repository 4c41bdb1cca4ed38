#include "server/metrics.h"

#include <gtest/gtest.h>

#include "server/adapter_metrics.h"

namespace lorad::server {
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
    EXPECT_NE(metrics.text({}).find(R"(model_name="a\"b\\c\nd")"), std::string::npos);
}

TEST(Metrics, MaximaAndSharesFollowTheSteps) {
    Metrics metrics({"m", 64, 10, 4, "dev", "drv", false});
    metrics.on_step({5, 3, 2, 2, 0.1});
    metrics.on_step({4, 4, 1, 0, 0.1});
    metrics.set_kv_blocks_used(5);
    metrics.set_active_adapters("a,b", "c");
    metrics.on_finished(FinishReason::kStop, 1.0);
    std::string text = metrics.text({{"a", 1000}}, "d");
    EXPECT_TRUE(has_line(text, "lorad_step_rows_max{model_name=\"m\"} 5")) << text;
    EXPECT_TRUE(has_line(text, "lorad_step_sequences_max{model_name=\"m\"} 4"));
    EXPECT_TRUE(has_line(text, "lorad_step_adapters_max{model_name=\"m\"} 2"));
    EXPECT_TRUE(has_line(text, "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5"));
    EXPECT_TRUE(has_line(text, "lorad_adapter_bytes{adapter_name=\"a\"} 1000"));
    EXPECT_TRUE(
        has_line(text, "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1"));
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
    for (size_t at = text.find("adapter_name="); at != std::string::npos; at = text.find("adapter_name=", at + 1)) ++n_series;
    EXPECT_LE(n_series, 3 * kNamedSeriesMax);
    EXPECT_EQ(names_waiting_for_place(list), "77");
}

}  // namespace
}  // namespace lorad::server
