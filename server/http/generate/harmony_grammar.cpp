#include "server/http/generate/harmony_grammar.h"

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/schema/schema.h"

namespace lorad::server {
namespace {

struct Marks {
    std::string start, channel, message, constrain, end;
    std::string told;  // a message's text up to its end: marks that are no tokens end it where the first of them stands

    explicit Marks(const TextCodec& codec)
        : start(mark_term(codec, "<|start|>")),
          channel(mark_term(codec, "<|channel|>")),
          message(mark_term(codec, "<|message|>")),
          constrain(mark_term(codec, "<|constrain|>")),
          end(mark_term(codec, "<|end|>")),
          told(end.starts_with('<') ? "told_text: WORDS? " + end
                                    : std::string("told_text[lazy]: /(?s:.*)<\\|end\\|>/")) {}
};

std::string structure_rule(const proto::Structure& structure) {
    switch (structure.kind) {
        case proto::StructureKind::kJsonSchema: return "%json " + structure.source;
        case proto::StructureKind::kLark: return "%lark {\n" + structure.source + "\n}";
        case proto::StructureKind::kRegex: break;
    }
    std::string pattern;
    bool is_escaped = false;
    for (char byte : structure.source) {
        if (byte == '/' && !is_escaped) pattern += '\\';
        if (byte == '\n') {
            pattern += "\\n";
        } else {
            pattern += byte;
        }
        is_escaped = byte == '\\' && !is_escaped;
    }
    return "/" + pattern + "/";
}

// A header that calls one of the functions, and its arguments.
std::string call_rules(const proto::GenerateRequest& request, const Marks& marks) {
    std::string calls, rules;
    for (size_t i = 0; i < request.tools.size(); ++i) {
        const proto::CallableTool& tool = request.tools[i];
        calls += format("{}to{} a{}", i == 0 ? "" : " | ", i, i);
        const std::string behind = json_quote("commentary to=functions." + tool.name),
                          before = json_quote(" to=functions." + tool.name);
        rules += format("to{}: ({} {} | {} {} \"commentary\") kind {}\na{}: %json {}\n", i, marks.channel, behind,
                        before, marks.channel, marks.message, i, tool.arguments.whole(proto::kOneLineSwitches));
    }
    return format("call: {}\nkind: (\" \"? ({})? \"json\")? | \" \"\n{}", calls, marks.constrain, rules);
}

}  // namespace

std::string mark_term(const TextCodec& text, std::string_view mark) {
    Result<std::vector<TokenId>> ids = text.encode(mark, false);
    if (!ids.ok() || ids->size() != 1) return json_quote(mark);
    Result<std::string> shown = text.decode(*ids, true);
    return shown.ok() && shown->empty() ? format("<[{}]>", ids->front()) : json_quote(mark);
}

std::optional<proto::Structure> harmony_structure(const proto::GenerateRequest& request, const TextCodec& text) {
    // A text that is continued is an answer already.
    if (request.continued_text) return request.structure;
    const bool has_calls = !request.tools.empty() && !request.tools.front().arguments.root.empty();
    const bool is_forced =
        request.tool_choice == proto::ToolChoice::kRequired || request.tool_choice == proto::ToolChoice::kNamed;
    if (!has_calls && !request.structure) return std::nullopt;
    const Marks marks(text);
    const bool calls = has_calls && (is_forced || !request.structure || request.is_response_format);
    std::string source = format("start: told* {}\n", is_forced ? "call" : calls ? "(final | call)" : "final");
    const auto message = [&](std::string_view channel) {
        return format("{} \"{}\" {} told_text {} \"assistant\"", marks.channel, channel, marks.message, marks.start);
    };
    source += is_forced ? "told: thought\n" : format("told: thought | {}\n", message("commentary"));
    source += format("thought: {}\n{}\nWORDS: /(?s:.+)/\n", message("analysis"), marks.told);
    if (!is_forced) {
        const std::string answer = request.structure ? "answer" : "WORDS?";
        source += format("final: {} \"final\" (\" \"? ({})? \"json\")? {} {}\n", marks.channel, marks.constrain,
                         marks.message, answer);
        if (request.structure) source += format("answer: {}\n", structure_rule(*request.structure));
    }
    if (calls) source += call_rules(request, marks);
    return proto::Structure{proto::StructureKind::kLark, std::move(source),
                            request.structure ? request.structure->param : "tools"};
}

}  // namespace lorad::server
