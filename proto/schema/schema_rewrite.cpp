#include "proto/schema/schema_rewrite.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "proto/base/format.h"
#include "proto/generate/generate_request_parts.h"
#include "proto/schema/schema.h"
#include "proto/schema/schema_disjoint.h"

namespace lorad::proto {
namespace {

constexpr std::array<std::string_view, 6> kTypes = {"null", "boolean", "number", "string", "array", "object"};

// The members that say something.
std::vector<JsonMember> assertions_of(const JsonValue& schema) {
    std::vector<JsonMember> members = *schema.as_object();
    std::erase_if(members, [](const JsonMember& member) { return is_annotation(member.key); });
    return members;
}

// Each once; what is no type allows nothing.
std::vector<std::string_view> type_names(const std::optional<JsonValue>& type) {
    if (!type) return {kTypes.begin(), kTypes.end()};
    std::vector<JsonValue> list{*type};
    if (type->is_array()) list = *type->as_array();
    std::vector<std::string_view> names;
    for (const JsonValue& name : list) {
        if (!name.is_string()) continue;
        const std::string_view text = *name.as_string();
        const bool is_type = text == "integer" || std::ranges::find(kTypes, text) != kTypes.end();
        if (is_type && std::ranges::find(names, text) == names.end()) names.push_back(text);
    }
    return names;
}

void leave_out_types(const JsonValue& schema, const JsonValue& unwanted, Negation& out) {
    const std::vector<std::string_view> not_wanted = type_names(unwanted);
    auto has = [&](std::string_view name) { return std::ranges::find(not_wanted, name) != not_wanted.end(); };
    for (std::string_view name : type_names(schema.find("type"))) {
        // Numbers that are no integers cannot be told apart by their type.
        if (name == "number" && has("integer") && !has("number")) {
            out.types.clear();
            return;
        }
        if (!has(name) && !(name == "integer" && has("number"))) out.types.push_back(name);
    }
    out.is_enforced = true;
    out.allows_nothing = out.types.empty();
}

void leave_out_values(const JsonValue& schema, const std::vector<JsonValue>& unwanted, Negation& out) {
    uint8_t types = 0;
    for (const JsonValue& value : unwanted) types |= possible_types(value);
    if ((schema_types(schema) & types) == 0) {
        out.is_enforced = true;
        return;
    }
    std::vector<std::string> wanted;
    if (schema.has("const")) {
        std::optional<JsonValue> value = schema.find("const");
        wanted.push_back(value ? value->dump() : "null");
    } else if (std::optional<JsonValue> list = schema.find("enum"); list && list->is_array()) {
        for (const JsonValue& value : *list->as_array()) wanted.push_back(value.dump());
    } else if (schema_types(schema) == kSchemaBool) {
        wanted = {"true", "false"};
    } else {
        return;
    }
    std::set<std::string> left_out;
    for (const JsonValue& value : unwanted) left_out.insert(value.dump());
    std::erase_if(wanted, [&](const std::string& value) { return left_out.contains(value); });
    std::string text = "[";
    for (const std::string& value : wanted) text += (text.size() > 1 ? "," : "") + value;
    out.values = text + "]";
    out.is_enforced = true;
    out.allows_nothing = wanted.empty();
}

// Arrangements of the values that are left, behind those of `begun`.
void arrange(const std::vector<std::string>& values, std::vector<bool>& used, std::string begun, size_t n, size_t n_min,
             size_t n_max, std::string& out) {
    if (n >= n_min) out += (out.empty() ? "[" : ",") + ("[" + begun + "]");
    if (n == n_max) return;
    for (size_t i = 0; i < values.size(); ++i) {
        if (used[i]) continue;
        used[i] = true;
        arrange(values, used, begun + (n == 0 ? "" : ",") + values[i], n + 1, n_min, n_max, out);
        used[i] = false;
    }
}

// The few values that the elements of a list may have, as JSON; none where there are more, or other rules.
std::vector<std::string> few_values(const JsonValue& items) {
    constexpr size_t kDistinctMax = 4;  // 65 lists
    const std::vector<JsonMember> members = assertions_of(items);
    if (members.size() == 1 && members[0].key == "type" && schema_types(items) == kSchemaBool) return {"true", "false"};
    std::optional<JsonValue> list = items.find("enum");
    if (!list || !list->is_array() || list->size() > kDistinctMax) return {};
    const bool has_type = items.find("type").has_value();
    if (members.size() != (has_type ? 2 : 1)) return {};
    std::vector<std::string> values;
    for (const JsonValue& value : *list->as_array()) {
        if (has_type && !(items.find("type")->is_string() && schema_types(items) == kSchemaString && value.is_string()))
            return {};
        std::string text = value.dump();
        if (std::ranges::find(values, text) == values.end()) values.push_back(std::move(text));
    }
    return values;
}

}  // namespace

Negation negation_of(const JsonValue& schema, const JsonValue& negated, SchemaRefs& refs, size_t& steps_left) {
    Negation out{negated};
    const JsonValue inner = refs.resolved(negated);
    if (inner.is_bool()) {
        out.is_enforced = true;
        out.allows_nothing = *inner.as_bool();
        return out;
    }
    if (!inner.is_object()) return out;
    const std::vector<JsonMember> members = assertions_of(inner);
    if (members.empty()) {
        out.is_enforced = out.allows_nothing = true;
    } else if (are_disjoint(schema, inner, refs, steps_left)) {
        out.is_enforced = true;  // nothing that the rest allows is what is not wanted
    } else if (members.size() == 1 && members[0].key == "type") {
        leave_out_types(schema, members[0].value, out);
    } else if (members.size() == 1 && members[0].key == "const") {
        leave_out_values(schema, {members[0].value}, out);
    } else if (members.size() == 1 && members[0].key == "enum" && members[0].value.is_array()) {
        leave_out_values(schema, *members[0].value.as_array(), out);
    } else if (members.size() == 1 && members[0].key == "required" && members[0].value.size() == 1 &&
               schema_types(schema) == kSchemaObject) {
        const JsonValue name = (*members[0].value.as_array())[0];
        if (name.is_string()) out.absent.push_back(*name.as_string());
        out.is_enforced = name.is_string();
    }
    return out;
}

std::optional<std::string> distinct_lists(const JsonValue& schema) {
    if (schema_types(schema) != kSchemaArray) return std::nullopt;
    size_t n_min = 0, n_max = SIZE_MAX;
    std::vector<std::string> values;
    for (const JsonMember& member : assertions_of(schema)) {
        if (member.key == "type" || member.key == "uniqueItems") continue;
        if (member.key == "items" && member.value.is_object()) {
            values = few_values(member.value);
        } else if (Result<int64_t> n = member.value.as_int(0); n.ok() && member.key == "minItems") {
            n_min = static_cast<size_t>(*n);
        } else if (n.ok() && member.key == "maxItems") {
            n_max = static_cast<size_t>(*n);
        } else {
            return std::nullopt;
        }
    }
    if (values.empty()) return std::nullopt;
    std::vector<bool> used(values.size());
    std::string out;
    arrange(values, used, "", 0, n_min, std::min(n_max, values.size()), out);
    return out.empty() ? std::nullopt : std::optional(out + "]");
}

std::optional<std::string> named_properties(const JsonValue& names, std::string_view value_schema) {
    if (!names.is_object()) return std::nullopt;
    std::string pattern;
    JsonWriter writer;
    for (const JsonMember& member : assertions_of(names)) {
        if (member.key == "type" && is_text(member.value, "string")) continue;
        if (!pattern.empty()) return std::nullopt;
        if (member.key == "enum" && member.value.is_array()) {
            pattern = "^(?:";
            for (const JsonValue& name : *member.value.as_array()) {
                if (name.is_string()) pattern += (pattern.size() > 4 ? "|" : "") + escaped_pattern(*name.as_string());
            }
            if (pattern.size() == 4) return std::nullopt;
            pattern += ")$";
        } else if (member.key == "pattern" && member.value.is_string() &&
                   !is_beyond_grammars(*member.value.as_string())) {
            pattern = std::string(*member.value.as_string());
        } else if (member.key == "maxLength" || member.key == "minLength") {
            Result<int64_t> n_min = names.int_or("minLength", 0, 0), n_max = names.int_or("maxLength", INT64_MAX, 0);
            if (!n_min.ok() || !n_max.ok()) return std::nullopt;
            if (member.key == "maxLength" && names.has("minLength")) continue;  // said with the other
            pattern = format("^(?s:.){{{},{}}}$", *n_min, names.has("maxLength") ? format("{}", *n_max) : "");
        } else {
            return std::nullopt;
        }
    }
    if (pattern.empty()) return std::nullopt;
    return writer.begin_object().key(pattern).raw(value_schema).end_object().take();
}

namespace {

// "{2}", "{2,}", "{2,5}"; others are texts in one dialect and repetitions in another.
bool is_repetition(std::string_view text) {
    const size_t end = text.find('}');
    if (end == std::string_view::npos) return false;
    const std::string_view inside = text.substr(1, end - 1), first = inside.substr(0, inside.find(','));
    const auto are_digits = [](std::string_view digits) {
        return std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
    };
    return !first.empty() && are_digits(first) && are_digits(inside.substr(std::min(first.size() + 1, inside.size())));
}

// A letter or digit behind a backslash that means the same to everybody.
bool is_common_escape(char escaped, bool in_class) {
    const bool is_letter =
        (escaped >= 'a' && escaped <= 'z') || (escaped >= 'A' && escaped <= 'Z') || (escaped >= '0' && escaped <= '9');
    return !is_letter || std::string_view(in_class ? "dDwWsStnrfvaxuUpP" : "dDwWsStnrfvaxuUpPAz").find(escaped) !=
                             std::string_view::npos;
}

bool is_common_group(std::string_view text) {
    if (!text.starts_with("(?") || text.starts_with("(?:") || text.starts_with("(?P<")) return true;
    if (text.starts_with("(?<")) return !text.starts_with("(?<=") && !text.starts_with("(?<!");
    // Flags, but for lines, whose ends are looked around for.
    const size_t end = text.find_first_of(":)");
    return end != std::string_view::npos &&
           text.substr(2, end - 2).find_first_not_of("isxuU-") == std::string_view::npos;
}

}  // namespace

bool is_beyond_grammars(std::string_view pattern) {
    bool in_class = false;
    for (size_t i = 0; i < pattern.size(); ++i) {
        const std::string_view text = pattern.substr(i);
        if (text[0] == '\\') {
            if (text.size() > 1 && !is_common_escape(text[1], in_class)) return true;
            // Letters within braces behind it are its own: \p{L}, \u{1f600}.
            if (text.size() > 2 && text[2] == '{' && std::string_view("pPxuU").find(text[1]) != std::string_view::npos)
                i += std::min(text.find('}'), text.size() - 1) - 1;
            ++i;
        } else if (text[0] == '[') {
            if (!in_class && (text.starts_with("[]") || text.starts_with("[^]"))) return true;
            in_class = true;
        } else if (text[0] == ']') {
            in_class = false;
        } else if (!in_class && ((text[0] == '(' && !is_common_group(text)) ||
                                 (text[0] == '{' && (i == 0 || !is_repetition(text))))) {
            return true;
        }
    }
    return false;
}

std::optional<std::string> held_number(std::string_view keyword, const JsonValue& number) {
    const Result<double> value = number.as_number();
    if (!value.ok()) return number.dump();
    if (keyword == "multipleOf") {
        constexpr double kDivisorMax = UINT32_MAX, kStatesMax = 500'000;
        // Finds the digits as the compiler does: 0.12345 has more than it seems.
        double divisor = *value;
        while (divisor > 0 && divisor <= kDivisorMax && std::floor(divisor) != divisor) divisor *= 10;
        if (divisor > kDivisorMax) return std::nullopt;
        while (divisor > 0 && std::fmod(divisor, 10) == 0) divisor /= 10;  // zeros at the end are no states
        return divisor > kStatesMax ? std::nullopt : std::optional(number.dump());
    }
    const bool is_lower = keyword == "minimum" || keyword == "exclusiveMinimum";
    // A bound that leaves only numbers beyond kOutwardMax is lost; one nearer to zero than kNear, or laxer than kFar,
    // becomes about that.
    constexpr double kOutwardMax = 1e18, kNear = 1e-60, kFar = 9.2e18;
    const double outward = is_lower ? *value : -*value;
    if (outward >= kOutwardMax) return std::nullopt;
    if (outward > 0 && outward < kNear) return is_lower ? "1e-60" : "-1e-60";
    if (outward <= -kFar) return is_lower ? "-9000000000000000000" : "9000000000000000000";
    return number.dump();
}

FormatKind format_kind(std::string_view name) {
    static constexpr std::array<std::string_view, 10> kEnforced = {"date-time", "time", "date", "duration", "email",
                                                                   "hostname",  "ipv4", "ipv6", "uuid",     "uri"};
    static constexpr std::array<std::string_view, 9> kKnown = {"idn-email",    "idn-hostname",          "uri-reference",
                                                               "iri",          "iri-reference",         "uri-template",
                                                               "json-pointer", "relative-json-pointer", "regex"};
    if (std::ranges::find(kEnforced, name) != kEnforced.end()) return FormatKind::kEnforced;
    return std::ranges::find(kKnown, name) != kKnown.end() ? FormatKind::kNotEnforced : FormatKind::kAnnotation;
}

std::string escaped_pattern(std::string_view text) {
    std::string pattern;
    for (char byte : text) {
        if (std::string_view("\\.+*?()|[]{}^$#&-~/").find(byte) != std::string::npos) pattern += '\\';
        pattern += byte;
    }
    return pattern;
}

}  // namespace lorad::proto
