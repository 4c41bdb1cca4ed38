#include "proto/tinker/tinker_request_parts.h"

#include <algorithm>
#include <limits>

#include "proto/base/format.h"

namespace lorad::proto::tinker {

Error not_there(std::string_view field, std::string_view what) {
    return make_error(ErrorCode::kUnsupportedParameter, format("{}: {}", field, what), std::string(field));
}

Result<std::string> text_of(const JsonValue& body, std::string_view member, size_t bytes_max) {
    TRY_ASSIGN(const std::string_view text, body.string_or(member, ""));
    if (text.size() > bytes_max)
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: {} bytes: at most {}", member, text.size(), bytes_max), std::string(member));
    return std::string(text);
}

Result<std::string> needed_text(const JsonValue& body, std::string_view member, size_t bytes_max) {
    TRY(body.require(member));
    TRY_ASSIGN(std::string text, text_of(body, member, bytes_max));
    if (text.empty())
        return make_error(ErrorCode::kInvalidRequest, format("{}: expected a text that is not empty", member),
                          std::string(member));
    return text;
}

Result<uint64_t> sequence_of(const JsonValue& body, std::string_view member) {
    TRY_ASSIGN(const int64_t value, body.int_or(member, 0, 0, std::numeric_limits<int32_t>::max()));
    return static_cast<uint64_t>(value);
}

Status check_fields(const JsonValue& body, Names known) {
    TRY_ASSIGN(const std::vector<JsonMember> members, body.as_object());
    for (const JsonMember& member : members) {
        if (member.value.is_null() || std::ranges::find(known, member.key) != known.end()) continue;
        return not_there(member.key.substr(0, 64), "the field is not known here");
    }
    return ok_status();
}

std::vector<std::string> fields_without_effect(const JsonValue& body, Names fields) {
    std::vector<std::string> found;
    for (const std::string_view field : fields) {
        const std::optional<JsonValue> value = body.find(field);
        const bool is_empty = !value || ((value->is_array() || value->is_object()) && value->size() == 0);
        if (!is_empty) found.emplace_back(field);
    }
    return found;
}

}  // namespace lorad::proto::tinker
