// OpenAI's custom tools, whose input is a text, and its choice among allowed tools: to the model they are functions of
// one argument, "input", and the tools that are allowed.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "proto/field_names.h"
#include "proto/generate/generate_response.h"
#include "proto/json/json.h"

namespace lorad::proto {

using ToolNames = std::set<std::string, std::less<>>;

// The error of a tool choice that names an unknown tool.
Error no_such_tool(std::string_view param, std::string_view name);

// The schema of the function that stands for a custom tool, and its arguments with this input.
inline constexpr std::string_view kCustomToolSchema =
    R"({"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false})";
std::string custom_tool_arguments(std::string_view input);
// Returns the input in such arguments, or its beginning if the answer was cut in them; arguments that are no such
// object are returned unchanged.
std::string custom_tool_input(const std::string& arguments);

// A chat's body with functions alone.
struct PlainChat {
    std::string body;  // JSON
    ToolNames custom_tools;
    FieldNames names;                              // from its fields to those of the client's body
    std::vector<std::string> ignored_fields = {};  // unknown ones that `body` has no more
};
// A custom tool, which is `tool` itself or stands in it, as a function; its name. `ignored`: as in check_fields().
Result<std::string> write_custom_tool(const JsonValue& tool, JsonWriter& writer, std::vector<std::string>& ignored);
// Returns nothing if the body has no custom tools or choices. Errors are about the client's fields.
Result<std::optional<PlainChat>> plain_chat(const JsonValue& root);

// Puts an answer's calls of custom tools into their form. Their input comes when it is whole, so that none is half of a
// JSON text. For the parts of one answer, whole or streamed; its HTTP worker.
class CustomCalls {
  public:
    explicit CustomCalls(const ToolNames& custom_tools) : custom_tools_(custom_tools) {}
    void apply(ChoicePart& part);

  private:
    const ToolNames& custom_tools_;
    std::map<uint32_t, std::optional<ToolCallPart>> open_;  // by choice: the call that is being written
};

}  // namespace lorad::proto
