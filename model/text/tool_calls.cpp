#include "model/text/tool_calls.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>

#include "model/text/call_scanner.h"
#include "model/text/literal_call.h"
#include "model/text/xml_call.h"

namespace lorad::model {
namespace {

// The limit of Mistral's names, with the marks that may stand between a name and its arguments.
constexpr size_t kNameBytesMax = 512;
// So much of a mark is no text that an answer happens to be cut in: "<to" is no HTML, "functo" no word.
constexpr size_t kSureMarkBytes = 3, kSureWordBytes = 6;

bool is_identifier(char byte) { return std::isalpha(uint8_t(byte)) != 0 || byte == '_'; }

// Counts the bytes at the end of `text` that may be the beginning of `mark`.
size_t begun_mark(std::string_view text, std::string_view mark) {
    for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
        if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
    }
    return 0;
}

constexpr std::array<std::pair<std::string_view, ToolFormat>, 24> kNames = {{
    {"hermes", ToolFormat::kHermes},
    {"qwen", ToolFormat::kHermes},
    {"qwen25", ToolFormat::kHermes},
    {"granite4", ToolFormat::kHermes},
    {"llama3_json", ToolFormat::kLlama3},
    {"llama3", ToolFormat::kLlama3},
    {"llama4_json", ToolFormat::kLlama3},
    {"mistral", ToolFormat::kMistral},
    {"phi4_mini_json", ToolFormat::kPhi},
    {"phi4", ToolFormat::kPhi},
    {"phi3", ToolFormat::kPhi},
    {"phi", ToolFormat::kPhi},
    {"granite", ToolFormat::kPhi},
    {"qwen3_xml", ToolFormat::kQwenXml},
    {"qwen3_coder", ToolFormat::kQwenXml},
    {"gemma4", ToolFormat::kGemma4},
    {"functiongemma", ToolFormat::kFunctionGemma},
    {"pythonic", ToolFormat::kPython},
    {"llama4_pythonic", ToolFormat::kPython},
    {"gemma3", ToolFormat::kPython},
    {"lfm2", ToolFormat::kPython},
    {"openai", ToolFormat::kHarmony},
    {"harmony", ToolFormat::kHarmony},
    {"gpt_oss", ToolFormat::kHarmony},
}};

}  // namespace

std::optional<ToolFormat> tool_format_of(std::string_view name) {
    for (const auto& [known, family] : kNames) {
        if (known == name) return family;
    }
    return std::nullopt;
}

std::vector<std::string> tool_format_names() {
    std::vector<std::string> names;
    for (const auto& [name, _] : kNames) names.emplace_back(name);
    return names;
}

bool forces_own_form(ToolFormat format) {
    return format == ToolFormat::kQwenXml || format == ToolFormat::kGemma4 || format == ToolFormat::kFunctionGemma ||
           format == ToolFormat::kPython || format == ToolFormat::kHarmony;
}

bool marks_are_special(ToolFormat family) {
    return family != ToolFormat::kHermes && family != ToolFormat::kQwenXml && family != ToolFormat::kList &&
           family != ToolFormat::kArguments;
}

std::vector<ToolCallParser::Mark> ToolCallParser::marks_of(ToolFormat family) {
    switch (family) {
        case ToolFormat::kHermes: return {{"<tool_call>", "</tool_call>"}};
        case ToolFormat::kLlama3: return {{"<|python_tag|>"}};
        case ToolFormat::kMistral: return {{"[TOOL_CALLS]"}};
        case ToolFormat::kPhi: return {{"<|tool_call|>", "<|/tool_call|>"}, {"functools", "<|/tool_call|>"}};
        case ToolFormat::kQwenXml: return {{"<tool_call>", "</tool_call>"}, {kXmlFunction, "</tool_call>", true}};
        case ToolFormat::kGemma4: return {{"<|tool_call>", "<tool_call|>"}};
        case ToolFormat::kFunctionGemma: return {{"<start_function_call>", "<end_function_call>"}};
        case ToolFormat::kPython:
            return {{"<tool_call>", "</tool_call>"},
                    {"```tool_code", "```"},
                    {"```tool_call", "```"},
                    {"```json", "```", false, true},
                    {"<|tool_call_start|>", "<|tool_call_end|>"},
                    {"<|python_start|>", "<|python_end|>"}};
        case ToolFormat::kHarmony:
        case ToolFormat::kList:
        case ToolFormat::kArguments: return {};
    }
    return {};
}

ToolCallParser::ToolCallParser(ToolFormat family, std::string function, std::vector<proto::FunctionTypes> functions,
                               bool finds_unmarked)
    : format_(family),
      function_(std::move(function)),
      functions_(std::move(functions)),
      finds_unmarked_(finds_unmarked) {
    for (const proto::FunctionTypes& one : functions_) names_.push_back(one.name);
    if (family == ToolFormat::kList) state_ = State::kBetween;
}

ToolCallParser::Output ToolCallParser::push(std::string_view text) {
    Output out;
    pending_ += text;
    read(false, out);
    return out;
}

ToolCallParser::Output ToolCallParser::finish(bool cut) {
    Output out;
    cut_ = cut || format_ == ToolFormat::kList;
    read(true, out);
    if (named_ && reader_ && !cut_) {
        reader_->close();
        emit(out);
    }
    if (!named_) {
        if (cut_) drop_what_was_cut();
        give_back(out);
    }
    if (state_ == State::kContent && n_calls_ == 0) out.content += std::exchange(blanks_, {});
    return out;
}

// A call that is not written to its end, as far as it can be told from an answer.
void ToolCallParser::drop_what_was_cut() {
    if (state_ == State::kContent) return;
    if (state_ == State::kCall && reader_ && !reader_->may_be_call()) return;
    end_call();
    opened_.clear();
    pending_.clear();
}

void ToolCallParser::read(bool at_end, Output& out) {
    if (format_ == ToolFormat::kArguments) {
        if (pending_.empty()) return;
        out.calls.push_back({0, n_calls_ == 0 ? function_ : "", std::exchange(pending_, {})});
        n_calls_ = 1;
        return;
    }
    for (bool go_on = true; go_on;) {
        switch (state_) {
            case State::kContent: go_on = read_content(at_end, out); break;
            case State::kBetween: go_on = read_between(at_end, out); break;
            case State::kName: go_on = read_name(at_end, out); break;
            case State::kCall: go_on = read_call(out); break;
        }
    }
}

void ToolCallParser::say(Output& out, std::string_view text) {
    if (text.empty()) return;
    out.content += std::exchange(blanks_, {});
    out.content += text;
    at_border_ = false;
}

// The answer, or what follows a call, begins as one without marks does.
bool ToolCallParser::begins_unmarked() const {
    if (functions_.empty() || !finds_unmarked_) return false;
    switch (format_) {
        case ToolFormat::kQwenXml:
        case ToolFormat::kGemma4:
        case ToolFormat::kFunctionGemma: return false;
        case ToolFormat::kPython: return pending_.front() == '{' || pending_.front() == '[';
        default: return pending_.front() == '{';
    }
}

// A mark stands at the beginning of what is pending.
void ToolCallParser::open_block(const Mark& mark) {
    block_end_ = mark.end;
    in_block_ = in_block_ || !mark.is_call;
    marked_ = in_block_ && !mark.is_loose;
    if (mark.is_call) return;
    opened_ += mark.text;
    pending_.erase(0, mark.text.size());
}

// Text up to a mark is the answer's. True if there is more to read.
bool ToolCallParser::read_content(bool at_end, Output& out) {
    if (at_border_) {
        const size_t begin = std::min(pending_.find_first_not_of(kJsonBlanks), pending_.size());
        blanks_.append(pending_, 0, begin);
        pending_.erase(0, begin);
        if (pending_.empty()) return false;
        if (begins_unmarked()) {
            marked_ = false;
            block_end_ = marks_of(format_).empty() || format_ == ToolFormat::kPython ? std::string_view()
                                                                                     : marks_of(format_).front().end;
            if (pending_.front() == '[') {
                opened_ = "[";
                pending_.erase(0, 1);
                expects_call_ = true;
                state_ = State::kBetween;
            } else {
                state_ = State::kCall;
            }
            return true;
        }
    }
    size_t at = std::string::npos, n_begun = 0, n_sure = 0;
    Mark first;
    for (const Mark& one : marks_of(format_)) {
        const std::string_view mark = one.text;
        const size_t found = pending_.find(mark);
        if (found < at) {
            at = found;
            first = one;
        }
        const size_t n = begun_mark(pending_, mark);
        // At the beginning and behind other calls, where a call is most likely, the first letter of a mark tells it.
        const bool is_word = mark.front() == 'f' || mark.front() == '`';
        const size_t n_enough = is_word ? kSureWordBytes : at_border_ && n == pending_.size() ? 1 : kSureMarkBytes;
        n_begun = std::max(n_begun, n);
        if (n >= n_enough) n_sure = std::max(n_sure, n);
    }
    if (at != std::string::npos) {
        say(out, std::string_view(pending_).substr(0, at));
        pending_.erase(0, at);
        in_block_ = false;
        open_block(first);
        state_ = first.is_call ? State::kCall : State::kBetween;
        return true;
    }
    if (at_end) {
        if (cut_) pending_.resize(pending_.size() - n_sure);
        n_begun = 0;
    }
    const size_t n_text = pending_.size() - n_begun;
    say(out, std::string_view(pending_).substr(0, n_text));
    pending_.erase(0, n_text);
    return false;
}

// Takes n bytes that stand around calls.
void ToolCallParser::pass(size_t n) {
    (opened_.empty() ? blanks_ : opened_).append(pending_, 0, n);
    pending_.erase(0, n);
}

// No call came of it: all of it is the answer's text.
void ToolCallParser::give_back(Output& out) {
    say(out, std::exchange(opened_, {}) + (reader_ ? reader_->text() : std::string()));
    end_call();
}

// True where the pending text begins a call, which may stand between marks.
bool ToolCallParser::begins_call() const {
    const char next = pending_.front();
    switch (format_) {
        case ToolFormat::kQwenXml: return in_block_ && next == '{';
        case ToolFormat::kGemma4:
        case ToolFormat::kFunctionGemma: return in_block_;
        case ToolFormat::kPython: return next == '{' || ((in_block_ || expects_call_) && is_identifier(next));
        default: return next == '{';
    }
}

// Between calls: brackets, commas, and what ends them.
bool ToolCallParser::read_between(bool at_end, Output& out) {
    for (;;) {
        pass(std::min(pending_.find_first_not_of(kJsonBlanks), pending_.size()));
        if (pending_.empty()) return false;
        if (!block_end_.empty() && pending_.starts_with(block_end_)) {
            pending_.erase(0, block_end_.size());
            opened_.clear();
            if (n_calls_ > 0) blanks_.clear();
            at_border_ = true;
            in_block_ = expects_call_ = false;
            state_ = State::kContent;
            return true;
        }
        bool is_mark = false, may_be_mark = !block_end_.empty() && block_end_.starts_with(pending_);
        for (const Mark& mark : marks_of(format_)) {
            if (!is_mark && pending_.starts_with(mark.text)) {
                open_block(mark);
                is_mark = true;
                if (mark.is_call) {
                    state_ = State::kCall;
                    return true;
                }
            }
            may_be_mark = may_be_mark || mark.text.starts_with(pending_);
        }
        if (is_mark) continue;
        if (may_be_mark && !at_end) return false;
        if (may_be_mark && cut_) {
            pending_.clear();
            return false;
        }
        if (begins_call()) {
            state_ = State::kCall;
            return true;
        }
        const char next = pending_.front();
        if (next == '[' || next == ']' || next == ',' || next == ';') {
            pass(1);
            expects_call_ = next == '[' || next == ',';
            if (next == ']' && opened_.empty()) blanks_.clear();
            continue;
        }
        // Mistral's newer form: the function's name, then its arguments. Else something follows the
        // calls that is none.
        state_ = format_ == ToolFormat::kMistral && marked_ ? State::kName : State::kContent;
        if (state_ == State::kContent) {
            at_border_ = true;
            in_block_ = expects_call_ = false;
            give_back(out);
        }
        return true;
    }
}

bool ToolCallParser::read_name(bool at_end, Output& out) {
    const size_t brace = pending_.find('{');
    if (brace > kNameBytesMax) {
        if (pending_.size() <= kNameBytesMax && (!at_end || cut_)) return false;
        give_back(out);
        state_ = State::kContent;
        return true;
    }
    std::string name = pending_.substr(0, brace);
    name.resize(std::min(name.size(), name.find("[ARGS]")));
    name.resize(std::min(name.size(), name.find("[CALL_ID]")));
    name.erase(name.find_last_not_of(kJsonBlanks) + 1);
    pending_.erase(0, brace);
    if (!name.empty()) reader_ = std::make_unique<NamedCallReader>(name);
    state_ = State::kCall;
    return true;
}

// Makes the reader of the call that begins with what is pending. The grammar has checked text that has to be a call.
std::unique_ptr<CallReader> ToolCallParser::make_reader() const {
    const bool is_sure = marked_ || format_ == ToolFormat::kList;
    if (pending_.front() != '{') {
        switch (format_) {
            case ToolFormat::kQwenXml: return std::make_unique<XmlCallReader>(functions_, !is_sure);
            case ToolFormat::kGemma4: return std::make_unique<LiteralCallReader>(kGemma4Style, functions_, !is_sure);
            case ToolFormat::kFunctionGemma:
                return std::make_unique<LiteralCallReader>(kFunctionGemmaStyle, functions_, !is_sure);
            case ToolFormat::kPython: return std::make_unique<LiteralCallReader>(kPythonStyle, functions_, !is_sure);
            default: break;
        }
    }
    return std::make_unique<CallScanner>(is_sure ? nullptr : &names_);
}

bool ToolCallParser::read_call(Output& out) {
    if (pending_.empty()) return false;
    if (!reader_) reader_ = make_reader();
    pending_.erase(0, reader_->take(pending_));
    if (reader_->failed()) {
        emit(out);
        // Something else, and so the answer's text.
        if (named_) {
            end_call();
        } else {
            give_back(out);
        }
        at_border_ = in_block_ = expects_call_ = false;
        state_ = State::kContent;
        return !pending_.empty();
    }
    emit(out);
    if (!reader_->ended()) return false;
    if (reader_->arguments.empty()) out.calls.push_back({n_calls_ - 1, "", "{}", out.content.size()});
    end_call();
    expects_call_ = false;
    state_ = State::kBetween;
    return !pending_.empty();
}

void ToolCallParser::end_call() {
    reader_.reset();
    named_ = false;
    n_emitted_ = 0;
}

void ToolCallParser::emit(Output& out) {
    if (!reader_->is_call()) return;
    ToolCallPiece piece;
    if (!named_) {
        named_ = true;
        opened_.clear();
        blanks_.clear();
        ++n_calls_;
        piece.name = *reader_->name;
    }
    piece.index = n_calls_ - 1;
    piece.content_before = out.content.size();
    const std::string& arguments = reader_->arguments;
    // Arguments that are a string are only known when it ends.
    if (!arguments.starts_with('"') && arguments.size() > n_emitted_) {
        piece.arguments = arguments.substr(n_emitted_);
        n_emitted_ = arguments.size();
    }
    if (!piece.name.empty() || !piece.arguments.empty()) out.calls.push_back(std::move(piece));
}

}  // namespace lorad::model
