// The types that parameters of functions may have, for calls that are written without JSON, where a text and a number
// look alike.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/json/json.h"

namespace lorad::proto {

// Types that a schema lets a value have. All of them where it says nothing.
struct ValueTypes {
    bool text = true, number = true, boolean = true, null = true, array = true, object = true;

    bool is_text_only() const { return text && !number && !boolean && !null && !array && !object; }
    bool operator==(const ValueTypes&) const = default;
};

struct FunctionTypes {
    std::string name;
    std::vector<std::pair<std::string, ValueTypes>> parameters;  // in the order of the schema

    // Returns the types of a parameter; all types for one that the schema does not know.
    ValueTypes of(std::string_view parameter) const;
};

// The types that a schema allows; `resolve` follows its references.
ValueTypes value_types(const JsonValue& schema, const std::function<JsonValue(const JsonValue&)>& resolve);

// Reads the functions of a request's "tools". Parts of a schema that cannot be read say nothing.
std::vector<FunctionTypes> argument_types(std::string_view tools_json);

// The JSON value that a written one stands for: of a type that it may have, else a text. "True" and "None" count as
// Python writes them.
std::string json_of_written(std::string_view written, const ValueTypes& types);

}  // namespace lorad::proto
