#include "model/text/xml_call.h"

#include <algorithm>
#include <array>

#include "model/text/call_scanner.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr std::string_view kParameter = "<parameter=", kParameterEnd = "</parameter>", kFunctionEnd = "</function>";
constexpr size_t kXmlNameBytesMax = 512;

bool is_prefix(std::string_view text, std::string_view of) { return of.starts_with(text); }

// The end of a value, also where its own mark was forgotten; the longest of them.
constexpr std::array<std::string_view, 3> kValueEnds = {kParameterEnd, "\n<parameter=", "\n</function>"};
constexpr size_t kValueEndMax = 13;  // with the line break before the first

}  // namespace

size_t XmlCallReader::take(std::string_view text) {
    size_t n = 0;
    while (n < text.size() && !ended() && !failed()) take_byte(text[n++]);
    if (name) {
        text_.clear();  // nobody needs it behind the name
    } else {
        text_.append(text.substr(0, n));
        if (text_.size() > kHeldCallBytesMax) state_ = State::kFailed;
    }
    return n;
}

void XmlCallReader::take_byte(char byte) {
    switch (state_) {
        case State::kOpening:
            if (pending_.empty() && kJsonBlanks.find(byte) != std::string_view::npos) return;
            pending_ += byte;
            if (pending_ == kXmlFunction) {
                pending_.clear();
                state_ = State::kName;
            } else if (!is_prefix(pending_, kXmlFunction)) {
                state_ = State::kFailed;
            }
            return;
        case State::kName:
            if (byte == '>') {
                end_name();
            } else if (byte == '<' || byte == '\n' || pending_.size() >= kXmlNameBytesMax) {
                state_ = State::kFailed;
            } else {
                pending_ += byte;
            }
            return;
        case State::kBetween:
            if (pending_.empty() && kJsonBlanks.find(byte) != std::string_view::npos) return;
            pending_ += byte;
            if (pending_ == kParameter) {
                pending_.clear();
                state_ = State::kKey;
            } else if (pending_ == kFunctionEnd) {
                arguments += any_ ? "}" : "{}";
                state_ = State::kEnded;
            } else if (!is_prefix(pending_, kParameter) && !is_prefix(pending_, kFunctionEnd)) {
                state_ = State::kFailed;
            }
            return;
        case State::kKey:
            if (byte == '>') {
                begin_value();
            } else if (byte == '\n' || pending_.size() >= kXmlNameBytesMax) {
                state_ = State::kFailed;
            } else {
                pending_ += byte;
            }
            return;
        case State::kValue:
            pending_ += byte;
            take_value_byte();
            return;
        case State::kEnded:
        case State::kFailed: return;
    }
}

void XmlCallReader::end_name() {
    const auto known = std::ranges::find(functions_, pending_, &proto::FunctionTypes::name);
    if (pending_.empty() || (needs_known_ && known == functions_.end())) {
        state_ = State::kFailed;
        return;
    }
    if (known != functions_.end()) function_ = &*known;
    name = std::move(pending_);
    pending_.clear();
    state_ = State::kBetween;
}

void XmlCallReader::begin_value() {
    types_ = function_ != nullptr ? function_->of(pending_) : proto::ValueTypes();
    streams_ = types_.is_text_only();
    arguments += (any_ ? ", " : "{") + json_quote(pending_) + ": " + (streams_ ? "\"" : "");
    any_ = true;
    n_said_ = 0;
    pending_.clear();
    state_ = State::kValue;
}

void XmlCallReader::take_value_byte() {
    for (std::string_view end : kValueEnds) {
        if (!pending_.ends_with(end)) continue;
        end_value(end.size());
        if (end == kParameterEnd) return;
        // The mark of what follows has come in full.
        pending_ = end.substr(1);
        state_ = State::kBetween;
        const char last = pending_.back();
        pending_.pop_back();
        take_byte(last);
        return;
    }
    if (streams_) say_text(false);
}

// Sends as much of the value as is text for sure: not the line break that begins it, nor what may be its end, nor half
// of a character.
void XmlCallReader::say_text(bool at_end) {
    const size_t begin = n_said_ == 0 && pending_.starts_with('\n') ? 1 : n_said_;
    size_t end = pending_.size();
    if (!at_end) {
        if (end <= kValueEndMax) return;
        end -= kValueEndMax;
        while (end > begin && (uint8_t(pending_[end]) & 0xC0) == 0x80) --end;
    }
    if (end <= begin) return;
    const std::string quoted = json_quote(std::string_view(pending_).substr(begin, end - begin));
    arguments.append(quoted, 1, quoted.size() - 2);
    n_said_ = end;
}

void XmlCallReader::end_value(size_t n_mark) {
    pending_.resize(pending_.size() - n_mark);
    // A line break of the value's own, before the mark; it is in the mark already where that begins with one.
    if (n_mark == kParameterEnd.size() && pending_.ends_with('\n') && pending_.size() > 1) pending_.pop_back();
    if (n_mark == kParameterEnd.size() && pending_ == "\n") pending_.clear();
    if (streams_) {
        say_text(true);
        arguments += '"';
    } else {
        const std::string_view value = std::string_view(pending_).substr(pending_.starts_with('\n') ? 1 : 0);
        arguments += proto::json_of_written(value, types_);
    }
    pending_.clear();
    state_ = State::kBetween;
}

void XmlCallReader::close() {
    if (state_ == State::kBetween && name) arguments += any_ ? "}" : "{}";
}

bool XmlCallReader::may_be_call() const {
    if (state_ != State::kName || !needs_known_) return true;
    return std::ranges::any_of(functions_,
                               [&](const proto::FunctionTypes& one) { return one.name.starts_with(pending_); });
}

}  // namespace lorad::model
