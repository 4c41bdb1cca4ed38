#include "server/http/bounded_body.h"

#include <charconv>

#include "proto/base/format.h"

namespace lorad::server {
namespace {

using Clock = std::chrono::steady_clock;

// A client reads the answer only after it has sent its body: what is refused is still taken in,
// within bounds.
constexpr uint64_t kDroppedBytesMax = uint64_t(64) << 20;
constexpr std::chrono::seconds kDroppedTimeMax{10};
constexpr uint64_t kSlowestBytesPerSecond = 32 << 10;

Error too_large(uint64_t bytes_max) {
    return make_error(
        ErrorCode::kPayloadTooLarge,
        format("the request body is larger than {} bytes, the most that is accepted here",
               bytes_max));
}

Error too_slow() {
    return make_error(ErrorCode::kRequestTimeout, "the request's body comes too slowly");
}

}  // namespace

std::optional<uint64_t> parse_length(const std::string& text) {
    uint64_t value = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    return value;
}

Status BoundedBody::read(uint64_t bytes_max, const Take& take) {
    CHECK(!was_read_);
    was_read_ = true;
    if (ended_) return ok_status();
    if (length().value_or(0) > bytes_max) return drop(too_large(bytes_max));
    Status status = ok_status();
    uint64_t n_dropped = 0;
    const Clock::time_point begin = Clock::now();
    Clock::time_point last_piece = begin;
    ended_ = pull_([&](const char* data, size_t size) {
        last_piece = Clock::now();
        if (!status.ok()) {
            n_dropped += size;
            return n_dropped <= kDroppedBytesMax && last_piece - begin < kDroppedTimeMax;
        }
        n_bytes_ += size;
        auto patience = patience_.begin + std::chrono::seconds(n_bytes_ / kSlowestBytesPerSecond);
        if (n_bytes_ > bytes_max) {
            status = too_large(bytes_max);
        } else if (last_piece - begin > patience) {
            status = too_slow();
            return false;
        } else {
            status = take({data, size});
        }
        return true;
    });
    if (!status.ok() || ended_) return status;
    if (Clock::now() - last_piece >= patience_.piece - std::chrono::seconds(1)) return too_slow();
    return make_error(ErrorCode::kInvalidRequest,
                      "the request's body breaks off before its declared end");
}

bool BoundedBody::skip_rest() {
    if (!was_read_ && !ended_) {
        Status status = read(kDroppedBytesMax, [](std::string_view) { return ok_status(); });
        return status.ok() && ended_;
    }
    return ended_;
}

Error BoundedBody::drop(Error error) {
    if (length().value_or(0) <= kDroppedBytesMax) {
        const Clock::time_point begin = Clock::now();
        ended_ = pull_(
            [&](const char*, size_t) { return Clock::now() - begin < kDroppedTimeMax; });
    }
    return error;
}

}  // namespace lorad::server
