// Any bytes as a call of Tinker's client: refused, or sequences whose lists have one length.
#include <cstdint>
#include <string_view>

#include "proto/base/check.h"
#include "proto/tinker/tinker_data.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const auto read = lorad::proto::parse_tinker_forward_backward({reinterpret_cast<const char*>(data), size});
    if (!read.ok()) return 0;
    for (const lorad::proto::TinkerDatum& datum : read->data) {
        CHECK(!datum.tokens.empty() && datum.targets.size() == datum.tokens.size());
        CHECK(datum.weights.size() == datum.tokens.size());
        CHECK(datum.sampled.empty() || datum.sampled.size() == datum.tokens.size());
    }
    return 0;
}
