#include "server/ops/reload.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace lorad::server::ops {
namespace {

constexpr std::array<std::string_view, 3> kReloadable = {"drain-timeout-s", "log-format", "log-level"};

}  // namespace

bool takes_effect_on_reload(const std::string& setting) {
    return std::find(kReloadable.begin(), kReloadable.end(), setting) != kReloadable.end();
}

Result<Reload::Taken> Reload::run() {
    Result<Taken> taken = take();
    state_.last_taken = taken.ok();
    if (taken.ok()) state_.taken_at_s = unix_time_s();
    return taken;
}

Result<Reload::Taken> Reload::take() {
    TRY_ASSIGN(Config next, read_());
    Taken taken;
    // A setting that needs a restart keeps its running value, so that every reload reports it until then.
    Config merged = current_;
    for (const std::string& setting : differing_settings(current_, next)) {
        if (takes_effect_on_reload(setting)) {
            copy_setting(setting, next, merged);
            taken.changed.push_back(setting);
        } else {
            taken.need_restart.push_back(setting);
        }
    }
    std::vector<Commit> commits;
    for (const Prepare& prepare : parts_) {
        TRY_ASSIGN(Commit commit, prepare(merged));
        commits.push_back(std::move(commit));
    }
    current_ = std::move(merged);
    for (const Commit& commit : commits) commit();
    return taken;
}

}  // namespace lorad::server::ops
