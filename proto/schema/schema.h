// JSON schemas as clients send them, said again for the grammar compiler: references are to definitions
// at the root, what only describes is left out, and what no grammar can hold is left out and listed.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/json/json.h"

namespace lorad::proto {

inline constexpr size_t kNotEnforcedMax = 64;  // keywords that are listed

// Members of a root for the grammar compiler. Blanks of answers are as people and programs write them, but bounded;
// calls stand on one line, as models are taught to write them. What the compiler cannot hold it lets go: it is listed
// here.
inline constexpr std::string_view kAnswerSwitches =
    R"("x-guidance":{"whitespace_pattern":"[ \\t]{1,2}|\\r?\\n[ \\t]{0,24}","lenient":true})";
inline constexpr std::string_view kOneLineSwitches = R"("x-guidance":{"whitespace_pattern":"[ ]","lenient":true})";

struct SchemaUse {
    bool is_arguments = false;  // for a function's arguments: an object, even if the schema does not say so
    bool is_closed = false;     // objects that do not speak of further properties have none
    std::string definition_prefix = "d";
    std::string path_prefix = {};  // path of the schema's text, if it is a document of its own
};

struct GrammarSchema {
    std::string root;  // JSON text, whose references look for the definitions
    std::vector<std::pair<std::string, std::string>> definitions = {};  // name and JSON text

    // One schema; an object gets `members`, too: "\"key\":value".
    std::string whole(std::string_view members = {}) const;
};

// kInvalidRequest for invalid schemas and for references to nothing, kUnsupportedParameter for switches. The paths of
// keywords that answers need not obey are added to `not_enforced`, up to kNotEnforcedMax. Time and memory grow with the
// text, whatever it refers to.
Result<GrammarSchema> schema_for_grammar(const JsonValue& schema, const SchemaUse& use,
                                         std::vector<std::string>& not_enforced);

// A regular expression that matches this text alone.
std::string escaped_pattern(std::string_view text);

}  // namespace lorad::proto
