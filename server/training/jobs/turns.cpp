#include "server/training/jobs/turns.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <tuple>

namespace lorad::server::training {
namespace {

size_t n_of(std::span<const TurnJob> running, std::string_view tenant) {
    return static_cast<size_t>(std::ranges::count(running, tenant, &TurnJob::tenant));
}

}  // namespace

std::vector<size_t> Turns::order(std::span<const TurnJob> waiting, std::span<const TurnJob> running) const {
    std::vector<size_t> oldest;
    for (size_t i = 0; i < waiting.size(); ++i) {
        const bool is_oldest = std::ranges::none_of(waiting, [&](const TurnJob& other) {
            return other.tenant == waiting[i].tenant && other.number < waiting[i].number;
        });
        if (is_oldest && waiting[i].is_ready) oldest.push_back(i);
    }
    std::ranges::sort(oldest, {}, [&](size_t i) {
        const auto last = last_turns_.find(waiting[i].tenant);
        return std::tuple(n_of(running, waiting[i].tenant), last == last_turns_.end() ? 0 : last->second,
                          waiting[i].number);
    });
    return oldest;
}

std::vector<size_t> Turns::who_gives_way(const TurnJob& job, std::span<const TurnJob> running, bool has_to_be_alone,
                                         Clock::time_point now, uint32_t n_called) const {
    if (running.empty()) return {};
    const size_t n_own = n_of(running, job.tenant);
    const auto is_over = [&](const TurnJob& one) { return now - one.since >= length_; };
    if (has_to_be_alone) {
        // Behind jobs of its own key it waits for their ends.
        if (n_own > 0 || !std::ranges::all_of(running, is_over)) return {};
        std::vector<size_t> all(running.size());
        std::iota(all.begin(), all.end(), size_t{0});
        return all;
    }
    if (has_place(running, n_called)) return {};
    // Of the key that has the most, the job that came last.
    const auto most = std::ranges::max_element(
        running, {}, [&](const TurnJob& one) { return std::tuple(n_of(running, one.tenant), one.number); });
    if (n_of(running, most->tenant) > n_own + 1) return {static_cast<size_t>(std::distance(running.begin(), most))};
    if (n_own > 0) return {};
    // As many keys as places: the longest turn ends.
    const auto longest = std::ranges::min_element(running, {}, &TurnJob::since);
    if (!is_over(*longest)) return {};
    return {static_cast<size_t>(std::distance(running.begin(), longest))};
}

}  // namespace lorad::server::training
