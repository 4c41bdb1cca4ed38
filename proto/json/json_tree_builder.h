// Builds a tree from the values that json_parse.cpp reads: enforces limits and finds duplicate names in an object.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/format.h"
#include "proto/json/json_tree.h"

namespace lorad {

inline constexpr uint32_t kLookupMembers = 16;  // from here on, members are found by binary search

// Builds the tree from what JsonReader finds; false ends the reading, with `error` set.
class JsonTreeBuilder {
  public:
    JsonTreeBuilder(JsonTree& tree, const JsonParseOptions& options, std::string_view source)
        : tree_(tree), options_(options), source_(source) {}

    bool null() { return add(JsonType::kNull) != nullptr; }
    bool boolean(bool flag) {
        JsonNode* node = add(JsonType::kBool);
        if (node) node->bits = flag;
        return node != nullptr;
    }
    bool number_integer(int64_t number) {
        JsonNode* node = add(JsonType::kInteger);
        if (node) node->integer = number;
        return node != nullptr;
    }
    bool number_unsigned(uint64_t number) {
        JsonNode* node = add(JsonType::kInteger);
        if (!node) return false;
        node->bits = number;
        node->is_unsigned = number > uint64_t{std::numeric_limits<int64_t>::max()};
        return true;
    }
    bool number_float(double number, std::string_view written) {
        JsonNode* node = add(JsonType::kNumber);
        if (!node) return false;
        node->number = number;
        node->text_begin = static_cast<uint32_t>(tree_.text.size());
        node->text_bytes = static_cast<uint32_t>(written.size());
        tree_.text += written;
        return true;
    }
    // The buffer for the bytes of a string or key while it is read: from `begin` to the end.
    std::string& text() { return tree_.text; }
    bool string(size_t begin) {
        JsonNode* node = add(JsonType::kString);
        if (!node) return false;
        node->text_begin = static_cast<uint32_t>(begin);
        node->text_bytes = static_cast<uint32_t>(tree_.text.size() - begin);
        return true;
    }
    void key(size_t begin) {
        key_begin_ = static_cast<uint32_t>(begin);
        key_bytes_ = static_cast<uint32_t>(tree_.text.size() - begin);
        has_key_ = true;
    }
    bool start_object() { return open(JsonType::kObject); }
    bool start_array() { return open(JsonType::kArray); }
    bool end_array() { return close(); }
    bool end_object() { return index_members() && close(); }
    // Returns the innermost open container: an array, an object, or nothing.
    std::optional<JsonType> container() const {
        if (open_ == kNoJsonNode) return std::nullopt;
        return tree_.nodes[open_].type;
    }

    bool parse_error(size_t byte, std::string_view what) {
        const std::string_view before = source_.substr(0, byte);
        const size_t line = static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
        const size_t newline = before.rfind('\n');
        const size_t column = newline == std::string_view::npos ? byte + 1 : byte - newline;
        error = json_error(tree_, place(),
                           format("not valid JSON at line {} column {} (byte {}): {}", line, column, byte, what));
        return false;
    }

    std::optional<Error> error;

  private:
    bool fail(std::string_view what) {
        error = json_error(tree_, open_ == kNoJsonNode ? "" : json_path(tree_, open_), what);
        return false;
    }

    // The path of the value being read; for a member, only once its key was read.
    std::string place() const {
        if (open_ == kNoJsonNode) return "";
        std::string path = json_path(tree_, open_);
        const JsonNode& parent = tree_.nodes[open_];
        if (parent.type == JsonType::kArray) return path + format("[{}]", parent.n_children);
        if (!has_key_) return path;
        if (!path.empty()) path += '.';
        return path + shortened(std::string_view(tree_.text).substr(key_begin_, key_bytes_));
    }

    // Null if there are too many values. The pointer lives until the next add.
    JsonNode* add(JsonType type) {
        if (tree_.nodes.size() >= options_.max_values) {
            fail(format("more than {} values in all", options_.max_values));
            return nullptr;
        }
        has_key_ = false;
        const uint32_t index = static_cast<uint32_t>(tree_.nodes.size());
        JsonNode node;
        node.type = type;
        node.parent = open_;
        if (open_ != kNoJsonNode) {
            JsonNode& parent = tree_.nodes[open_];
            node.index = parent.n_children++;
            if (parent.type == JsonType::kObject) {
                node.key_begin = key_begin_;
                node.key_bytes = key_bytes_;
            }
            if (parent.last == kNoJsonNode) {
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
        open_ = static_cast<uint32_t>(tree_.nodes.size() - 1);
        return true;
    }

    bool close() {
        --depth_;
        open_ = tree_.nodes[open_].parent;
        return true;
    }

    bool index_members() {
        JsonNode& object = tree_.nodes[open_];
        if (object.n_children < 2) return true;
        std::vector<uint32_t> members;
        members.reserve(object.n_children);
        for (uint32_t at = object.first; at != kNoJsonNode; at = tree_.nodes[at].next) members.push_back(at);
        const auto key_of = [&](uint32_t at) { return tree_.key(tree_.nodes[at]); };
        // Stable: of equal keys, the last in the text comes last.
        std::stable_sort(members.begin(), members.end(), [&](uint32_t a, uint32_t b) { return key_of(a) < key_of(b); });
        if (!options_.allow_duplicate_keys) {
            const auto twice = std::adjacent_find(members.begin(), members.end(),
                                                  [&](uint32_t a, uint32_t b) { return key_of(a) == key_of(b); });
            if (twice != members.end()) {
                error = json_error(tree_, json_path(tree_, *twice), "the key occurs twice");
                return false;
            }
        }
        if (members.size() >= kLookupMembers) {
            object.lookup = static_cast<uint32_t>(tree_.lookups.size());
            tree_.lookups.push_back(std::move(members));
        }
        return true;
    }

    JsonTree& tree_;
    const JsonParseOptions& options_;
    std::string_view source_;
    uint32_t open_ = kNoJsonNode;
    uint32_t depth_ = 0;
    uint32_t key_begin_ = 0, key_bytes_ = 0;
    bool has_key_ = false;  // read, and its value is awaited
};

}  // namespace lorad
