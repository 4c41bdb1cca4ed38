#include "server/metrics.h"

#include <algorithm>

#include "proto/base/format.h"

namespace lorad::server {
std::string escaped_label(std::string_view text) {
    std::string out;
    for (char c : text) {
        if (c == '\\' || c == '"') out += '\\';
        if (c == '\n') {
            out += "\\n";
        } else {
            out += c;
        }
    }
    return out;
}

void write_metric_head(std::string& out, std::string_view name, std::string_view type,
                std::string_view help) {
    out += format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

namespace {

template <typename T>
void write_one(std::string& out, std::string_view name, std::string_view type,
               std::string_view labels, T value, std::string_view help) {
    write_metric_head(out, name, type, help);
    out += format("{}{{{}}} {}\n", name, labels, value);
}

void raise_to(std::atomic<uint32_t>& maximum, uint32_t value) {
    uint32_t seen = maximum.load(std::memory_order_relaxed);
    while (seen < value && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

std::vector<double> latency_bounds() {
    return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
            0.5,   1.0,    2.5,   5.0,  10.0,  30.0, 60.0};
}
std::vector<double> count_bounds() {
    return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192};
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds)
    : upper_bounds_(std::move(upper_bounds)),
      counts_(new std::atomic<uint64_t>[upper_bounds_.size() + 1] {}) {}

void Histogram::observe(double value) {
    size_t bucket = size_t(std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value) -
                           upper_bounds_.begin());
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view labels,
                      std::string_view help) const {
    write_metric_head(out, name, "histogram", help);
    uint64_t total = 0;
    for (size_t i = 0; i < upper_bounds_.size(); ++i) {
        total += counts_[i].load(std::memory_order_relaxed);
        out += format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, upper_bounds_[i], total);
    }
    total += counts_[upper_bounds_.size()].load(std::memory_order_relaxed);
    out += format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, total);
    out += format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels,
                  sum_.load(std::memory_order_relaxed), name, labels, total);
}

Metrics::Metrics(Shape shape)
    : shape_(std::move(shape)),
      time_to_first_token_(latency_bounds()),
      inter_token_latency_(latency_bounds()),
      request_latency_(latency_bounds()),
      step_rows_(count_bounds()),
      step_sequences_(count_bounds()),
      step_seconds_(latency_bounds()) {}

void Metrics::on_step(const Step& step) {
    n_steps_.fetch_add(1, std::memory_order_relaxed);
    n_prefill_rows_.fetch_add(step.n_prefill_rows, std::memory_order_relaxed);
    step_rows_.observe(step.n_rows);
    step_sequences_.observe(step.n_sequences);
    step_seconds_.observe(step.seconds);
    raise_to(n_step_rows_max_, step.n_rows);
    raise_to(n_step_sequences_max_, step.n_sequences);
    raise_to(n_step_adapters_max_, step.n_adapters);
    if (step.is_merged) n_merged_steps_.fetch_add(1, std::memory_order_relaxed);
}

void Metrics::on_merged(double gpu_ms) {
    n_merges_.fetch_add(1, std::memory_order_relaxed);
    merge_gpu_ms_.fetch_add(gpu_ms, std::memory_order_relaxed);
}

void Metrics::on_finished(FinishReason reason, double seconds) {
    n_finished_[size_t(reason)].fetch_add(1, std::memory_order_relaxed);
    request_latency_.observe(seconds);
}

void Metrics::on_http_response(int status) {
    n_http_responses_[size_t(std::clamp(status / 100, 0, 5))].fetch_add(1,
                                                                        std::memory_order_relaxed);
}

void Metrics::set_requests(uint32_t n_running, uint32_t n_waiting) {
    n_running_.store(n_running, std::memory_order_relaxed);
    n_waiting_.store(n_waiting, std::memory_order_relaxed);
}

void Metrics::set_active_adapters(std::string running, std::string waiting) {
    double now_s =
        std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    std::lock_guard lock(adapters_mutex_);
    running_adapters_ = std::move(running);
    waiting_adapters_ = std::move(waiting);
    adapters_changed_at_s_ = now_s;
}

std::string Metrics::text(const std::vector<Resident>& adapters, std::string_view waiting_for_place) const {
    std::string out;
    std::string model = format("model_name=\"{}\"", escaped_label(shape_.model_name));
    auto load = [](const auto& value) { return value.load(std::memory_order_relaxed); };
    double kv_used =
        shape_.n_kv_blocks == 0 ? 0.0 : double(load(n_kv_blocks_used_)) / shape_.n_kv_blocks;

    write_one(out, "vllm:num_requests_running", "gauge", model, load(n_running_),
              "Requests that are being computed.");
    write_one(out, "vllm:num_requests_waiting", "gauge", model, load(n_waiting_),
              "Requests that wait for a place.");
    write_one(out, "vllm:kv_cache_usage_perc", "gauge", model, kv_used,
              "Share of KV blocks in use, 0 to 1.");
    write_one(
        out, "vllm:cache_config_info", "gauge",
        format("block_size=\"{}\",num_gpu_blocks=\"{}\"", shape_.block_tokens, shape_.n_kv_blocks),
        1, "KV cache: tokens in a block, and blocks.");
    write_one(out, "vllm:prompt_tokens_total", "counter", model, load(n_prompt_tokens_),
              "Prompt tokens computed.");
    write_one(out, "vllm:generation_tokens_total", "counter", model, load(n_generated_tokens_),
              "Tokens generated.");
    write_one(out, "vllm:prefix_cache_queries_total", "counter", model, load(n_prefix_queries_),
              "Prompt tokens looked up in the prefix cache.");
    write_one(out, "vllm:prefix_cache_hits_total", "counter", model, load(n_prefix_hits_),
              "Prompt tokens that the prefix cache had.");
    write_one(out, "vllm:num_preemptions_total", "counter", model, load(n_preemptions_),
              "Sequences put back because KV blocks ran out.");
    write_one(out, "lorad_merged_steps_total", "counter", model, load(n_merged_steps_),
              "Steps that ran on merged weights.");
    write_one(out, "lorad_merges_total", "counter", model, load(n_merges_),
              "Merges of adapters into copies of the weights.");
    write_one(out, "lorad_merge_gpu_ms_total", "counter", model, load(merge_gpu_ms_),
              "Time that merges took on the device, milliseconds.");
    write_one(out, "lorad_merged_weights_bytes", "gauge", model, load(merged_bytes_),
              "Device memory of the merged weights; 0: nothing is merged.");
    write_metric_head(out, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    for (FinishReason reason : {FinishReason::kStop, FinishReason::kLength,
                                FinishReason::kCancelled, FinishReason::kError,
                                FinishReason::kAdapterRemoved, FinishReason::kTimeout}) {
        out += format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", model,
                      to_string(reason), load(n_finished_[size_t(reason)]));
    }
    {
        std::lock_guard lock(adapters_mutex_);
        std::string waiting = waiting_adapters_;
        if (!waiting_for_place.empty()) waiting += (waiting.empty() ? "" : ",") + std::string(waiting_for_place);
        write_one(
            out, "vllm:lora_requests_info", "gauge",
            format("max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
                   shape_.n_adapters_max, escaped_label(running_adapters_), escaped_label(waiting)),
            adapters_changed_at_s_,
            "Adapters with requests; the value is the Unix time of the last change.");
    }
    time_to_first_token_.write(out, "vllm:time_to_first_token_seconds", model,
                               "Arrival to first token.");
    inter_token_latency_.write(out, "vllm:inter_token_latency_seconds", model,
                               "Between tokens of a request.");
    request_latency_.write(out, "vllm:e2e_request_latency_seconds", model,
                           "Arrival to last token.");

    write_one(out, "lorad_device_info", "gauge",
              format("name=\"{}\",driver=\"{}\",type=\"{}\"", escaped_label(shape_.device_name),
                     escaped_label(shape_.device_driver), shape_.device_is_cpu ? "cpu" : "gpu"),
              1, "The Vulkan device that computes.");
    write_one(out, "lorad_steps_total", "counter", model, load(n_steps_), "Engine steps.");
    write_one(out, "lorad_prefill_rows_total", "counter", model, load(n_prefill_rows_),
              "Rows of prefill chunks.");
    write_one(out, "lorad_step_rows_max", "gauge", model, load(n_step_rows_max_),
              "Most rows in one step so far.");
    write_one(out, "lorad_step_sequences_max", "gauge", model, load(n_step_sequences_max_),
              "Most sequences in one step so far.");
    write_one(out, "lorad_step_adapters_max", "gauge", model, load(n_step_adapters_max_),
              "Most different adapters in one step so far.");
    step_rows_.write(out, "lorad_step_rows", model, "Rows (tokens) in a step.");
    step_sequences_.write(out, "lorad_step_sequences", model, "Sequences in a step.");
    step_seconds_.write(out, "lorad_step_seconds", model, "Submission to result of a step.");
    write_one(out, "lorad_adapters_resident", "gauge", model, adapters.size(),
              "Adapters in device memory.");
    write_metric_head(out, "lorad_adapter_bytes", "gauge", "Device bytes of an adapter.");
    for (const Resident& adapter : adapters) {
        out += format("lorad_adapter_bytes{{adapter_name=\"{}\"}} {}\n", escaped_label(adapter.name),
                      adapter.bytes);
    }
    write_metric_head(out, "lorad_http_responses_total", "counter", "HTTP responses by class of status.");
    for (size_t i = 2; i < n_http_responses_.size(); ++i) {
        out += format("lorad_http_responses_total{{class=\"{}xx\"}} {}\n", i,
                      load(n_http_responses_[i]));
    }
    return out;
}

}  // namespace lorad::server
