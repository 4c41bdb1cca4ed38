// How long each tenant's grammars may hold up others' tokens. Engine thread only.
#pragma once

#include <algorithm>
#include <chrono>
#include <map>
#include <string>

namespace lorad::server {

// A step waits for masks that are expected in time. What it waited is owed by their tenant, and forgotten at one part in a hundred of the time that passes:
// whoever owes more than two such waits has its masks made without anybody waiting, and joins the steps that it is ready for.
class MaskBudget {
  public:
    using TimePoint = std::chrono::steady_clock::time_point;
    static constexpr double kForgottenPerSecond = 0.01;
    static constexpr double kOwedMax = 0.02;  // seconds

    void charge(const std::string& tenant, double seconds, TimePoint now) {
        if (seconds <= 0) return;
        std::erase_if(debts_, [&](const auto& debt) { return owed(debt.second, now) <= 0; });
        Debt& debt = debts_[tenant];
        debt = {owed(debt, now) + seconds, now};
    }
    bool is_over(const std::string& tenant, TimePoint now) const {
        auto found = debts_.find(tenant);
        return found != debts_.end() && owed(found->second, now) > kOwedMax;
    }

  private:
    struct Debt {
        double seconds = 0;
        TimePoint at{};
    };
    static double owed(const Debt& debt, TimePoint now) {
        const double passed = std::chrono::duration<double>(now - debt.at).count();
        return debt.seconds <= 0 ? 0 : std::max(0.0, debt.seconds - passed * kForgottenPerSecond);
    }
    std::map<std::string, Debt> debts_;
};

}  // namespace lorad::server
