// Writes /metrics in Prometheus' text format. Metrics that vLLM has too have vLLM's names, so that its dashboards and
// Kubernetes' inference gateway work unchanged; the others are lorad_*.
//
// Counters and histograms are atomics: the engine thread writes most of them, HTTP workers some, any thread reads.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/mutex.h"
#include "server/adapter_traffic.h"
#include "server/engine/token_stream.h"

namespace lorad::server {

// A label's value: of printable characters (proto/base/printable.h), quotes and backslashes escaped.
std::string escaped_label(std::string_view text);
void write_metric_head(std::string& out, std::string_view name, std::string_view type, std::string_view help);

// Cumulative buckets are formed when the text is written; observing is two relaxed adds.
class Histogram {
  public:
    explicit Histogram(std::vector<double> upper_bounds);
    void observe(double value);
    void write(std::string& out, std::string_view name, std::string_view labels, std::string_view help) const;

  private:
    std::vector<double> upper_bounds_;
    std::unique_ptr<std::atomic<uint64_t>[]> counts_;  // one more than bounds: the last is +Inf
    std::atomic<double> sum_{0.0};
};

class Metrics {
  public:
    struct Shape {
        std::string model_name;
        uint32_t block_tokens = 0;
        uint32_t n_kv_blocks = 0;
        uint32_t n_adapters_max = 0;
        std::string device_name;
        std::string device_driver;
        bool device_is_cpu = false;
        bool prefix_cache = true;
        double memory_utilization = 0.0;
        // The plan of the device's memory, in bytes: {"weights", 123}, ...
        std::vector<std::pair<std::string, uint64_t>> memory_plan = {};
        std::string cache_dtype = "auto";  // of keys and values
        uint32_t n_window_blocks = 0;      // of the window group, if it is apart
        uint32_t n_snapshots = 0;          // places for states of prefixes, of models with recurrent state
    };
    explicit Metrics(Shape shape);

    // One executed step, as the engine saw it.
    struct Step {
        uint32_t n_rows = 0;
        uint32_t n_sequences = 0;
        uint32_t n_adapters = 0;      // distinct ones among the sequences, the base not counted
        uint32_t n_prefill_rows = 0;  // rows beyond one per decoding sequence
        double seconds = 0.0;
        bool is_merged = false;  // ran on the merged weights
        uint32_t n_dispatches = 0;
        // The step's draw waits for the masks of grammars.
        bool is_masked = false;
        bool is_ahead = false;    // it began before the tokens of the step before were known
        bool has_waited = false;  // the device was idle before the masks were there
        double mask_seconds = 0.0;
        uint32_t n_masks_late = 0;  // rows that were left out, since their masks were not there
    };
    void on_step(const Step& step);
    void on_preempted(bool has_yielded) {
        n_preemptions_.fetch_add(1, std::memory_order_relaxed);
        if (has_yielded) n_yields_.fetch_add(1, std::memory_order_relaxed);
    }
    void on_refused() { n_refused_.fetch_add(1, std::memory_order_relaxed); }
    void on_prompt_tokens(uint64_t n) { n_prompt_tokens_.fetch_add(n, std::memory_order_relaxed); }
    // Tokens of a prompt that were looked up in the prefix cache, and how many it had.
    void on_prefix_lookup(uint64_t n_tokens, uint64_t n_found) {
        n_prefix_queries_.fetch_add(n_tokens, std::memory_order_relaxed);
        n_prefix_hits_.fetch_add(n_found, std::memory_order_relaxed);
    }
    void on_snapshot_used() { n_snapshots_used_.fetch_add(1, std::memory_order_relaxed); }
    void on_generated(uint64_t n) { n_generated_tokens_.fetch_add(n, std::memory_order_relaxed); }
    void on_first_token(double seconds) { time_to_first_token_.observe(seconds); }
    void on_next_token(double seconds) { inter_token_latency_.observe(seconds); }
    // A request that ended. Times in seconds; those of what it did not come to are negative.
    struct Finished {
        FinishReason reason = FinishReason::kStop;
        double total_s = 0;
        double queue_s = -1;    // arrival to the first step
        double prefill_s = -1;  // first step to first token
        double decode_s = -1;   // first token to last
        uint64_t n_prompt = 0, n_generated = 0, n_tokens_max = 0;
        std::string adapter = {};  // empty: the base
    };
    void on_finished(const Finished& finished);
    void on_http_response(int status);

    // Gauges, written by the engine thread after every change.
    void set_requests(uint32_t n_running, uint32_t n_waiting);
    uint32_t n_running() const { return n_running_.load(std::memory_order_relaxed); }
    void set_kv_blocks(uint32_t n_used, uint32_t n_idle) {
        n_kv_blocks_used_.store(n_used, std::memory_order_relaxed);
        n_kv_blocks_idle_.store(n_idle, std::memory_order_relaxed);
    }
    void set_window_blocks(uint32_t n_used) { n_window_blocks_used_.store(n_used, std::memory_order_relaxed); }
    void set_snapshots(uint32_t n, uint64_t n_evicted) {
        n_snapshots_.store(n, std::memory_order_relaxed);
        n_snapshots_evicted_.store(n_evicted, std::memory_order_relaxed);
    }
    void set_waiting_tokens(uint64_t n) { n_waiting_tokens_.store(n, std::memory_order_relaxed); }
    void set_prefill_chunk(uint32_t n) { prefill_chunk_.store(n, std::memory_order_relaxed); }
    // The device time of a merge, and the device memory that merged weights take; 0: nothing is merged.
    void on_merged(double gpu_ms);
    void set_merged_bytes(uint64_t bytes) { merged_bytes_.store(bytes, std::memory_order_relaxed); }
    // Comma-separated names, as vLLM writes them.
    void set_active_adapters(std::string running, std::string waiting);

    struct Resident {
        std::string name;
        uint64_t bytes = 0;
    };
    // `waiting_for_place`: adapters whose requests the engine does not have yet, comma-separated.
    std::string text(const std::vector<Resident>& adapters, std::string_view waiting_for_place = {}) const;

    uint64_t n_steps() const { return n_steps_.load(std::memory_order_relaxed); }
    uint32_t n_step_sequences_max() const { return n_step_sequences_max_.load(std::memory_order_relaxed); }

  private:
    const Shape shape_;
    std::atomic<uint64_t> n_prompt_tokens_{0}, n_generated_tokens_{0}, n_preemptions_{0};
    std::atomic<uint64_t> n_prefix_queries_{0}, n_prefix_hits_{0};
    std::atomic<uint32_t> n_snapshots_{0}, n_window_blocks_used_{0};
    std::atomic<uint64_t> n_snapshots_used_{0}, n_snapshots_evicted_{0};
    std::atomic<uint64_t> n_yields_{0}, n_refused_{0}, n_waiting_tokens_{0};
    std::atomic<uint32_t> n_kv_blocks_idle_{0}, prefill_chunk_{0};
    std::atomic<uint64_t> n_steps_{0}, n_prefill_rows_{0}, n_merged_steps_{0};
    std::atomic<uint64_t> n_merges_{0}, merged_bytes_{0};
    std::atomic<double> merge_gpu_ms_{0.0};  // sum
    std::atomic<uint64_t> n_masked_steps_{0}, n_masked_steps_ahead_{0}, n_masked_steps_waited_{0};
    std::atomic<double> mask_seconds_{0.0};
    std::atomic<uint64_t> n_masks_late_{0};
    std::atomic<uint32_t> n_running_{0}, n_waiting_{0}, n_kv_blocks_used_{0};
    std::atomic<uint32_t> n_step_rows_max_{0}, n_step_sequences_max_{0}, n_step_adapters_max_{0};
    std::array<std::atomic<uint64_t>, 6> n_finished_{};        // by FinishReason
    std::array<std::atomic<uint64_t>, 6> n_http_responses_{};  // by status / 100
    void write_requests(std::string& out, const std::string& model) const;
    void write_steps(std::string& out, const std::string& model) const;
    void write_adapters(std::string& out, const std::vector<Resident>& adapters,
                        std::string_view waiting_for_place) const;

    Histogram time_to_first_token_, inter_token_latency_, request_latency_;
    Histogram queue_time_, prefill_time_, decode_time_, inference_time_, time_per_token_;
    Histogram request_prompt_tokens_, request_generation_tokens_, request_max_tokens_;
    Histogram step_rows_, step_sequences_, step_seconds_, step_dispatches_;

    AdapterTraffic traffic_{400};  // with kNamedSeriesMax of adapter_metrics.h a thousand names

    mutable Mutex adapters_mutex_;
    std::string running_adapters_ GUARDED_BY(adapters_mutex_), waiting_adapters_ GUARDED_BY(adapters_mutex_);
    double adapters_changed_at_s_ GUARDED_BY(adapters_mutex_) = 0.0;  // Unix time
};

}  // namespace lorad::server
