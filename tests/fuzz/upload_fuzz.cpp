// Any bytes as a request target and as a form: what is taken apart lies within the bytes and keeps to
// the bounds.
#include <cstdint>
#include <string_view>

#include "proto/adapter_request.h"
#include "proto/base/check.h"
#include "proto/multipart.h"
#include "proto/url.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lorad;
    std::string_view text(reinterpret_cast<const char*>(data), size);
    Result<proto::Target> target = proto::parse_target(text);
    if (target.ok()) {
        CHECK(!target->segments.empty() && target->query.size() <= 64);
        for (const std::string& segment : target->segments) {
            std::string encoded = proto::percent_encode(segment);
            CHECK(proto::percent_decode(encoded) == segment);
        }
    }
    (void)proto::parse_digest(text, "digest").ok();
    (void)proto::check_file_name(text, "files").ok();
    Result<std::string> boundary = proto::multipart_boundary(text);
    if (boundary.ok()) CHECK(boundary->size() <= 70);
    Result<std::vector<proto::FormPart>> parts = proto::parse_multipart(text, "b");
    if (!parts.ok()) return 0;
    CHECK(parts->size() <= proto::kFormPartsMax);
    for (const proto::FormPart& part : *parts) {
        CHECK(part.content.data() >= text.data());
        CHECK(part.content.data() + part.content.size() <= text.data() + text.size());
    }
    return 0;
}
