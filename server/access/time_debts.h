// Counts the seconds that each name has made others wait. The debt falls as time passes. One thread, or under its
// owner's lock.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>
#include <string_view>

namespace lorad::server::access {

class TimeDebts {
  public:
    using TimePoint = std::chrono::steady_clock::time_point;
    struct Options {
        double forgotten_per_second = 0;  // seconds of debt forgiven: the share of the time that each may use for good
        double owed_max = 0;              // seconds; beyond it one is over, until enough is forgotten
    };
    explicit TimeDebts(Options options) : options_(options) {}

    void charge(std::string_view name, double seconds, TimePoint now) {
        if (seconds <= 0) return;
        std::erase_if(debts_, [&](const auto& debt) { return owed(debt.second, now) <= 0; });
        Debt& debt = debts_[std::string(name)];
        debt = {owed(debt, now) + seconds, now};
    }
    bool is_over(std::string_view name, TimePoint now) const { return owed(name, now) > options_.owed_max; }
    double owed(std::string_view name, TimePoint now) const {
        const auto found = debts_.find(name);
        return found != debts_.end() ? owed(found->second, now) : 0;
    }

  private:
    struct Debt {
        double seconds = 0;
        TimePoint at{};
    };
    double owed(const Debt& debt, TimePoint now) const {
        const double passed = std::chrono::duration<double>(now - debt.at).count();
        return debt.seconds <= 0 ? 0 : std::max(0.0, debt.seconds - passed * options_.forgotten_per_second);
    }
    const Options options_;
    std::map<std::string, Debt, std::less<>> debts_;
};

}  // namespace lorad::server::access
