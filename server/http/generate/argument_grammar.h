// The arguments of a call in forms that are not JSON, as rules of a grammar in Lark's form. One per grammar; one
// thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/text/tool_calls.h"
#include "proto/generate/generate_request.h"

namespace lorad::server {

class ArgumentGrammar {
  public:
    // quote: the mark around Gemma's texts, as a term; quote_text: the same as text.
    ArgumentGrammar(model::ToolFormat format, std::string quote, std::string_view quote_text)
        : format_(format), quote_(std::move(quote)), quote_text_(quote_text) {}

    // The call of a tool, as an expression. A schema that is no plain object leaves its arguments free. `begin` stands
    // before it, in one piece.
    std::string call_of(const proto::CallableTool& tool, std::string_view begin = {});
    // The rules that the expressions name.
    const std::string& rules() const { return rules_; }

  private:
    struct Schemas;  // of one tool
    // The members that an object may have.
    struct Members {
        std::vector<std::pair<std::string, bool>> terms;  // in their order, and whether each is required
        std::string others;                               // a term of any further one; empty: there are none
    };
    bool is_python() const { return format_ == model::ToolFormat::kPython; }
    std::string add_rule(std::string_view kind, std::string_view text, std::string_view attribute = {});
    std::string xml_call(const proto::CallableTool& tool, Schemas& schemas);
    std::string xml_value(const JsonValue& schema, Schemas& schemas);
    std::string xml_text(const JsonValue* schema);
    std::string literal_call(const proto::CallableTool& tool, Schemas& schemas, std::string_view begin);
    std::string value_of(const JsonValue& schema, Schemas& schemas, uint32_t depth);
    std::string value_of_type(std::string_view type, const JsonValue& schema, Schemas& schemas, uint32_t depth);
    std::string constant(const JsonValue& value);
    std::string text_value(const JsonValue* schema);
    std::string array_value(const JsonValue& schema, Schemas& schemas, uint32_t depth);
    std::string object_value(const JsonValue& schema, Schemas& schemas, uint32_t depth);
    Members members_of(const JsonValue& object, Schemas& schemas, uint32_t depth, bool is_arguments);
    std::string listed(const Members& members, std::string_view separator);
    std::string any_value();
    bool is_spent() const;  // the limit on written values is reached
    std::string key_term(std::string_view key, bool is_argument) const;
    std::string_view separator() const { return is_python() ? ", " : ","; }

    const model::ToolFormat format_;
    const std::string quote_;
    const std::string_view quote_text_;
    std::string rules_, any_;
    size_t n_rules_ = 0, n_values_ = 0;
};

}  // namespace lorad::server
