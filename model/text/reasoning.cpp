#include "model/text/reasoning.h"

#include <algorithm>
#include <utility>

namespace lorad::model {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Bytes at the end that may be the beginning of the mark, with the blanks before them.
size_t n_held(std::string_view text, std::string_view mark) {
    size_t n = std::min(text.size(), mark.size() - 1);
    while (n > 0 && text.substr(text.size() - n) != mark.substr(0, n)) --n;
    size_t end = text.find_last_not_of(kBlanks, text.size() - n - 1);
    if (n == text.size()) return n;
    return end == std::string_view::npos ? text.size() : text.size() - end - 1;
}

}  // namespace

ReasoningParser::Output ReasoningParser::push(std::string_view text) {
    pending_ += text;
    return read(false);
}

ReasoningParser::Output ReasoningParser::finish() { return read(true); }

ReasoningParser::Output ReasoningParser::read(bool at_end) {
    Output out;
    if (state_ == State::kBegin) {
        size_t begin = std::min(pending_.find_first_not_of(kBlanks), pending_.size());
        std::string_view rest = std::string_view(pending_).substr(begin);
        if (rest.starts_with(marks_.open)) {
            pending_.erase(0, begin + marks_.open.size());
            state_ = State::kThinking;
        } else if (at_end || !marks_.open.starts_with(rest)) {
            state_ = State::kAnswer;
        }
    }
    if (state_ == State::kThinking) {
        size_t close = pending_.find(marks_.close);
        size_t n = close;
        if (close == std::string::npos) {
            n = at_end ? pending_.size() : pending_.size() - n_held(pending_, marks_.close);
        } else {
            state_ = State::kAfter;
            size_t last = n == 0 ? std::string::npos : pending_.find_last_not_of(kBlanks, n - 1);
            n = last == std::string::npos ? 0 : last + 1;
        }
        out.reasoning = pending_.substr(0, n);
        pending_.erase(0, close == std::string::npos ? n : close + marks_.close.size());
    }
    if (state_ == State::kAfter) {
        // The blank lines that follow belong to neither.
        pending_.erase(0, std::min(pending_.find_first_not_of(kBlanks), pending_.size()));
        if (!pending_.empty()) state_ = State::kAnswer;
    }
    if (state_ == State::kAnswer) out.content = std::exchange(pending_, {});
    return out;
}

}  // namespace lorad::model
