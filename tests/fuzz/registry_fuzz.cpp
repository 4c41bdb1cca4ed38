// A registry.json that something has changed: not used, or one whose text is read to the same again. Its digest is put
// right first, so that what lies behind it is read.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "adapters/files/files.h"
#include "adapters/store/catalogue.h"
#include "proto/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lorad;
    const std::string_view body(reinterpret_cast<const char*>(data), size);
    (void)adapters::parse_manifest(body).ok();
    const std::string text = "{\"format\":1,\"sha256\":\"" + sha256_hex(std::as_bytes(std::span(body))) +
                             "\",\"registry\":" + std::string(body) + "}\n";
    const auto catalogue = adapters::parse_manifest(text);
    if (!catalogue.ok()) {
        CHECK(catalogue.error().code == ErrorCode::kIo);
        return 0;
    }
    adapters::Catalogue pruned = *catalogue;
    pruned.drop_unused();
    const auto again = adapters::parse_manifest(adapters::manifest_text(*catalogue));
    CHECK(again.ok() && *again == *catalogue);
    return 0;
}
