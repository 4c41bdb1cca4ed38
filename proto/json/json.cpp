#include "proto/json/json.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/json/json_tree.h"

namespace lorad {
namespace {

constexpr size_t kQuotedNameBytes = 128;  // of a quoted name: fits any adapter's

// Errors do not repeat what people say to a model, even in a wrong place: many logs keep answers with errors.
bool is_said_to_a_model(std::string_view path) {
    const std::string_view field = path.substr(0, path.find_first_of(".["));
    const std::string_view last =
        path.substr(path.find_last_of(".]") == std::string_view::npos ? 0 : path.find_last_of(".]") + 1);
    for (std::string_view said : {"prompt", "input", "system", "instructions", "documents"}) {
        if (field == said) return true;
    }
    return path == "messages" || (field == "messages" && last != "role" && last != "type");
}

}  // namespace

std::string shortened(std::string_view text, size_t n_bytes_max) {
    if (text.size() <= n_bytes_max) return std::string(text);
    size_t end = n_bytes_max;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
    return replace_invalid_utf8(text.substr(0, end)) + "...";
}

std::string json_path(const JsonTree& tree, uint32_t node) {
    std::vector<uint32_t> chain;
    for (uint32_t at = node; tree.nodes[at].parent != kNoJsonNode; at = tree.nodes[at].parent) chain.push_back(at);
    std::string path;
    for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
        const JsonNode& child = tree.nodes[*at];
        if (tree.nodes[child.parent].type == JsonType::kArray) {
            path += format("[{}]", child.index);
        } else {
            if (!path.empty()) path += '.';
            path += shortened(tree.key(child));
        }
    }
    return path;
}

Error json_error(const JsonTree& tree, std::string_view path, std::string_view what) {
    std::string message = tree.name;
    for (std::string_view part : {path, what}) {
        if (part.empty()) continue;
        if (!message.empty()) message += ": ";
        message += part;
    }
    return make_error(tree.code, std::move(message), std::string(path));
}

std::string json_quote_short(std::string_view text) { return json_quote(shortened(text, kQuotedNameBytes)); }

JsonDocument::JsonDocument(std::unique_ptr<JsonTree> tree) : tree_(std::move(tree)) {}
JsonDocument::~JsonDocument() = default;
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonValue JsonDocument::root() const { return JsonValue(tree_.get(), 0); }

JsonType JsonValue::type() const { return tree_->nodes[node_].type; }
std::string JsonValue::path() const { return json_path(*tree_, node_); }
size_t JsonValue::size() const { return tree_->nodes[node_].n_children; }
Error JsonValue::error(std::string_view what) const { return json_error(*tree_, path(), what); }
Error JsonValue::wrong_type(std::string_view expected) const {
    return error(format("expected {}, found {}", expected, describe()));
}

Result<bool> JsonValue::as_bool() const {
    if (!is_bool()) return wrong_type("true or false");
    return tree_->nodes[node_].bits != 0;
}

Result<int64_t> JsonValue::as_int(int64_t min, int64_t max) const {
    if (!is_integer()) return wrong_type("integer");
    const JsonNode& node = tree_->nodes[node_];
    if (node.is_unsigned || node.integer < min || node.integer > max) {
        return error(format("expected integer from {} to {}, found {}", min, max, dump()));
    }
    return node.integer;
}

Result<uint64_t> JsonValue::as_uint(uint64_t max) const {
    if (!is_integer()) return wrong_type("integer");
    const JsonNode& node = tree_->nodes[node_];
    if ((!node.is_unsigned && node.integer < 0) || node.bits > max) {
        return error(format("expected integer from 0 to {}, found {}", max, dump()));
    }
    return node.bits;
}

Result<double> JsonValue::as_number() const {
    const JsonNode& node = tree_->nodes[node_];
    if (type() == JsonType::kNumber) return node.number;
    if (!is_integer()) return wrong_type("number");
    return node.is_unsigned ? static_cast<double>(node.bits) : static_cast<double>(node.integer);
}

Result<std::string_view> JsonValue::as_string() const {
    if (!is_string()) return wrong_type("string");
    return tree_->string(tree_->nodes[node_]);
}

Result<std::vector<JsonValue>> JsonValue::as_array() const {
    if (!is_array()) return wrong_type("array");
    std::vector<JsonValue> items;
    items.reserve(size());
    for (uint32_t at = tree_->nodes[node_].first; at != kNoJsonNode; at = tree_->nodes[at].next) {
        items.push_back(JsonValue(tree_, at));
    }
    return items;
}

Result<std::vector<JsonMember>> JsonValue::as_object() const {
    if (!is_object()) return wrong_type("object");
    std::vector<JsonMember> members;
    members.reserve(size());
    for (uint32_t at = tree_->nodes[node_].first; at != kNoJsonNode; at = tree_->nodes[at].next) {
        members.push_back({tree_->key(tree_->nodes[at]), JsonValue(tree_, at)});
    }
    return members;
}

std::optional<uint32_t> JsonValue::find_node(std::string_view key) const {
    if (!is_object()) return std::nullopt;
    const JsonNode& object = tree_->nodes[node_];
    const auto key_of = [&](uint32_t at) { return tree_->key(tree_->nodes[at]); };
    if (object.lookup != kNoJsonNode) {
        const std::vector<uint32_t>& members = tree_->lookups[object.lookup];
        const auto after = std::upper_bound(members.begin(), members.end(), key,
                                            [&](std::string_view wanted, uint32_t at) { return wanted < key_of(at); });
        if (after == members.begin() || key_of(*(after - 1)) != key) return std::nullopt;
        return *(after - 1);
    }
    std::optional<uint32_t> found;
    for (uint32_t at = object.first; at != kNoJsonNode; at = tree_->nodes[at].next) {
        if (key_of(at) == key) found = at;
    }
    return found;
}

bool JsonValue::has(std::string_view key) const { return find_node(key).has_value(); }

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
    const std::optional<uint32_t> node = find_node(key);
    if (!node || tree_->nodes[*node].type == JsonType::kNull) return std::nullopt;
    return JsonValue(tree_, *node);
}

Result<JsonValue> JsonValue::require(std::string_view key) const {
    if (!is_object()) return wrong_type("object");
    if (const auto value = find(key)) return *value;
    std::string missing = path();
    if (!missing.empty()) missing += '.';
    missing += key;
    return json_error(*tree_, missing, "required, but missing");
}

Result<bool> JsonValue::bool_or(std::string_view key, bool fallback) const {
    const auto value = find(key);
    return value ? value->as_bool() : Result<bool>(fallback);
}
Result<int64_t> JsonValue::int_or(std::string_view key, int64_t fallback, int64_t min, int64_t max) const {
    const auto value = find(key);
    return value ? value->as_int(min, max) : Result<int64_t>(fallback);
}
Result<double> JsonValue::number_or(std::string_view key, double fallback) const {
    const auto value = find(key);
    return value ? value->as_number() : Result<double>(fallback);
}
Result<std::string_view> JsonValue::string_or(std::string_view key, std::string_view fallback) const {
    const auto value = find(key);
    return value ? value->as_string() : Result<std::string_view>(fallback);
}

std::string JsonValue::describe() const {
    switch (type()) {
        case JsonType::kNull: return "null";
        case JsonType::kBool: return dump();
        case JsonType::kInteger:
        case JsonType::kNumber: return "number " + shortened(dump());
        case JsonType::kString:
            if (is_said_to_a_model(path())) return "a string";
            return "string " + json_quote(shortened(tree_->string(tree_->nodes[node_])));
        case JsonType::kArray: return format("array of {}", size());
        case JsonType::kObject: return format("object of {}", size());
    }
    return "";
}

std::string JsonValue::dump() const {
    // Depth first over the links of the arena; recursion is bounded by max_depth of the parse.
    const JsonNode& node = tree_->nodes[node_];
    switch (node.type) {
        case JsonType::kNull: return "null";
        case JsonType::kBool: return node.bits ? "true" : "false";
        case JsonType::kInteger: return node.is_unsigned ? format("{}", node.bits) : format("{}", node.integer);
        case JsonType::kNumber: return std::string(tree_->string(node));
        case JsonType::kString: return json_quote(tree_->string(node));
        case JsonType::kArray:
        case JsonType::kObject: break;
    }
    const bool is_object = node.type == JsonType::kObject;
    std::string text(1, is_object ? '{' : '[');
    for (uint32_t at = node.first; at != kNoJsonNode; at = tree_->nodes[at].next) {
        if (at != node.first) text += ',';
        if (is_object) text += json_quote(tree_->key(tree_->nodes[at])) + ':';
        text += JsonValue(tree_, at).dump();
    }
    text += is_object ? '}' : ']';
    return text;
}

}  // namespace lorad
