#include "model/text/literal_call.h"

#include <algorithm>
#include <cctype>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr size_t kLiteralNameBytesMax = 512, kWordBytesMax = 4096, kDepthMax = 128;

bool is_blank_byte(char byte) { return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n'; }
bool is_name_byte(char byte) {
    return std::isalnum(uint8_t(byte)) != 0 || byte == '_' || byte == '-' || byte == '.' || byte == '/' ||
           uint8_t(byte) >= 0x80;
}

}  // namespace

size_t LiteralCallReader::take(std::string_view text) {
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

void LiteralCallReader::take_byte(char byte) {
    switch (state_) {
        case State::kPrefix:
            if (pending_.empty() && is_blank_byte(byte)) return;
            if (style_.prefix.empty()) {
                state_ = State::kName;
                take_name_byte(byte);
                return;
            }
            pending_ += byte;
            if (pending_ == style_.prefix) {
                pending_.clear();
                state_ = State::kName;
            } else if (!style_.prefix.starts_with(pending_)) {
                state_ = State::kFailed;
            }
            return;
        case State::kName: take_name_byte(byte); return;
        case State::kKey: take_key_byte(byte); return;
        case State::kValue: take_value_byte(byte); return;
        case State::kWord:
            if (byte == ',' || byte == closer() || is_blank_byte(byte)) {
                end_word();
                if (state_ == State::kAfter) take_after_byte(byte);
            } else if (pending_.size() >= kWordBytesMax) {
                state_ = State::kFailed;
            } else {
                pending_ += byte;
            }
            return;
        case State::kText: take_text_byte(byte); return;
        case State::kEscape:
        case State::kHex: take_escaped_byte(byte); return;
        case State::kAfter: take_after_byte(byte); return;
        case State::kUnwrap:
            if (is_blank_byte(byte)) return;
            state_ = byte == ')' ? State::kEnded : State::kFailed;
            return;
        case State::kEnded:
        case State::kFailed: return;
    }
}

void LiteralCallReader::take_name_byte(char byte) {
    if (is_name_byte(byte) && pending_.size() < kLiteralNameBytesMax) {
        pending_ += byte;
        return;
    }
    if (is_blank_byte(byte)) {  // before the name, or behind it
        if (!pending_.empty() && pending_.back() != ' ') pending_ += ' ';
        return;
    }
    if (pending_.ends_with(' ')) pending_.pop_back();
    const auto known = std::ranges::find(functions_, pending_, &proto::FunctionTypes::name);
    const bool is_open = byte == style_.open && !pending_.empty() && pending_.find(' ') == std::string::npos;
    if (is_open && style_.is_python && pending_ == "print" && known == functions_.end() && !is_wrapped_) {
        is_wrapped_ = true;
        pending_.clear();
        return;
    }
    if (!is_open || (needs_known_ && known == functions_.end())) {
        state_ = State::kFailed;
        return;
    }
    if (known != functions_.end()) function_ = &*known;
    name = std::move(pending_);
    pending_.clear();
    open(Holder::kArguments, '{');
}

char LiteralCallReader::closer() const {
    if (holders_.back() == Holder::kArray) return ']';
    return holders_.back() == Holder::kArguments ? style_.close : '}';
}

void LiteralCallReader::open(Holder holder, char byte) {
    if (holders_.size() >= kDepthMax) {
        state_ = State::kFailed;
        return;
    }
    arguments += byte;
    holders_.push_back(holder);
    any_.push_back(false);
    state_ = holder == Holder::kArray ? State::kValue : State::kKey;
}

void LiteralCallReader::close_holder() {
    arguments += holders_.back() == Holder::kArray ? ']' : '}';
    holders_.pop_back();
    any_.pop_back();
    state_ = !holders_.empty() ? State::kAfter : is_wrapped_ ? State::kUnwrap : State::kEnded;
}

// The name of a member has come whole.
void LiteralCallReader::begin_key(std::string_view key) {
    arguments += (any_.back() ? ", " : "") + json_quote(key) + ": ";
    any_.back() = true;
    key_ = key;
    pending_.clear();
    state_ = State::kValue;
}

// An argument without its name has that of its place.
bool LiteralCallReader::begin_positional() {
    if (!style_.is_python || holders_.back() != Holder::kArguments) return false;
    if (function_ == nullptr || n_positional_ >= function_->parameters.size()) return false;
    begin_key(function_->parameters[n_positional_++].first);
    return true;
}

void LiteralCallReader::take_key_byte(char byte) {
    const char separator = holders_.back() == Holder::kArguments ? style_.key_separator : ':';
    const bool is_literal_text = style_.quote.empty() && holders_.back() == Holder::kArguments;
    if (pending_.empty()) {
        if (is_blank_byte(byte)) return;
        if (byte == closer()) {
            close_holder();
            return;
        }
        if (is_literal_text && std::string_view("\"'[{-0123456789").find(byte) != std::string_view::npos) {
            if (begin_positional()) {
                take_value_byte(byte);
            } else {
                state_ = State::kFailed;
            }
            return;
        }
        if (byte == '"' || byte == '\'') {
            quote_ = byte == '"' ? "\"" : "'";
            escapes_ = is_key_ = true;
            arguments += any_.back() ? ", \"" : "\"";
            any_.back() = true;
            state_ = State::kText;
            return;
        }
    }
    if (byte == separator && !pending_.empty()) {
        while (is_blank_byte(pending_.back())) pending_.pop_back();
        begin_key(std::string(pending_));
        return;
    }
    if (is_literal_text && (byte == ',' || byte == ')')) {  // True, None
        const std::string word = pending_;
        if (!begin_positional()) {
            state_ = State::kFailed;
            return;
        }
        pending_ = word;
        end_word();
        take_after_byte(byte);
        return;
    }
    pending_ += byte;
    if (!style_.quote.empty() && pending_ == style_.quote) {
        quote_ = style_.quote;
        escapes_ = false;
        is_key_ = true;
        pending_.clear();
        arguments += any_.back() ? ", \"" : "\"";
        any_.back() = true;
        state_ = State::kText;
    } else if (pending_.size() > kLiteralNameBytesMax) {
        state_ = State::kFailed;
    }
}

void LiteralCallReader::take_value_byte(char byte) {
    if (pending_.empty()) {
        if (is_blank_byte(byte)) return;
        if (holders_.back() == Holder::kArray) {
            if (byte == ']') {
                close_holder();
                return;
            }
            if (any_.back()) arguments += ", ";
            any_.back() = true;
        }
        if (byte == '{') return open(Holder::kObject, '{');
        if (byte == '[' || (byte == '(' && style_.is_python)) return open(Holder::kArray, '[');
        if (byte == '"' || byte == '\'') {
            quote_ = byte == '"' ? "\"" : "'";
            escapes_ = true;
            is_key_ = false;
            arguments += '"';
            state_ = State::kText;
            return;
        }
        if (byte == ',' || byte == closer()) {  // nothing where a value should be
            arguments += "null";
            state_ = State::kAfter;
            take_after_byte(byte);
            return;
        }
    }
    pending_ += byte;
    if (!style_.quote.empty() && style_.quote.starts_with(pending_)) {
        if (pending_ != style_.quote) return;
        quote_ = style_.quote;
        escapes_ = is_key_ = false;
        pending_.clear();
        arguments += '"';
        state_ = State::kText;
        return;
    }
    state_ = State::kWord;
}

// A number, true, None; a text without quotes otherwise.
void LiteralCallReader::end_word() {
    const bool is_argument = holders_.back() == Holder::kArguments && function_ != nullptr;
    proto::ValueTypes types = is_argument ? function_->of(key_) : proto::ValueTypes();
    // Texts stand in quotes, so this is none where it can be anything else.
    if (!types.is_text_only()) types.number = types.boolean = types.null = true;
    arguments += proto::json_of_written(pending_, types);
    pending_.clear();
    state_ = State::kAfter;
}

void LiteralCallReader::say(std::string_view text) {
    const std::string quoted = json_quote(text);
    arguments.append(quoted, 1, quoted.size() - 2);
}

void LiteralCallReader::end_text() {
    arguments += is_key_ ? "\": " : "\"";
    awaits_separator_ = is_key_;
    state_ = State::kAfter;
}

void LiteralCallReader::take_text_byte(char byte) {
    if (escapes_) {
        if (byte == quote_.front()) {
            end_text();
        } else if (byte == '\\') {
            state_ = State::kEscape;
        } else if (uint8_t(byte) < 0x20 || byte == '"') {
            say(std::string_view(&byte, 1));
        } else {
            arguments += byte;
        }
        return;
    }
    pending_ += byte;
    if (pending_.ends_with(quote_)) {
        pending_.resize(pending_.size() - quote_.size());
        say(pending_);
        pending_.clear();
        end_text();
        return;
    }
    // Bytes that may begin the mark stay; letters of several bytes are none of it.
    size_t n_held = std::min(pending_.size(), quote_.size() - 1);
    while (n_held > 0 && !std::string_view(pending_).ends_with(quote_.substr(0, n_held))) --n_held;
    const size_t n_sure = pending_.size() - n_held;
    for (size_t i = 0; i < n_sure; ++i) {
        const char one = pending_[i];
        if (uint8_t(one) < 0x20 || one == '"' || one == '\\') {
            say(std::string_view(&one, 1));
        } else {
            arguments += one;
        }
    }
    pending_.erase(0, n_sure);
}

void LiteralCallReader::take_escaped_byte(char byte) {
    if (state_ == State::kHex) {
        if (std::isxdigit(uint8_t(byte)) == 0) {
            state_ = State::kFailed;
            return;
        }
        arguments += byte;
        if (--n_hex_ == 0) state_ = State::kText;
        return;
    }
    state_ = State::kText;
    switch (byte) {
        case 'n':
        case 't':
        case 'r':
        case 'b':
        case 'f':
        case '\\':
        case '"':
        case '/': arguments += std::string{'\\', byte}; return;
        case '\'': arguments += byte; return;
        case '\n': return;  // a line that goes on
        case 'u':
        case 'x':
            arguments += byte == 'u' ? "\\u" : "\\u00";
            n_hex_ = byte == 'u' ? 4 : 2;
            state_ = State::kHex;
            return;
        default:  // none that Python knows: both stand as they are
            arguments += "\\\\";
            say(std::string_view(&byte, 1));
            return;
    }
}

void LiteralCallReader::take_after_byte(char byte) {
    if (is_blank_byte(byte)) return;
    if (awaits_separator_) {
        awaits_separator_ = false;
        const char separator = holders_.back() == Holder::kArguments ? style_.key_separator : ':';
        state_ = byte == separator ? State::kValue : State::kFailed;
        key_.clear();
        return;
    }
    if (byte == ',') {
        state_ = holders_.back() == Holder::kArray ? State::kValue : State::kKey;
    } else if (byte == closer() || (byte == ')' && style_.is_python && holders_.back() == Holder::kArray)) {
        close_holder();
    } else {
        state_ = State::kFailed;
    }
}

void LiteralCallReader::close() {
    if (holders_.size() != 1) return;
    if (state_ == State::kWord) end_word();
    const bool is_between =
        (state_ == State::kAfter && !awaits_separator_) || (state_ == State::kKey && pending_.empty());
    if (is_between) close_holder();
}

bool LiteralCallReader::may_be_call() const {
    if (state_ != State::kName || !needs_known_) return true;
    return std::ranges::any_of(functions_,
                               [&](const proto::FunctionTypes& one) { return one.name.starts_with(pending_); });
}

}  // namespace lorad::model
