#include "proto/known_fields.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"

namespace lorad::proto {

bool is_neutral(const JsonValue& value, Neutral neutral) {
    switch (neutral) {
        case Neutral::kNone: return false;
        case Neutral::kFalse: return is_bool(value, false);
        case Neutral::kTrue: return is_bool(value, true);
        case Neutral::kZero: return is_number(value, 0.0);
        case Neutral::kOne: return is_number(value, 1.0);
        case Neutral::kEmpty:
            return is_text(value, "") || ((value.is_array() || value.is_object()) && value.size() == 0);
        case Neutral::kNoTools: return is_text(value, "none") || is_text(value, "auto");
        case Neutral::kTextOnly: {
            if (std::optional<JsonValue> type = value.find("type")) return value.size() == 1 && is_text(*type, "text");
            Result<std::vector<JsonValue>> kinds = value.as_array();
            return kinds.ok() && kinds->size() == 1 && is_text(kinds->front(), "text");
        }
        case Neutral::kAuto: return is_text(value, "auto") || is_text(value, "default");
        case Neutral::kMedium: return is_text(value, "medium");
        case Neutral::kDisabled: return is_text(value, "disabled");
        case Neutral::kAny: return true;
    }
    return false;
}

Error unsupported_field(std::string_view name, std::string_view why) {
    return make_error(ErrorCode::kUnsupportedParameter, format("{}: {}; leave the parameter out", name, why),
                      std::string(name));
}

Status check_fields(const JsonValue& object, std::span<const KnownField> known, std::vector<std::string>& ignored) {
    TRY_ASSIGN(std::vector<JsonMember> members, object.as_object());
    std::string within = object.path();
    if (!within.empty()) within += '.';
    for (const JsonMember& member : members) {
        auto field = std::find_if(known.begin(), known.end(),
                                  [&](const KnownField& candidate) { return candidate.name == member.key; });
        const bool is_idle = field != known.end() &&
                             (field->honoured || member.value.is_null() || is_neutral(member.value, field->neutral));
        if (is_idle || (field == known.end() && member.value.is_null())) continue;
        if (field == known.end() || is_neutral(member.value, field->hint)) {
            list_field(within + std::string(member.key), ignored);
        } else {
            return unsupported_field(member.value.path(),
                                     format("this server does not support {}", member.value.describe()));
        }
    }
    return ok_status();
}

namespace {

// lora_path, useLora, QLoRA, adapter_parameters; not exploration, whose letters are a word's inside.
bool speaks_of_adapters(std::string_view key) {
    const auto is_capital = [](char c) { return c >= 'A' && c <= 'Z'; };
    std::string name(key);
    std::ranges::transform(name, name.begin(),
                           [&](char c) { return is_capital(c) ? static_cast<char>(c - 'A' + 'a') : c; });
    if (name.find("adapter") != std::string::npos) return true;
    for (size_t at = name.find("lora"); at != std::string::npos; at = name.find("lora", at + 1)) {
        const bool begins_word =
            at == 0 || name[at - 1] < 'a' || name[at - 1] > 'z' || name[at - 1] == 'q' || is_capital(key[at]);
        if (begins_word) return true;
    }
    return false;
}

}  // namespace

Status refuse_unknown_adapters(const JsonValue& object, std::span<const KnownField> known) {
    TRY_ASSIGN(const std::vector<JsonMember> members, object.as_object());
    for (const JsonMember& member : members) {
        const bool is_known = std::ranges::find(known, member.key, &KnownField::name) != known.end();
        if (is_known || member.value.is_null() || is_neutral(member.value, Neutral::kEmpty)) continue;
        if (member.key == "extra_body")
            return unsupported_field(
                member.value.path(),
                "its members belong beside the other fields, where OpenAI's client for Python puts them");
        if (!speaks_of_adapters(member.key)) continue;
        return unsupported_field(member.value.path(),
                                 "no adapter is chosen by this field; name it by model or adapter");
    }
    return ok_status();
}

void list_unknown_fields(const JsonValue& object, std::span<const std::string_view> known,
                         std::vector<std::string>& ignored) {
    if (!object.is_object()) return;
    for (const JsonMember& member : *object.as_object()) {
        if (std::find(known.begin(), known.end(), member.key) != known.end()) continue;
        if (member.value.is_null() || is_neutral(member.value, Neutral::kEmpty)) continue;
        list_field(object.path() + '.' + std::string(member.key), ignored);
    }
}

void list_unknown_fields(const JsonValue& object, std::initializer_list<std::string_view> known,
                         std::vector<std::string>& ignored) {
    list_unknown_fields(object, std::span(known.begin(), known.size()), ignored);
}

void list_field(std::string path, std::vector<std::string>& ignored) {
    const bool is_new = std::find(ignored.begin(), ignored.end(), path) == ignored.end();
    if (is_new && ignored.size() < kIgnoredFieldsMax) ignored.push_back(std::move(path));
}

}  // namespace lorad::proto
