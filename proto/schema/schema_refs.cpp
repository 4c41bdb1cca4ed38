#include "proto/schema/schema_refs.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "proto/base/format.h"
#include "proto/url.h"

namespace lorad::proto {
namespace {

// The longest chain of references to references.
constexpr int kHopsMax = 64;
constexpr size_t kMembersMax = 16;  // in a schema that is only a reference
constexpr size_t kElementsSeenMax = size_t{1} << 24;

// One part of a pointer: "~1" is a slash, "~0" a tilde.
std::string unescaped(std::string_view part) {
    std::string out;
    for (size_t i = 0; i < part.size(); ++i) {
        const bool escapes = part[i] == '~' && i + 1 < part.size() && (part[i + 1] == '0' || part[i + 1] == '1');
        out += !escapes ? part[i] : part[++i] == '1' ? '/' : '~';
    }
    return out;
}

std::optional<JsonValue> child_of(const JsonValue& value, const std::string& key) {
    if (!value.is_array()) return value.find(key);
    size_t index = 0;
    const char* end = key.data() + key.size();
    const std::from_chars_result read = std::from_chars(key.data(), end, index);
    if (key.empty() || read.ec != std::errc() || read.ptr != end || index >= value.size()) return std::nullopt;
    return (*value.as_array())[index];
}

}  // namespace

bool is_reference(std::string_view keyword) {
    return keyword == "$ref" || keyword == "$dynamicRef" || keyword == "$recursiveRef";
}

bool is_annotation(std::string_view keyword) {
    static constexpr std::array<std::string_view, 44> kAssertions = {"$ref",
                                                                     "$dynamicRef",
                                                                     "$recursiveRef",
                                                                     "type",
                                                                     "const",
                                                                     "enum",
                                                                     "allOf",
                                                                     "anyOf",
                                                                     "oneOf",
                                                                     "not",
                                                                     "if",
                                                                     "then",
                                                                     "else",
                                                                     "properties",
                                                                     "patternProperties",
                                                                     "additionalProperties",
                                                                     "unevaluatedProperties",
                                                                     "propertyNames",
                                                                     "required",
                                                                     "minProperties",
                                                                     "maxProperties",
                                                                     "dependencies",
                                                                     "dependentRequired",
                                                                     "dependentSchemas",
                                                                     "items",
                                                                     "prefixItems",
                                                                     "additionalItems",
                                                                     "unevaluatedItems",
                                                                     "contains",
                                                                     "minContains",
                                                                     "maxContains",
                                                                     "minItems",
                                                                     "maxItems",
                                                                     "uniqueItems",
                                                                     "minLength",
                                                                     "maxLength",
                                                                     "pattern",
                                                                     "format",
                                                                     "minimum",
                                                                     "maximum",
                                                                     "exclusiveMinimum",
                                                                     "exclusiveMaximum",
                                                                     "multipleOf",
                                                                     "x-guidance"};
    return std::find(kAssertions.begin(), kAssertions.end(), keyword) == kAssertions.end();
}

Result<JsonValue> SchemaRefs::at_pointer(std::string_view pointer, const JsonValue& reference) {
    JsonValue at = root_;
    while (!pointer.empty()) {
        pointer.remove_prefix(1);  // the slash
        const size_t end = std::min(pointer.find('/'), pointer.size());
        const std::string key = unescaped(pointer.substr(0, end));
        if (at.is_array()) n_elements_seen_ += at.size();
        if (n_elements_seen_ > kElementsSeenMax) return reference.error("the references take too long to follow");
        std::optional<JsonValue> child = child_of(at, key);
        // Some write "#/" for the root.
        if (!child && key.empty() && end == pointer.size() && at.id() == root_.id()) return root_;
        if (!child) {
            return reference.error(format("there is no {} in {}", json_quote_short(key),
                                          at.id() == root_.id() ? "the schema" : "what it names before"));
        }
        at = *child;
        pointer.remove_prefix(end);
    }
    return at;
}

std::optional<JsonValue> SchemaRefs::at_anchor(std::string_view name) {
    if (!anchors_) {
        anchors_.emplace();
        std::vector<JsonValue> open{root_};
        while (!open.empty()) {
            const JsonValue value = open.back();
            open.pop_back();
            if (value.is_array()) {
                for (const JsonValue& element : *value.as_array()) open.push_back(element);
            }
            if (!value.is_object()) continue;
            for (const JsonMember& member : *value.as_object()) {
                open.push_back(member.value);
                if ((member.key == "$anchor" || member.key == "$dynamicAnchor") && member.value.is_string())
                    anchors_->emplace(std::string(*member.value.as_string()), value);
            }
        }
    }
    const auto found = anchors_->find(name);
    return found == anchors_->end() ? std::nullopt : std::optional(found->second);
}

Result<JsonValue> SchemaRefs::target(const JsonValue& reference) {
    if (const auto known = targets_.find(reference.id()); known != targets_.end() && known->second)
        return *known->second;
    Result<JsonValue> found = followed(reference);
    targets_.insert_or_assign(reference.id(), found.ok() ? std::optional(*found) : std::nullopt);
    return found;
}

Result<JsonValue> SchemaRefs::followed(const JsonValue& reference) {
    TRY_ASSIGN(std::string_view text, reference.as_string());
    // The reference may begin with the schema's own name.
    for (const char* key : {"$id", "id"}) {
        std::optional<JsonValue> own = root_.find(key);
        if (!own || !own->is_string()) continue;
        std::string_view name = *own->as_string();
        name = name.substr(0, name.find('#'));
        if (!name.empty() && text.starts_with(name) && (text.size() == name.size() || text[name.size()] == '#'))
            text.remove_prefix(name.size());
    }
    if (text.empty() || text == "#") return root_;
    if (text.front() != '#') {
        return reference.error(
            format("only schemas within this one can be referred to, with \"#...\", found {}", reference.describe()));
    }
    const std::optional<std::string> fragment = percent_decode(text.substr(1));
    if (!fragment) return reference.error("a % is not followed by two hexadecimal digits");
    if (fragment->front() == '/') return at_pointer(*fragment, reference);
    if (std::optional<JsonValue> anchored = at_anchor(*fragment)) return *anchored;
    return reference.error(format("no schema has the anchor {}", json_quote_short(*fragment)));
}

JsonValue SchemaRefs::resolved(JsonValue schema) {
    if (const auto known = resolved_.find(schema.id()); known != resolved_.end()) return known->second;
    const JsonValue found = behind(schema);
    resolved_.emplace(schema.id(), found);
    return found;
}

JsonValue SchemaRefs::behind(JsonValue schema) {
    for (int hop = 0; hop < kHopsMax && schema.is_object() && schema.size() <= kMembersMax; ++hop) {
        std::optional<JsonValue> reference;
        bool is_alone = true;
        for (const JsonMember& member : *schema.as_object()) {
            if (is_reference(member.key)) {
                is_alone = is_alone && !reference;
                reference = member.value;
            } else {
                is_alone = is_alone && is_annotation(member.key);
            }
        }
        if (!reference || !is_alone) return schema;
        const auto known = targets_.find(reference->id());
        if (known != targets_.end() && !known->second) return schema;  // without its error, which may be long to say
        Result<JsonValue> next = target(*reference);
        if (!next.ok()) return schema;
        schema = *next;
    }
    return schema;
}

}  // namespace lorad::proto
