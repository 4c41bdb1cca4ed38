#include "model/tool_calls.h"

#include <algorithm>
#include <array>
#include <utility>

#include "proto/json.h"

namespace lorad::model {
namespace {

// Of Mistral's names, with the marks that may stand between one and its arguments.
constexpr size_t kNameBytesMax = 512;
// So much of a mark is no text that an answer happens to be cut in: "<to" is no HTML, "functo" no word.
constexpr size_t kSureMarkBytes = 3, kSureWordBytes = 6;

// What opens calls; without a mark an answer that begins with '{' may be one.
std::vector<std::string_view> marks_of(ToolFormat family) {
    switch (family) {
        case ToolFormat::kHermes:
            return {"<tool_call>"};
        case ToolFormat::kLlama3:
            return {"<|python_tag|>"};
        case ToolFormat::kMistral:
            return {"[TOOL_CALLS]"};
        case ToolFormat::kPhi:
            return {"<|tool_call|>", "functools"};
        case ToolFormat::kList:
        case ToolFormat::kArguments:
            return {};
    }
    return {};
}

std::string_view end_mark_of(ToolFormat family) {
    if (family == ToolFormat::kHermes) return "</tool_call>";
    if (family == ToolFormat::kPhi) return "<|/tool_call|>";
    return {};
}

// How many bytes at the end of `text` may be the beginning of `mark`.
size_t begun_mark(std::string_view text, std::string_view mark) {
    for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
        if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
    }
    return 0;
}

}  // namespace

std::optional<ToolFormat> tool_format_of(std::string_view name) {
    constexpr std::array<std::pair<std::string_view, ToolFormat>, 10> kNames = {{
        {"hermes", ToolFormat::kHermes},
        {"qwen", ToolFormat::kHermes},
        {"qwen25", ToolFormat::kHermes},
        {"llama3_json", ToolFormat::kLlama3},
        {"llama3", ToolFormat::kLlama3},
        {"mistral", ToolFormat::kMistral},
        {"phi4_mini_json", ToolFormat::kPhi},
        {"phi4", ToolFormat::kPhi},
        {"phi3", ToolFormat::kPhi},
        {"phi", ToolFormat::kPhi},
    }};
    for (const auto& [known, family] : kNames) {
        if (known == name) return family;
    }
    return std::nullopt;
}

bool marks_are_special(ToolFormat family) {
    return family == ToolFormat::kLlama3 || family == ToolFormat::kMistral ||
           family == ToolFormat::kPhi;
}

ToolCallParser::ToolCallParser(ToolFormat family, std::string function, std::vector<std::string> functions)
    : format_(family), function_(std::move(function)), functions_(std::move(functions)) {
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
    if (state_ == State::kCall && scanner_ && !scanner_->may_be_call()) return;
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
            case State::kContent:
                go_on = read_content(at_end, out);
                break;
            case State::kBetween:
                go_on = read_between(at_end, out);
                break;
            case State::kName:
                go_on = read_name(at_end, out);
                break;
            case State::kCall:
                go_on = read_call(out);
                break;
        }
    }
}

void ToolCallParser::say(Output& out, std::string_view text) {
    if (text.empty()) return;
    out.content += std::exchange(blanks_, {});
    out.content += text;
    at_border_ = false;
}

// Text up to a mark is the answer's. True if there is more to read.
bool ToolCallParser::read_content(bool at_end, Output& out) {
    if (at_border_) {
        const size_t begin = std::min(pending_.find_first_not_of(kJsonBlanks), pending_.size());
        blanks_.append(pending_, 0, begin);
        pending_.erase(0, begin);
        if (pending_.empty()) return false;
        if (pending_.front() == '{' && !functions_.empty()) {
            marked_ = false;
            state_ = State::kCall;
            return true;
        }
    }
    size_t at = std::string::npos, n_mark = 0, n_begun = 0, n_sure = 0;
    for (std::string_view mark : marks_of(format_)) {
        const size_t found = pending_.find(mark);
        if (found < at) {
            at = found;
            n_mark = mark.size();
        }
        const size_t n = begun_mark(pending_, mark);
        // Where a call is most likely, at the beginning and behind others, the first letter of a mark says it.
        const bool is_word = mark.front() == 'f';
        const size_t n_enough = is_word ? kSureWordBytes : at_border_ && n == pending_.size() ? 1 : kSureMarkBytes;
        n_begun = std::max(n_begun, n);
        if (n >= n_enough) n_sure = std::max(n_sure, n);
    }
    if (at != std::string::npos) {
        say(out, std::string_view(pending_).substr(0, at));
        opened_ = pending_.substr(at, n_mark);
        pending_.erase(0, at + n_mark);
        marked_ = true;
        state_ = State::kBetween;
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
    say(out, std::exchange(opened_, {}) + (scanner_ ? scanner_->text() : std::string()));
    end_call();
}

// Between calls: brackets, commas, and what ends them.
bool ToolCallParser::read_between(bool at_end, Output& out) {
    const std::string_view end_mark = end_mark_of(format_);
    for (;;) {
        pass(std::min(pending_.find_first_not_of(kJsonBlanks), pending_.size()));
        if (pending_.empty()) return false;
        if (!end_mark.empty() && pending_.starts_with(end_mark)) {
            pending_.erase(0, end_mark.size());
            opened_.clear();
            if (n_calls_ > 0) blanks_.clear();
            at_border_ = true;
            state_ = State::kContent;
            return true;
        }
        bool is_mark = false, may_be_mark = !end_mark.empty() && end_mark.starts_with(pending_);
        for (std::string_view mark : marks_of(format_)) {
            if (!is_mark && pending_.starts_with(mark)) {
                opened_ += mark;
                pending_.erase(0, mark.size());
                is_mark = marked_ = true;
            }
            may_be_mark = may_be_mark || mark.starts_with(pending_);
        }
        if (is_mark) continue;
        if (may_be_mark && !at_end) return false;
        if (may_be_mark && cut_) {
            pending_.clear();
            return false;
        }
        const char next = pending_.front();
        if (next == '{') {
            state_ = State::kCall;
            return true;
        }
        if (next == '[' || next == ']' || next == ',' || next == ';') {
            pass(1);
            if (next == ']' && opened_.empty()) blanks_.clear();
            continue;
        }
        // Mistral's newer form: the function's name, then its arguments. Else something follows the
        // calls that is none.
        state_ = format_ == ToolFormat::kMistral && marked_ ? State::kName : State::kContent;
        if (state_ == State::kContent) {
            at_border_ = true;
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
    bare_name_ = std::move(name);
    state_ = State::kCall;
    return true;
}

bool ToolCallParser::read_call(Output& out) {
    if (pending_.empty()) return false;
    // Of what has to be calls the grammar has seen to it.
    const bool is_sure = marked_ || format_ == ToolFormat::kList;
    if (!scanner_) scanner_.emplace(is_sure ? nullptr : &functions_);
    if (!bare_name_.empty()) {
        // The object itself is the arguments: it is scanned as the value of a call around it.
        if (scanner_->text().empty()) {
            JsonWriter name;
            name.value(bare_name_);
            scanner_->take("{\"name\":" + name.take() + ",\"arguments\":");
        }
        // Its end is the end of the arguments: brackets are counted by the scanner, which then waits
        // for the '}' of the call around it.
        size_t n = 0;
        while (n < pending_.size() && !scanner_->ended() && !scanner_->failed()) {
            n += scanner_->take(std::string_view(pending_).substr(n, 1));
            if (scanner_->value_is_closed()) scanner_->take("}");
        }
        pending_.erase(0, n);
    } else {
        pending_.erase(0, scanner_->take(pending_));
    }
    if (scanner_->failed()) {
        // Something else, and so the answer's text.
        if (named_) {
            end_call();
        } else {
            give_back(out);
        }
        at_border_ = false;
        state_ = State::kContent;
        return !pending_.empty();
    }
    emit(out);
    if (!scanner_->ended()) return false;
    if (scanner_->arguments.empty()) out.calls.push_back({n_calls_ - 1, "", "{}", out.content.size()});
    end_call();
    state_ = State::kBetween;
    return !pending_.empty();
}

void ToolCallParser::end_call() {
    scanner_.reset();
    bare_name_.clear();
    named_ = false;
    n_emitted_ = 0;
}

void ToolCallParser::emit(Output& out) {
    if (!scanner_->is_call()) return;
    ToolCallPiece piece;
    if (!named_) {
        named_ = true;
        opened_.clear();
        blanks_.clear();
        ++n_calls_;
        piece.name = *scanner_->name;
    }
    piece.index = n_calls_ - 1;
    piece.content_before = out.content.size();
    const std::string& arguments = scanner_->arguments;
    // Arguments that are a string are only known when it ends.
    if (!arguments.starts_with('"') && arguments.size() > n_emitted_) {
        piece.arguments = arguments.substr(n_emitted_);
        n_emitted_ = arguments.size();
    }
    if (!piece.name.empty() || !piece.arguments.empty()) out.calls.push_back(std::move(piece));
}

}  // namespace lorad::model
