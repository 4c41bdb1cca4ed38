#include "adapters/plan/misfit.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/base/printable.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

constexpr size_t kMisfitsShown = 20;
constexpr size_t kMessageBytesMax = 8000;

}  // namespace

std::string one_line(std::string text) {
    // First what would be cut anyway, then what the escapes have made too long.
    if (text.size() > kMessageBytesMax) text.resize(kMessageBytesMax + 1);
    text = escape_unprintable(text);
    if (text.size() > kMessageBytesMax) text = replace_invalid_utf8(text.substr(0, kMessageBytesMax)) + "...";
    return text;
}

Error one_line(Error error) {
    error.message = one_line(std::move(error.message));
    if (error.param.size() > kMessageBytesMax) error.param.clear();
    return error;
}

Error misfit_error(std::vector<Misfit> misfits) {
    const bool only_unsupported = std::ranges::all_of(misfits, &Misfit::unsupported);
    std::stable_partition(misfits.begin(), misfits.end(), [](const Misfit& misfit) { return !misfit.unsupported; });
    std::string message =
        format("the adapter does not fit the base model, {} problem{}", misfits.size(), misfits.size() == 1 ? "" : "s");
    for (size_t i = 0; i < std::min(misfits.size(), kMisfitsShown); ++i) {
        message += format("{} {}: expected {}, found {}", i == 0 ? ":" : ";", misfits[i].tensor, misfits[i].expected,
                          misfits[i].found);
    }
    if (misfits.size() > kMisfitsShown) message += format("; and {} more", misfits.size() - kMisfitsShown);
    return make_error(only_unsupported ? ErrorCode::kAdapterUnsupported : ErrorCode::kAdapterInvalid,
                      std::move(message));
}

}  // namespace lorad::adapters
