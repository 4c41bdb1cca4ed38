#include "proto/json.h"

#include <algorithm>
#include <exception>

#include <nlohmann/json.hpp>

#include "proto/base/format.h"

namespace lorad {

namespace {

constexpr uint32_t kNone = 0xffffffffu;
constexpr size_t kDescribedBytes = 48;    // of a string quoted in a message
constexpr size_t kQuotedNameBytes = 128;  // of a name: any that an adapter may have

struct Node {
    JsonType type = JsonType::kNull;
    bool is_unsigned = false;  // an integer above INT64_MAX, held in `bits`
    uint32_t parent = kNone;
    uint32_t first = kNone, last = kNone, next = kNone;  // children, next sibling
    uint32_t n_children = 0;
    uint32_t index = 0;                     // position in the parent
    uint32_t key_begin = 0, key_bytes = 0;  // in JsonTree::text
    uint32_t text_begin = 0, text_bytes = 0;  // a string's value, or a number as it was written
    uint32_t lookup = kNone;                  // in JsonTree::lookups, for objects with many members
    union {
        uint64_t bits = 0;
        int64_t integer;
        double number;
    };
};

}  // namespace

// One flat arena, so that a value is an index and freeing never recurses.
struct JsonTree {
    std::vector<Node> nodes;
    std::string text;                            // keys, strings and number texts
    std::vector<std::vector<uint32_t>> lookups;  // members of large objects, sorted by key
    std::string name;
    ErrorCode code = ErrorCode::kInvalidRequest;

    std::string_view key(const Node& node) const {
        return std::string_view(text).substr(node.key_begin, node.key_bytes);
    }
    std::string_view string(const Node& node) const {
        return std::string_view(text).substr(node.text_begin, node.text_bytes);
    }
};

namespace {

constexpr uint32_t kLookupMembers = 16;  // from here on, members are found by binary search

// Cut between characters.
std::string shortened(std::string_view text, size_t n_bytes_max = kDescribedBytes) {
    if (text.size() <= n_bytes_max) return std::string(text);
    size_t end = n_bytes_max;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xc0) == 0x80) --end;
    return replace_invalid_utf8(text.substr(0, end)) + "...";
}

std::string path_of(const JsonTree& tree, uint32_t node) {
    std::vector<uint32_t> chain;
    for (uint32_t at = node; tree.nodes[at].parent != kNone; at = tree.nodes[at].parent) chain.push_back(at);
    std::string path;
    for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
        const Node& child = tree.nodes[*at];
        if (tree.nodes[child.parent].type == JsonType::kArray) {
            path += format("[{}]", child.index);
        } else {
            if (!path.empty()) path += '.';
            path += shortened(tree.key(child));
        }
    }
    return path;
}

Error document_error(const JsonTree& tree, std::string_view path, std::string_view what) {
    std::string message = tree.name;
    for (std::string_view part : {path, what}) {
        if (part.empty()) continue;
        if (!message.empty()) message += ": ";
        message += part;
    }
    return make_error(tree.code, std::move(message), std::string(path));
}

// Receives the library's events and builds the tree; returning false ends the parse with `error` set.
class TreeBuilder {
  public:
    using number_integer_t = nlohmann::json::number_integer_t;
    using number_unsigned_t = nlohmann::json::number_unsigned_t;
    using number_float_t = nlohmann::json::number_float_t;
    using string_t = nlohmann::json::string_t;
    using binary_t = nlohmann::json::binary_t;

    TreeBuilder(JsonTree& tree, const JsonParseOptions& options, std::string_view source)
        : tree_(tree), options_(options), source_(source) {}

    bool null() { return add(JsonType::kNull) != nullptr; }
    bool boolean(bool flag) {
        Node* node = add(JsonType::kBool);
        if (node) node->bits = flag;
        return node != nullptr;
    }
    bool number_integer(number_integer_t number) {
        Node* node = add(JsonType::kInteger);
        if (node) node->integer = number;
        return node != nullptr;
    }
    bool number_unsigned(number_unsigned_t number) {
        Node* node = add(JsonType::kInteger);
        if (!node) return false;
        node->bits = number;
        node->is_unsigned = number > uint64_t(std::numeric_limits<int64_t>::max());
        return true;
    }
    bool number_float(number_float_t number, const string_t& written) {
        Node* node = add(JsonType::kNumber);
        if (!node) return false;
        node->number = number;
        store(written, node->text_begin, node->text_bytes);
        return true;
    }
    bool string(string_t& text) {
        Node* node = add(JsonType::kString);
        if (node) store(text, node->text_begin, node->text_bytes);
        return node != nullptr;
    }
    bool binary(binary_t&) { return fail("binary values are not JSON"); }
    bool start_object(size_t) { return open(JsonType::kObject); }
    bool start_array(size_t) { return open(JsonType::kArray); }
    bool key(string_t& name) {
        store(name, key_begin_, key_bytes_);
        return true;
    }
    bool end_array() { return close(); }
    bool end_object() { return index_members() && close(); }

    bool parse_error(size_t byte, const std::string&, const nlohmann::detail::exception& problem) {
        // The library's text is "[json.exception...] parse error at line L, column C: detail"; the place is ours.
        std::string_view text = problem.what();
        size_t detail = text.find("] ");
        if (detail != std::string_view::npos) text.remove_prefix(detail + 2);
        if (text.starts_with("parse error")) {
            detail = text.find(": ");
            if (detail != std::string_view::npos) text.remove_prefix(detail + 2);
        }
        size_t last_read = text.rfind("; last read: ");
        std::string what(text.substr(0, last_read));
        if (last_read != std::string_view::npos) {
            std::string_view tail = text.substr(last_read + 13);
            if (tail.size() > kDescribedBytes) tail = tail.substr(tail.size() - kDescribedBytes);
            what += "; last read: ";
            what += replace_invalid_utf8(tail);
        }
        byte = std::clamp<size_t>(byte, 1, std::max<size_t>(source_.size(), 1)) - 1;
        const std::string_view before = source_.substr(0, byte);
        const size_t line = size_t(std::count(before.begin(), before.end(), '\n')) + 1;
        const size_t newline = before.rfind('\n');
        const size_t column = newline == std::string_view::npos ? byte + 1 : byte - newline;
        error = document_error(tree_, "",
                               format("not valid JSON at line {} column {} (byte {}): {}", line, column, byte, what));
        return false;
    }

    std::optional<Error> error;

  private:
    bool fail(std::string_view what) {
        error = document_error(tree_, open_ == kNone ? "" : path_of(tree_, open_), what);
        return false;
    }

    void store(const std::string& text, uint32_t& begin, uint32_t& bytes) {
        begin = uint32_t(tree_.text.size());
        bytes = uint32_t(text.size());
        tree_.text += text;
    }

    // Null if there are too many values. The pointer lives until the next add.
    Node* add(JsonType type) {
        if (tree_.nodes.size() >= options_.max_values) {
            fail(format("more than {} values in all", options_.max_values));
            return nullptr;
        }
        const uint32_t index = uint32_t(tree_.nodes.size());
        Node node;
        node.type = type;
        node.parent = open_;
        if (open_ != kNone) {
            Node& parent = tree_.nodes[open_];
            node.index = parent.n_children++;
            if (parent.type == JsonType::kObject) {
                node.key_begin = key_begin_;
                node.key_bytes = key_bytes_;
            }
            if (parent.last == kNone) {
                parent.first = index;
            } else {
                tree_.nodes[parent.last].next = index;
            }
            parent.last = index;
        }
        tree_.nodes.push_back(node);
        return &tree_.nodes.back();
    }

    bool open(JsonType type) {
        if (depth_ >= options_.max_depth) {
            return fail(format("nested deeper than {} arrays and objects", options_.max_depth));
        }
        if (!add(type)) return false;
        ++depth_;
        open_ = uint32_t(tree_.nodes.size() - 1);
        return true;
    }

    bool close() {
        --depth_;
        open_ = tree_.nodes[open_].parent;
        return true;
    }

    bool index_members() {
        Node& object = tree_.nodes[open_];
        if (object.n_children < 2) return true;
        std::vector<uint32_t> members;
        members.reserve(object.n_children);
        for (uint32_t at = object.first; at != kNone; at = tree_.nodes[at].next) members.push_back(at);
        const auto key_of = [&](uint32_t at) { return tree_.key(tree_.nodes[at]); };
        // Stable: of equal keys, the last in the text comes last.
        std::stable_sort(members.begin(), members.end(),
                         [&](uint32_t a, uint32_t b) { return key_of(a) < key_of(b); });
        if (!options_.allow_duplicate_keys) {
            const auto twice = std::adjacent_find(members.begin(), members.end(),
                                                  [&](uint32_t a, uint32_t b) { return key_of(a) == key_of(b); });
            if (twice != members.end()) {
                error = document_error(tree_, path_of(tree_, *twice), "the key occurs twice");
                return false;
            }
        }
        if (members.size() >= kLookupMembers) {
            object.lookup = uint32_t(tree_.lookups.size());
            tree_.lookups.push_back(std::move(members));
        }
        return true;
    }

    JsonTree& tree_;
    const JsonParseOptions& options_;
    std::string_view source_;
    uint32_t open_ = kNone;
    uint32_t depth_ = 0;
    uint32_t key_begin_ = 0, key_bytes_ = 0;
};

}  // namespace

Result<JsonDocument> parse_json(std::string_view text, const JsonParseOptions& options) {
    auto tree = std::make_unique<JsonTree>();
    tree->name = options.name;
    tree->code = options.code;
    // Offsets into the arena's text are 32 bits.
    const size_t max_bytes = std::min<size_t>(options.max_bytes, size_t(1) << 31);
    if (text.size() > max_bytes) {
        return document_error(*tree, "", format("{} bytes of JSON, at most {} allowed", text.size(), max_bytes));
    }
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
        return document_error(*tree, "", "expected JSON, found nothing");
    }
    TreeBuilder builder(*tree, options, text);
    bool parsed = false;
    try {
        parsed = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
    } catch (const std::exception& problem) {
        return document_error(*tree, "", format("not readable as JSON: {}", replace_invalid_utf8(problem.what())));
    }
    if (builder.error) return *std::move(builder.error);
    if (!parsed || tree->nodes.empty()) return document_error(*tree, "", "not valid JSON");
    return JsonDocument(std::move(tree));
}

std::string json_quote_short(std::string_view text) { return json_quote(shortened(text, kQuotedNameBytes)); }

JsonDocument::JsonDocument(std::unique_ptr<JsonTree> tree) : tree_(std::move(tree)) {}
JsonDocument::~JsonDocument() = default;
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonValue JsonDocument::root() const { return JsonValue(tree_.get(), 0); }

JsonType JsonValue::type() const { return tree_->nodes[node_].type; }
std::string JsonValue::path() const { return path_of(*tree_, node_); }
size_t JsonValue::size() const { return tree_->nodes[node_].n_children; }
Error JsonValue::error(std::string_view what) const { return document_error(*tree_, path(), what); }
Error JsonValue::wrong_type(std::string_view expected) const {
    return error(format("expected {}, found {}", expected, describe()));
}

Result<bool> JsonValue::as_bool() const {
    if (!is_bool()) return wrong_type("true or false");
    return tree_->nodes[node_].bits != 0;
}

Result<int64_t> JsonValue::as_int(int64_t min, int64_t max) const {
    if (!is_integer()) return wrong_type("integer");
    const Node& node = tree_->nodes[node_];
    if (node.is_unsigned || node.integer < min || node.integer > max) {
        return error(format("expected integer from {} to {}, found {}", min, max, dump()));
    }
    return node.integer;
}

Result<uint64_t> JsonValue::as_uint(uint64_t max) const {
    if (!is_integer()) return wrong_type("integer");
    const Node& node = tree_->nodes[node_];
    if ((!node.is_unsigned && node.integer < 0) || node.bits > max) {
        return error(format("expected integer from 0 to {}, found {}", max, dump()));
    }
    return node.bits;
}

Result<double> JsonValue::as_number() const {
    const Node& node = tree_->nodes[node_];
    if (type() == JsonType::kNumber) return node.number;
    if (!is_integer()) return wrong_type("number");
    return node.is_unsigned ? double(node.bits) : double(node.integer);
}

Result<std::string_view> JsonValue::as_string() const {
    if (!is_string()) return wrong_type("string");
    return tree_->string(tree_->nodes[node_]);
}

Result<std::vector<JsonValue>> JsonValue::as_array() const {
    if (!is_array()) return wrong_type("array");
    std::vector<JsonValue> items;
    items.reserve(size());
    for (uint32_t at = tree_->nodes[node_].first; at != kNone; at = tree_->nodes[at].next) {
        items.push_back(JsonValue(tree_, at));
    }
    return items;
}

Result<std::vector<JsonMember>> JsonValue::as_object() const {
    if (!is_object()) return wrong_type("object");
    std::vector<JsonMember> members;
    members.reserve(size());
    for (uint32_t at = tree_->nodes[node_].first; at != kNone; at = tree_->nodes[at].next) {
        members.push_back({tree_->key(tree_->nodes[at]), JsonValue(tree_, at)});
    }
    return members;
}

std::optional<uint32_t> JsonValue::find_node(std::string_view key) const {
    if (!is_object()) return std::nullopt;
    const Node& object = tree_->nodes[node_];
    const auto key_of = [&](uint32_t at) { return tree_->key(tree_->nodes[at]); };
    if (object.lookup != kNone) {
        const std::vector<uint32_t>& members = tree_->lookups[object.lookup];
        const auto after = std::upper_bound(members.begin(), members.end(), key,
                                            [&](std::string_view wanted, uint32_t at) { return wanted < key_of(at); });
        if (after == members.begin() || key_of(*(after - 1)) != key) return std::nullopt;
        return *(after - 1);
    }
    std::optional<uint32_t> found;
    for (uint32_t at = object.first; at != kNone; at = tree_->nodes[at].next) {
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
    return document_error(*tree_, missing, "required, but missing");
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
            return "string " + json_quote(shortened(tree_->string(tree_->nodes[node_])));
        case JsonType::kArray: return format("array of {}", size());
        case JsonType::kObject: return format("object of {}", size());
    }
    return "";
}

std::string JsonValue::dump() const {
    // Depth first over the links of the arena; recursion is bounded by max_depth of the parse.
    const Node& node = tree_->nodes[node_];
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
    for (uint32_t at = node.first; at != kNone; at = tree_->nodes[at].next) {
        if (at != node.first) text += ',';
        if (is_object) text += json_quote(tree_->key(tree_->nodes[at])) + ':';
        text += JsonValue(tree_, at).dump();
    }
    text += is_object ? '}' : ']';
    return text;
}

}  // namespace lorad
