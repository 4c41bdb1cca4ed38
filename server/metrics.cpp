#include "server/metrics.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/base/mutex.h"
#include "proto/base/printable.h"

namespace lorad::server {
std::string escaped_label(std::string_view text) {
    std::string out;
    // The format knows an escape for line ends only: what is not printable becomes a text that says so.
    for (char c : escape_unprintable(text)) {
        if (c == '\\' || c == '"') out += '\\';
        out += c;
    }
    return out;
}

void write_metric_head(std::string& out, std::string_view name, std::string_view type, std::string_view help) {
    out += format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

namespace {

template <typename T>
void write_one(std::string& out, std::string_view name, std::string_view type, std::string_view labels, T value,
               std::string_view help) {
    write_metric_head(out, name, type, help);
    out += format("{}{{{}}} {}\n", name, labels, value);
}

void raise_to(std::atomic<uint32_t>& maximum, uint32_t value) {
    uint32_t seen = maximum.load(std::memory_order_relaxed);
    while (seen < value && !maximum.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
    }
}

std::vector<double> latency_bounds() {
    return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0};
}
std::vector<double> count_bounds() { return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}; }
std::vector<double> token_bounds() {
    return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
}

// Names of a label, comma-separated, cut where there are too many to be worth a label.
std::string bounded_names(std::string_view names) {
    constexpr size_t kNamesBytesMax = 8192;
    if (names.size() > kNamesBytesMax) names = names.substr(0, names.rfind(',', kNamesBytesMax));
    return escaped_label(names);
}

}  // namespace

Histogram::Histogram(std::vector<double> upper_bounds)
    : upper_bounds_(std::move(upper_bounds)), counts_(new std::atomic<uint64_t>[upper_bounds_.size() + 1] {}) {}

void Histogram::observe(double value) {
    size_t bucket = static_cast<size_t>(std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value) -
                                        upper_bounds_.begin());
    counts_[bucket].fetch_add(1, std::memory_order_relaxed);
    sum_.fetch_add(value, std::memory_order_relaxed);
}

void Histogram::write(std::string& out, std::string_view name, std::string_view labels, std::string_view help) const {
    write_metric_head(out, name, "histogram", help);
    uint64_t total = 0;
    for (size_t i = 0; i < upper_bounds_.size(); ++i) {
        total += counts_[i].load(std::memory_order_relaxed);
        out += format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, upper_bounds_[i], total);
    }
    total += counts_[upper_bounds_.size()].load(std::memory_order_relaxed);
    out += format("{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, total);
    out += format("{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_.load(std::memory_order_relaxed), name,
                  labels, total);
}

Metrics::Metrics(Shape shape)
    : shape_(std::move(shape)),
      time_to_first_token_(latency_bounds()),
      inter_token_latency_(latency_bounds()),
      request_latency_(latency_bounds()),
      queue_time_(latency_bounds()),
      prefill_time_(latency_bounds()),
      decode_time_(latency_bounds()),
      inference_time_(latency_bounds()),
      time_per_token_(latency_bounds()),
      request_prompt_tokens_(token_bounds()),
      request_generation_tokens_(token_bounds()),
      request_max_tokens_(token_bounds()),
      step_rows_(count_bounds()),
      step_sequences_(count_bounds()),
      step_seconds_(latency_bounds()),
      step_dispatches_(count_bounds()) {}

void Metrics::on_step(const Step& step) {
    n_steps_.fetch_add(1, std::memory_order_relaxed);
    n_prefill_rows_.fetch_add(step.n_prefill_rows, std::memory_order_relaxed);
    step_rows_.observe(step.n_rows);
    step_sequences_.observe(step.n_sequences);
    step_seconds_.observe(step.seconds);
    step_dispatches_.observe(step.n_dispatches);
    raise_to(n_step_rows_max_, step.n_rows);
    raise_to(n_step_sequences_max_, step.n_sequences);
    raise_to(n_step_adapters_max_, step.n_adapters);
    if (step.is_merged) n_merged_steps_.fetch_add(1, std::memory_order_relaxed);
    n_masks_late_.fetch_add(step.n_masks_late, std::memory_order_relaxed);
    if (!step.is_masked) return;
    n_masked_steps_.fetch_add(1, std::memory_order_relaxed);
    if (step.is_ahead) n_masked_steps_ahead_.fetch_add(1, std::memory_order_relaxed);
    if (step.has_waited) n_masked_steps_waited_.fetch_add(1, std::memory_order_relaxed);
    mask_seconds_.fetch_add(step.mask_seconds, std::memory_order_relaxed);
}

void Metrics::on_merged(double gpu_ms) {
    n_merges_.fetch_add(1, std::memory_order_relaxed);
    merge_gpu_ms_.fetch_add(gpu_ms, std::memory_order_relaxed);
}

void Metrics::on_finished(const Finished& finished) {
    n_finished_[static_cast<size_t>(finished.reason)].fetch_add(1, std::memory_order_relaxed);
    request_latency_.observe(finished.total_s);
    traffic_.add({finished.adapter, finished.n_prompt, finished.n_generated, finished.total_s,
                  finished.prefill_s < 0 ? -1.0 : finished.queue_s + finished.prefill_s});
    request_max_tokens_.observe(static_cast<double>(finished.n_tokens_max));
    if (finished.queue_s < 0) return;
    queue_time_.observe(finished.queue_s);
    inference_time_.observe(finished.total_s - finished.queue_s);
    request_prompt_tokens_.observe(static_cast<double>(finished.n_prompt));
    request_generation_tokens_.observe(static_cast<double>(finished.n_generated));
    if (finished.prefill_s < 0) return;
    prefill_time_.observe(finished.prefill_s);
    decode_time_.observe(finished.decode_s);
    if (finished.n_generated > 1)
        time_per_token_.observe(finished.decode_s / static_cast<double>(finished.n_generated - 1));
}

void Metrics::on_http_response(int status) {
    n_http_responses_[static_cast<size_t>(std::clamp(status / 100, 0, 5))].fetch_add(1, std::memory_order_relaxed);
}

void Metrics::set_requests(uint32_t n_running, uint32_t n_waiting) {
    n_running_.store(n_running, std::memory_order_relaxed);
    n_waiting_.store(n_waiting, std::memory_order_relaxed);
}

void Metrics::set_active_adapters(std::string running, std::string waiting) {
    double now_s = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
    MutexLock lock(adapters_mutex_);
    running_adapters_ = std::move(running);
    waiting_adapters_ = std::move(waiting);
    adapters_changed_at_s_ = now_s;
}

namespace {

template <typename T>
T load(const std::atomic<T>& value) {
    return value.load(std::memory_order_relaxed);
}

}  // namespace

std::string Metrics::text(const std::vector<Resident>& adapters, std::string_view waiting_for_place) const {
    std::string out;
    std::string model = format("model_name=\"{}\"", escaped_label(shape_.model_name));
    write_requests(out, model);
    write_adapters(out, adapters, waiting_for_place);
    out += traffic_.text(shape_.model_name);
    write_steps(out, model);
    return out;
}

void Metrics::write_requests(std::string& out, const std::string& model) const {
    double kv_used = shape_.n_kv_blocks == 0 ? 0.0 : static_cast<double>(load(n_kv_blocks_used_)) / shape_.n_kv_blocks;
    write_one(out, "vllm:num_requests_running", "gauge", model, load(n_running_), "Requests that are being computed.");
    write_one(out, "vllm:num_requests_waiting", "gauge", model, load(n_waiting_), "Requests that wait for a place.");
    write_one(out, "lorad_waiting_tokens", "gauge", model, load(n_waiting_tokens_),
              "Prompt tokens of requests that have not begun.");
    write_one(out, "vllm:kv_cache_usage_perc", "gauge", model, kv_used, "Share of KV blocks in use, 0 to 1.");
    write_one(out, "lorad_kv_blocks_idle", "gauge", model, load(n_kv_blocks_idle_),
              "KV blocks that only the prefix cache keeps.");
    write_one(out, "vllm:cache_config_info", "gauge",
              format("block_size=\"{}\",cache_dtype=\"{}\",enable_prefix_caching=\"{}\","
                     "gpu_memory_utilization=\"{}\",num_gpu_blocks=\"{}\"",
                     shape_.block_tokens, shape_.cache_dtype, shape_.prefix_cache ? "True" : "False",
                     shape_.memory_utilization, shape_.n_kv_blocks),
              1, "KV cache: tokens in a block, and blocks.");
    write_one(out, "vllm:prompt_tokens_total", "counter", model, load(n_prompt_tokens_),
              "Prompt tokens of requests that came to their first token.");
    write_one(out, "vllm:generation_tokens_total", "counter", model, load(n_generated_tokens_), "Tokens generated.");
    write_one(out, "vllm:prefix_cache_queries_total", "counter", model, load(n_prefix_queries_),
              "Prompt tokens looked up in the prefix cache.");
    write_one(out, "vllm:prefix_cache_hits_total", "counter", model, load(n_prefix_hits_),
              "Prompt tokens that the prefix cache had.");
    if (shape_.n_window_blocks > 0) {
        write_one(out, "lorad_kv_window_blocks", "gauge", model, shape_.n_window_blocks,
                  "KV blocks of the layers that see a window.");
        write_one(out, "lorad_kv_window_blocks_used", "gauge", model, load(n_window_blocks_used_),
                  "Of those, held by requests.");
    }
    if (shape_.n_snapshots > 0) {
        write_one(out, "lorad_state_snapshots", "gauge", model, load(n_snapshots_),
                  "States of prefixes that texts may go on from.");
        write_one(out, "lorad_state_snapshots_max", "gauge", model, shape_.n_snapshots, "Places for them.");
        write_one(out, "lorad_state_snapshots_used_total", "counter", model, load(n_snapshots_used_),
                  "Texts that went on from one.");
        write_one(out, "lorad_state_snapshots_evicted_total", "counter", model, load(n_snapshots_evicted_),
                  "Those that made way for others.");
    }
    write_one(out, "vllm:num_preemptions_total", "counter", model, load(n_preemptions_),
              "Sequences put back because KV blocks ran out, or for one that starved.");
    write_one(out, "lorad_yields_total", "counter", model, load(n_yields_), "Of those, for one that starved.");
    write_one(out, "lorad_requests_refused_total", "counter", model, load(n_refused_),
              "Requests answered 429 or 503 because the queue was full or closed.");
    write_metric_head(out, "vllm:request_success_total", "counter", "Requests that ended, by reason.");
    for (FinishReason reason : {FinishReason::kStop, FinishReason::kLength, FinishReason::kCancelled,
                                FinishReason::kError, FinishReason::kAdapterRemoved, FinishReason::kTimeout}) {
        out += format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", model, to_string(reason),
                      load(n_finished_[static_cast<size_t>(reason)]));
    }
    time_to_first_token_.write(out, "vllm:time_to_first_token_seconds", model, "Arrival to first token.");
    inter_token_latency_.write(out, "vllm:inter_token_latency_seconds", model, "Between tokens of a request.");
    time_per_token_.write(out, "vllm:request_time_per_output_token_seconds", model,
                          "Mean time between the tokens of a request.");
    request_latency_.write(out, "vllm:e2e_request_latency_seconds", model, "Arrival to the end.");
    queue_time_.write(out, "vllm:request_queue_time_seconds", model, "Arrival to the first step.");
    prefill_time_.write(out, "vllm:request_prefill_time_seconds", model, "First step to first token.");
    decode_time_.write(out, "vllm:request_decode_time_seconds", model, "First token to last.");
    inference_time_.write(out, "vllm:request_inference_time_seconds", model, "First step to the end.");
    request_prompt_tokens_.write(out, "vllm:request_prompt_tokens", model, "Prompt tokens of a request.");
    request_generation_tokens_.write(out, "vllm:request_generation_tokens", model, "Generated tokens of a request.");
    request_max_tokens_.write(out, "vllm:request_params_max_tokens", model, "Tokens that a request may generate.");
}

void Metrics::write_adapters(std::string& out, const std::vector<Resident>& adapters,
                             std::string_view waiting_for_place) const {
    {
        MutexLock lock(adapters_mutex_);
        std::string waiting = waiting_adapters_;
        if (!waiting_for_place.empty()) waiting += (waiting.empty() ? "" : ",") + std::string(waiting_for_place);
        write_one(out, "vllm:lora_requests_info", "gauge",
                  format("max_lora=\"{}\",running_lora_adapters=\"{}\",waiting_lora_adapters=\"{}\"",
                         shape_.n_adapters_max, bounded_names(running_adapters_), bounded_names(waiting)),
                  adapters_changed_at_s_, "Adapters with requests; the value is the Unix time of the last change.");
    }
    write_one(out, "lorad_adapters_resident", "gauge", format("model_name=\"{}\"", escaped_label(shape_.model_name)),
              adapters.size(), "Adapters in device memory.");
    write_metric_head(out, "lorad_adapter_bytes", "gauge", "Device bytes of an adapter.");
    for (const Resident& adapter : adapters) {
        out += format("lorad_adapter_bytes{{adapter_name=\"{}\"}} {}\n", escaped_label(adapter.name), adapter.bytes);
    }
}

void Metrics::write_steps(std::string& out, const std::string& model) const {
    write_one(out, "lorad_device_info", "gauge",
              format("name=\"{}\",driver=\"{}\",type=\"{}\"", escaped_label(shape_.device_name),
                     escaped_label(shape_.device_driver), shape_.device_is_cpu ? "cpu" : "gpu"),
              1, "The Vulkan device that computes.");
    write_metric_head(out, "lorad_device_memory_planned_bytes", "gauge", "Device memory by what it is planned for.");
    for (const auto& [part, bytes] : shape_.memory_plan)
        out += format("lorad_device_memory_planned_bytes{{part=\"{}\"}} {}\n", part, bytes);
    write_one(out, "lorad_steps_total", "counter", model, load(n_steps_), "Engine steps.");
    write_one(out, "lorad_merged_steps_total", "counter", model, load(n_merged_steps_),
              "Steps that ran on merged weights.");
    write_one(out, "lorad_masked_steps_total", "counter", model, load(n_masked_steps_),
              "Steps whose tokens grammars restrict.");
    write_one(out, "lorad_masked_steps_ahead_total", "counter", model, load(n_masked_steps_ahead_),
              "Of these, begun while the step before was on the device.");
    write_one(out, "lorad_masked_steps_waited_total", "counter", model, load(n_masked_steps_waited_),
              "Of these, the device had to wait for what the grammars allow.");
    write_one(out, "lorad_mask_seconds_total", "counter", model, load(mask_seconds_),
              "Time for which steps waited for what grammars allow.");
    write_one(out, "lorad_masks_late_total", "counter", model, load(n_masks_late_),
              "Tokens that came in a later step, since what their grammars allow was not known in time.");
    write_one(out, "lorad_merges_total", "counter", model, load(n_merges_),
              "Merges of adapters into copies of the weights.");
    write_one(out, "lorad_merge_gpu_ms_total", "counter", model, load(merge_gpu_ms_),
              "Time that merges took on the device, milliseconds.");
    write_one(out, "lorad_merged_weights_bytes", "gauge", model, load(merged_bytes_),
              "Device memory of the merged weights; 0: nothing is merged.");
    write_one(out, "lorad_prefill_rows_total", "counter", model, load(n_prefill_rows_), "Rows of prefill chunks.");
    write_one(out, "lorad_prefill_chunk_rows", "gauge", model, load(prefill_chunk_),
              "Rows of prompts that a step with decodes may have now.");
    write_one(out, "lorad_step_rows_max", "gauge", model, load(n_step_rows_max_), "Most rows in one step so far.");
    write_one(out, "lorad_step_sequences_max", "gauge", model, load(n_step_sequences_max_),
              "Most sequences in one step so far.");
    write_one(out, "lorad_step_adapters_max", "gauge", model, load(n_step_adapters_max_),
              "Most different adapters in one step so far.");
    step_rows_.write(out, "vllm:iteration_tokens_total", model, "Rows (tokens) in a step.");
    step_rows_.write(out, "lorad_step_rows", model, "Rows (tokens) in a step.");
    step_sequences_.write(out, "lorad_step_sequences", model, "Sequences in a step.");
    step_dispatches_.write(out, "lorad_step_dispatches", model,
                           "Kernels that a step runs, those that bring its state and its answers among them.");
    step_seconds_.write(out, "lorad_step_seconds", model, "Submission to result of a step.");
    write_metric_head(out, "lorad_http_responses_total", "counter", "HTTP responses by class of status.");
    for (size_t i = 2; i < n_http_responses_.size(); ++i) {
        out += format("lorad_http_responses_total{{class=\"{}xx\"}} {}\n", i, load(n_http_responses_[i]));
    }
}

}  // namespace lorad::server
