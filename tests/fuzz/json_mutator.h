// Changes JSON schemas as trees: a mutant is JSON again, with keywords where they mean something, subtrees of its own
// in other places, and references to them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace lorad::fuzz {

class SchemaMutator {
  public:
    using Json = nlohmann::json;

    explicit SchemaMutator(uint32_t seed) : random_(seed) {}

    static Json parsed(std::string_view text) {
        Json tree = Json::parse(text, nullptr, false);
        return tree.is_object() ? tree : Json{{"type", "object"}, {"properties", Json::object()}};
    }

    void mutate(Json& root) {
        for (uint32_t n = below(4) + 1; n > 0; --n) change(root);
    }
    // A subtree of the other one somewhere in this one.
    void cross(Json& root, Json& other) { *any(root) = *any(other); }

  private:
    static constexpr size_t kNodesMax = 4000;

    uint32_t below(uint32_t n) { return uint32_t(random_() % n); }
    template <size_t N>
    const char* one_of(const char* const (&words)[N]) {
        return words[below(N)];
    }

    void collect(Json& node, const std::string& path, std::vector<std::pair<Json*, std::string>>& out) {
        if (out.size() >= kNodesMax) return;
        out.emplace_back(&node, path);
        if (node.is_object()) {
            for (auto& [key, value] : node.items()) {
                std::string escaped;
                for (const char c : key) escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
                collect(value, path + "/" + escaped, out);
            }
        } else if (node.is_array()) {
            for (size_t i = 0; i < node.size(); ++i) collect(node[i], path + "/" + std::to_string(i), out);
        }
    }
    std::pair<Json*, std::string> any_with_path(Json& root) {
        std::vector<std::pair<Json*, std::string>> nodes;
        collect(root, "#", nodes);
        return nodes[below(uint32_t(nodes.size()))];
    }
    Json* any(Json& root) { return any_with_path(root).first; }

    Json number() {
        switch (below(10)) {
            case 0: return -1;
            case 1: return 1e308;
            case 2: return 0.1 * double(below(100));
            case 3: return uint64_t(1) << below(64);
            case 4: return -double(below(1000)) / 7;
            case 5: return 1e-300;
            default: return below(300);
        }
    }
    std::string pattern() {
        std::string out;
        for (uint32_t n = below(5); n > 0; --n) {
            out += one_of({"a",       "[a-z]",
                           "\\d",     "\\w+",
                           "(a|b)*",  "^",
                           "$",       ".",
                           "(?=x)",   "(?i)q",
                           "{0,40}",  "+",
                           "?",       "(x{1,9}){1,9}",
                           "\\u00e9", "[^\\x00-\\x1f]",
                           "\\p{L}",  "|",
                           "\\b",     "\\1",
                           "é",       "(",
                           "[["});
        }
        return out;
    }
    Json value() {
        switch (below(9)) {
            case 0: return nullptr;
            case 1: return below(2) == 0;
            case 2: return number();
            case 3: return Json::array({1, "a", nullptr});
            case 4: return Json{{"a", number()}, {"b", Json::array()}};
            case 5: return std::string(below(300), 'x');
            default: return one_of({"", "a", "\xc3\xa9", "#", "#/", "\n\"\\", "null"});
        }
    }
    Json values() {
        Json list = Json::array();
        for (uint32_t n = below(6); n > 0; --n) list.push_back(value());
        return list;
    }
    Json names() {
        Json list = Json::array();
        for (uint32_t n = below(4); n > 0; --n) list.push_back(one_of({"a", "b", "c", "", "x-y", "\xc3\xa9"}));
        return list;
    }
    Json small_schema() {
        switch (below(12)) {
            case 0: return true;
            case 1: return false;
            case 2: return Json::object();
            case 3: return Json{{"enum", values()}};
            case 4: return Json{{"const", value()}};
            case 5: return Json{{"type", "string"}, {"pattern", pattern()}};
            case 6: return Json{{"type", "array"}, {"items", Json::object()}, {"maxItems", below(50)}};
            case 7: return Json{{"type", Json::array({"string", "null", "object"})}};
            case 8: return Json{{"type", "number"}, {"multipleOf", number()}, {"minimum", number()}};
            default:
                return Json{
                    {"type", one_of({"string", "integer", "number", "boolean", "null", "object", "array", "odd"})}};
        }
    }
    std::string reference(Json& root) {
        return below(8) == 0 ? one_of({"#", "#/$defs/a", "#/nothing", "#a", "other.json", "#/%25"})
                             : any_with_path(root).second;
    }

    // Any keyword with what may stand there, mostly.
    void add_keyword(Json& root, Json& node) {
        if (!node.is_object()) return;
        const char* key = one_of({"allOf",
                                  "anyOf",
                                  "oneOf",
                                  "prefixItems",
                                  "items",
                                  "additionalProperties",
                                  "unevaluatedProperties",
                                  "propertyNames",
                                  "contains",
                                  "not",
                                  "if",
                                  "then",
                                  "else",
                                  "$ref",
                                  "pattern",
                                  "format",
                                  "enum",
                                  "const",
                                  "type",
                                  "minLength",
                                  "maxLength",
                                  "minItems",
                                  "maxItems",
                                  "minProperties",
                                  "maxProperties",
                                  "minimum",
                                  "maximum",
                                  "exclusiveMinimum",
                                  "exclusiveMaximum",
                                  "multipleOf",
                                  "required",
                                  "properties",
                                  "patternProperties",
                                  "$defs",
                                  "dependentRequired",
                                  "dependentSchemas",
                                  "uniqueItems",
                                  "additionalItems",
                                  "$anchor",
                                  "$id",
                                  "$dynamicRef",
                                  "nullable",
                                  "x-guidance"});
        const std::string_view name = key;
        if (name == "allOf" || name == "anyOf" || name == "oneOf" || name == "prefixItems") {
            Json list = Json::array();
            for (uint32_t n = below(5); n > 0; --n) list.push_back(below(2) == 0 ? small_schema() : *any(root));
            node[key] = std::move(list);
        } else if (name == "$ref" || name == "$dynamicRef") {
            node[key] = reference(root);
        } else if (name == "properties" || name == "patternProperties" || name == "$defs" ||
                   name == "dependentSchemas") {
            Json members = Json::object();
            for (uint32_t n = below(4); n > 0; --n)
                members[name == "patternProperties" ? pattern() : std::string(one_of({"a", "b", "c", "", "~/"}))] =
                    below(2) == 0 ? small_schema() : *any(root);
            node[key] = std::move(members);
        } else if (name == "enum") {
            node[key] = values();
        } else if (name == "const") {
            node[key] = value();
        } else if (name == "required") {
            node[key] = names();
        } else if (name == "dependentRequired") {
            node[key] = Json{{"a", names()}};
        } else if (name == "pattern") {
            node[key] = pattern();
        } else if (name == "format") {
            node[key] = one_of({"date-time", "date", "time", "duration", "email", "hostname", "uuid", "ipv4", "ipv6",
                                "uri", "regex", "password", "odd"});
        } else if (name == "type") {
            node[key] = one_of({"string", "integer", "number", "boolean", "null", "object", "array"});
        } else if (name == "$anchor" || name == "$id") {
            node[key] = one_of({"a", "b", "http://x/y"});
        } else if (name == "uniqueItems" || name == "nullable") {
            node[key] = below(2) == 0;
        } else if (name == "x-guidance") {
            node[key] = Json{{"whitespace_flexible", false}};
        } else if (name.starts_with("min") || name.starts_with("max") || name.starts_with("exclusive") ||
                   name == "multipleOf") {
            node[key] = number();
        } else {
            node[key] = below(2) == 0 ? small_schema() : *any(root);
        }
    }

    void change(Json& root) {
        const auto [node, path] = any_with_path(root);
        switch (below(12)) {
            case 0: *node = small_schema(); return;
            case 1: *node = Json(*any(root)); return;
            case 2: *node = value(); return;
            case 3: *node = Json{{one_of({"allOf", "anyOf", "oneOf"}), Json::array({*node, small_schema()})}}; return;
            case 4:
                *node = Json{{one_of({"items", "not", "additionalProperties", "contains", "propertyNames"}), *node}};
                return;
            case 5: *node = Json{{"$ref", reference(root)}}; return;
            case 6:
                if ((node->is_object() || node->is_array()) && !node->empty())
                    node->erase(std::next(node->begin(), below(uint32_t(node->size()))));
                return;
            case 7: {
                const std::string name = one_of({"a", "b", "c"});
                Json definition = *node;
                if (!root.is_object()) return;
                if (!root.contains("$defs") || !root["$defs"].is_object()) root["$defs"] = Json::object();
                root["$defs"][name] = std::move(definition);
                if (node != &root && below(2) == 0) change_into_reference(root, path, name);
                return;
            }
            case 8:  // more of the same, which is where work grows
                if (node->is_array() && !node->empty()) {
                    const Json last = node->back();
                    for (uint32_t n = below(40); n > 0; --n) node->push_back(last);
                } else if (node->is_object()) {
                    *node = Json{{"type", "object"},
                                 {"properties", Json{{"a", *node}, {"b", *node}}},
                                 {"required", Json::array({"a", "b"})}};
                }
                return;
            default: add_keyword(root, *node);
        }
    }
    // Adding the definition may have moved the nodes: they are found again.
    void change_into_reference(Json& root, const std::string& path, const std::string& name) {
        std::vector<std::pair<Json*, std::string>> nodes;
        collect(root, "#", nodes);
        const auto found = std::ranges::find(nodes, path, [](const auto& one) { return one.second; });
        if (found != nodes.end() && path != "#" && path != "#/$defs") *found->first = Json{{"$ref", "#/$defs/" + name}};
    }

    std::minstd_rand random_;
};

}  // namespace lorad::fuzz
