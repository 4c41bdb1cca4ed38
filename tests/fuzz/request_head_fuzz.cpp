// Any bytes as a request's head: the same verdict however they are cut into segments; what is accepted has nothing in
// it that another reader could take for the end of a line, and says the same when it is written again.
#include <algorithm>
#include <cstdint>
#include <string>

#include "proto/base/check.h"
#include "server/http/guard/request_head.h"

namespace {

using namespace lorad::server;

bool is_clean(std::string_view text) {
    return std::none_of(text.begin(), text.end(),
                        [](char c) { return (uint8_t(c) < 0x20 && c != '\t') || uint8_t(c) == 0x7f; });
}

std::string written(const RequestHead& head) {
    std::string out = std::string(head.method) + " " + std::string(head.target) + " HTTP/1.1\r\n";
    for (const HeadField& field : head.fields)
        out += std::string(field.name) + ": " + std::string(field.value) + "\r\n";
    return out + "\r\n";
}

void check_accepted(std::string_view bytes, const RequestHead& head) {
    CHECK(is_clean(head.method) && is_clean(head.target));
    CHECK(head.target == "*" ||
          (head.target.starts_with('/') && head.target.find_first_of(" #") == std::string_view::npos));
    CHECK(head.fields.size() <= HeadLimits().n_fields_max && bytes.size() <= HeadLimits().bytes_max);
    CHECK(head.body_bytes <= uint64_t(INT64_MAX) && head.value_of("transfer-encoding").empty());
    for (const HeadField& field : head.fields)
        CHECK(is_clean(field.name) && is_clean(field.value) && !field.name.empty());
    const std::string again = written(head);
    HeadReader reader;
    RequestHead other;
    HeadRefusal refusal;
    // Of HTTP/1.0 a Host may be missing; written as 1.1 that is refused.
    if (head.value_of("host").empty()) return;
    CHECK(again.size() > HeadLimits().bytes_max || reader.read(again) == HeadReader::Verdict::kComplete);
    if (again.size() > HeadLimits().bytes_max) return;
    CHECK(parse_head(again, other, refusal));
    CHECK(other.method == head.method && other.target == head.target && other.body_bytes == head.body_bytes &&
          other.has_length == head.has_length && other.fields.size() == head.fields.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size == 0) return 0;
    const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
    HeadReader whole, split;
    const HeadReader::Verdict verdict = whole.read(bytes);
    const size_t step = 1 + data[0] % 7;
    HeadReader::Verdict in_parts = HeadReader::Verdict::kMore;
    for (size_t n = 0; in_parts == HeadReader::Verdict::kMore && n < bytes.size();) {
        n = std::min(bytes.size(), n + step);
        in_parts = split.read(bytes.substr(0, n));
    }
    CHECK(in_parts == verdict || bytes.empty());
    if (verdict == HeadReader::Verdict::kRefused) {
        CHECK(whole.refusal().code == split.refusal().code && whole.refusal().reason == split.refusal().reason);
    } else if (verdict == HeadReader::Verdict::kComplete) {
        CHECK(whole.n_bytes() == split.n_bytes() && whole.n_bytes() <= bytes.size());
        const std::string head_bytes(bytes.substr(0, whole.n_bytes()));
        RequestHead head;
        HeadRefusal refusal;
        if (parse_head(head_bytes, head, refusal)) check_accepted(head_bytes, head);
    }
    return 0;
}
