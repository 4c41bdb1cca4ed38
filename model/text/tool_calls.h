// Tool calls in what a model writes: text in, answer and calls out, piece by piece as it comes. One
// per answer; one thread. Formats differ in the marks around the calls and in how a call is written; its arguments are
// said as JSON. However the text is cut into pieces, what comes of it is the same.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/call_reader.h"
#include "proto/schema/argument_types.h"

namespace lorad::model {

enum class ToolFormat : uint8_t {
    kHermes,   // <tool_call>{"name": ..., "arguments": ...}</tool_call>; Qwen as well
    kLlama3,   // {"name": ..., "parameters": ...}, several with ';'; <|python_tag|> may come first
    kMistral,  // [TOOL_CALLS][{"name": ..., "arguments": ...}], or [TOOL_CALLS]name{arguments}
    kPhi,      // <|tool_call|>[{...}]<|/tool_call|>, or functools[{...}]
    // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>; Qwen3-Coder, Qwen3.5
    kQwenXml,
    kGemma4,         // <|tool_call>call:NAME{key:<|"|>text<|"|>}<tool_call|>
    kFunctionGemma,  // <start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>
    kPython,         // [NAME(key="text")], also in ```tool_code or between LFM2's marks; Gemma 3, Llama 4
    kHarmony,        // gpt-oss: messages in channels, which model/text/harmony.h reads
    kList,           // [{...}, ...] alone: an answer that has to be calls
    kArguments,      // the arguments alone: an answer that has to be a call of one function
};
// "hermes", "qwen3_xml", "llama3_json", "mistral", "openai" and the like, as vLLM calls its parsers; nothing for other
// names.
std::optional<ToolFormat> tool_format_of(std::string_view name);
// All names that tool_format_of() knows.
std::vector<std::string> tool_format_names();

// Forced calls have the model's own form, by a grammar, not JSON's.
bool forces_own_form(ToolFormat format);

// The marks are special tokens, so that the text has to be decoded with them.
bool marks_are_special(ToolFormat family);

// The new part of one call. Arguments are JSON text, joined from all pieces.
struct ToolCallPiece {
    uint32_t index = 0;
    std::string name;  // in the call's first piece
    std::string arguments;
    size_t content_before = 0;  // bytes of the same output's content that stand before it
};

class ToolCallParser {
  public:
    struct Output {
        std::string content;
        std::vector<ToolCallPiece> calls;
    };

    // `function` is the one that kArguments calls. `functions`: those that there are; with `finds_unmarked` they may
    // also be called without marks, where the answer or what follows a call begins with it.
    explicit ToolCallParser(ToolFormat family, std::string function = {},
                            std::vector<proto::FunctionTypes> functions = {}, bool finds_unmarked = true);

    Output push(std::string_view text);
    // Gives what was held back. `cut`: the model was not at its end; what has begun as a call is no text then.
    Output finish(bool cut = false);
    uint32_t n_calls() const { return n_calls_; }
    bool in_call() const { return named_; }  // whose end has not come

  private:
    // A mark that opens calls.
    struct Mark {
        std::string_view text = {};
        std::string_view end = {};  // what closes them
        bool is_call = false;       // it begins the call itself
        bool is_loose = false;      // other things may stand behind it, too
    };
    static std::vector<Mark> marks_of(ToolFormat family);
    void open_block(const Mark& mark);
    void read(bool at_end, Output& out);
    bool read_content(bool at_end, Output& out);
    bool read_between(bool at_end, Output& out);
    bool read_name(bool at_end, Output& out);
    bool read_call(Output& out);
    bool begins_unmarked() const;
    bool begins_call() const;
    std::unique_ptr<CallReader> make_reader() const;
    void drop_what_was_cut();
    void say(Output& out, std::string_view text);
    void pass(size_t n);
    void give_back(Output& out);
    void end_call();
    void emit(Output& out);

    enum class State : uint8_t { kContent, kBetween, kName, kCall };
    const ToolFormat format_;
    const std::string function_;
    const std::vector<proto::FunctionTypes> functions_;
    const bool finds_unmarked_;
    std::vector<std::string> names_;  // of the functions
    State state_ = State::kContent;
    std::string pending_;  // text that is not decided on
    std::string blanks_;   // before it: nobody's if calls stand on both sides of them
    std::string opened_;   // taken from a mark on, no call of which is known yet
    std::unique_ptr<CallReader> reader_;
    std::string_view block_end_;  // what closes the calls behind the last mark
    size_t n_emitted_ = 0;        // bytes of the present call's arguments
    bool named_ = false;          // the present call's name is out
    bool at_border_ = true;       // of the answer or of a call, and nothing but blanks since
    bool marked_ = false;         // the present call stands behind a mark
    bool in_block_ = false;       // whose end has not come
    bool expects_call_ = false;   // a bracket or a comma stands before it
    bool cut_ = false;
    uint32_t n_calls_ = 0;
};

}  // namespace lorad::model
