#include "server/adapter_traffic.h"

#include <algorithm>
#include <map>

#include "proto/base/format.h"
#include "server/metrics.h"

namespace lorad::server {

void AdapterTraffic::add(const EndedRequest& ended) {
    std::lock_guard lock(mutex_);
    if (!by_name_.contains(ended.adapter) && by_name_.size() >= n_names_max_) {
        by_name_.erase(std::ranges::min_element(by_name_, {}, [](const auto& entry) { return entry.second.last_use; }));
    }
    Sums& sums = by_name_[ended.adapter];
    sums.last_use = ++n_uses_;
    ++sums.n_requests;
    sums.n_prompt += ended.n_prompt;
    sums.n_generated += ended.n_generated;
    sums.total_s += ended.total_s;
    if (ended.first_token_s < 0) return;
    ++sums.n_first_tokens;
    sums.first_token_s += ended.first_token_s;
}

std::string AdapterTraffic::text(const std::string& base_name) const {
    std::map<std::string, Sums> sorted;
    {
        std::lock_guard lock(mutex_);
        sorted.insert(by_name_.begin(), by_name_.end());
    }
    std::string out;
    const auto write = [&](const char* name, const char* type, const char* help, auto&& lines) {
        write_metric_head(out, name, type, help);
        for (const auto& [adapter, sums] : sorted)
            lines(format("{{adapter_name=\"{}\"}}", escaped_label(adapter.empty() ? base_name : adapter)), sums);
    };
    write("lorad_adapter_requests_total", "counter", "Requests that ended, by adapter; the base has its own name.",
          [&](const std::string& labels, const Sums& sums) { out += format("lorad_adapter_requests_total{} {}\n", labels, sums.n_requests); });
    write("lorad_adapter_prompt_tokens_total", "counter", "Prompt tokens of these requests.",
          [&](const std::string& labels, const Sums& sums) { out += format("lorad_adapter_prompt_tokens_total{} {}\n", labels, sums.n_prompt); });
    write("lorad_adapter_generation_tokens_total", "counter", "Tokens that these requests generated.",
          [&](const std::string& labels, const Sums& sums) { out += format("lorad_adapter_generation_tokens_total{} {}\n", labels, sums.n_generated); });
    write("lorad_adapter_time_to_first_token_seconds", "summary", "Arrival to first token, of those that came to one.",
          [&](const std::string& labels, const Sums& sums) {
              out += format("lorad_adapter_time_to_first_token_seconds_sum{0} {1}\nlorad_adapter_time_to_first_token_seconds_count{0} {2}\n", labels,
                            sums.first_token_s, sums.n_first_tokens);
          });
    write("lorad_adapter_request_seconds", "summary", "Arrival to the end.", [&](const std::string& labels, const Sums& sums) {
        out += format("lorad_adapter_request_seconds_sum{0} {1}\nlorad_adapter_request_seconds_count{0} {2}\n", labels, sums.total_s, sums.n_requests);
    });
    return out;
}

}  // namespace lorad::server
