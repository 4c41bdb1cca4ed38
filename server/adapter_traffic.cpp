#include "server/adapter_traffic.h"

#include <algorithm>
#include <map>

#include "proto/base/format.h"
#include "proto/base/mutex.h"
#include "server/metrics.h"

namespace lorad::server {

void AdapterTraffic::add(const EndedRequest& ended) {
    MutexLock lock(mutex_);
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
        MutexLock lock(mutex_);
        sorted.insert(by_name_.begin(), by_name_.end());
    }
    std::string out;
    const auto write = [&](const char* name, const char* help, auto&& value_of) {
        write_metric_head(out, name, "counter", help);
        for (const auto& [adapter, sums] : sorted)
            out += format("{}{{adapter_name=\"{}\"}} {}\n", name, escaped_label(adapter.empty() ? base_name : adapter),
                          value_of(sums));
    };
    write("lorad_adapter_requests_total", "Requests that ended, by adapter; the base has its own name.",
          [](const Sums& sums) { return sums.n_requests; });
    write("lorad_adapter_request_seconds_total", "Of these, arrival to the end.",
          [](const Sums& sums) { return sums.total_s; });
    write("lorad_adapter_prompt_tokens_total", "Prompt tokens of these requests.",
          [](const Sums& sums) { return sums.n_prompt; });
    write("lorad_adapter_generation_tokens_total", "Tokens that these requests generated.",
          [](const Sums& sums) { return sums.n_generated; });
    write("lorad_adapter_first_tokens_total", "Requests that came to a first token.",
          [](const Sums& sums) { return sums.n_first_tokens; });
    write("lorad_adapter_first_token_seconds_total", "Of these, arrival to the first token.",
          [](const Sums& sums) { return sums.first_token_s; });
    return out;
}

}  // namespace lorad::server
