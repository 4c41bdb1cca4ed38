#include "server/engine/merge_policy.h"

#include <algorithm>

namespace lorad::server {

void MergePolicy::observe(std::string_view mix, uint32_t n_rows) {
    if (n_rows == 0) return;
    if (!mix.empty()) {
        const auto known = rows_.find(mix);
        if (known != rows_.end()) {
            known->second += n_rows;
        } else {
            rows_.emplace(mix, n_rows);
        }
    }
    n_rows_ += n_rows;
    n_since_fade_ += n_rows;
    n_since_change_ += n_rows;
    if (n_since_change_ >= options_.n_window_rows) decide();
    if (n_since_fade_ >= options_.n_window_rows) fade();
}

void MergePolicy::forget(std::string_view mix) {
    const auto known = rows_.find(mix);
    if (known != rows_.end()) rows_.erase(known);
    if (!wanted_ || *wanted_ != mix) return;
    wanted_.reset();
    n_since_change_ = 0;
}

double MergePolicy::share(const std::string& mix) const {
    const auto known = rows_.find(mix);
    return known == rows_.end() ? 0.0 : known->second / n_rows_;
}

void MergePolicy::decide() {
    if (wanted_ && share(*wanted_) >= options_.demote_share) return;
    std::optional<std::string> next;
    const auto first =
        std::max_element(rows_.begin(), rows_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    if (first != rows_.end() && share(first->first) >= options_.promote_share) next = first->first;
    if (next == wanted_) return;
    wanted_ = std::move(next);
    n_since_change_ = 0;
}

// Halves all counts, and forgets mixes that came to less than a row.
void MergePolicy::fade() {
    n_since_fade_ = 0;
    n_rows_ /= 2;
    for (auto& [mix, n] : rows_) n /= 2;
    std::erase_if(rows_, [](const auto& entry) { return entry.second < 1.0; });
}

}  // namespace lorad::server
