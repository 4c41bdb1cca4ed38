#include "model/text/call_scanner.h"

#include <algorithm>
#include <array>
#include <utility>

#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr std::array<std::string_view, 6> kKeys = {"\"name\"", "\"arguments\"", "\"parameters\"",
                                                   "\"type\"", "\"id\"",        "\"function\""};

bool is_blank(char byte) { return kJsonBlanks.find(byte) != std::string_view::npos; }

std::optional<std::string> string_of(std::string_view json) {
    Result<JsonDocument> document = parse_json(json);
    if (!document.ok() || !document->root().is_string()) return std::nullopt;
    return std::string(*document->root().as_string());
}

}  // namespace

size_t CallScanner::take(std::string_view text) {
    size_t n = 0;
    while (n < text.size() && !ended() && !failed()) take_byte(text[n++]);
    text_.append(text.substr(0, n));
    if (!is_call() && text_.size() > kHeldCallBytesMax) state_ = State::kFailed;
    return n;
}

void CallScanner::take_byte(char byte) {
    switch (state_) {
        case State::kBegin:
            if (byte == '{') {
                state_ = State::kKeyOrEnd;
            } else if (!is_blank(byte)) {
                state_ = State::kFailed;
            }
            return;
        case State::kKeyOrEnd:
            if (byte == '"') {
                key_ = "\"";
                escaped_ = false;
                state_ = State::kKey;
            } else if (byte == '}') {
                state_ = is_call() ? State::kEnded : State::kFailed;
            } else if (!is_blank(byte) && byte != ',') {
                state_ = State::kFailed;
            }
            return;
        case State::kKey:
            key_ += byte;
            if (ends_string(byte)) end_key();
            return;
        case State::kColon:
            if (byte == ':') {
                state_ = State::kValue;
                value_.clear();
                depth_ = 0;
                in_value_ = in_string_ = escaped_ = false;
            } else if (!is_blank(byte)) {
                state_ = State::kFailed;
            }
            return;
        case State::kValue: take_value_byte(byte); return;
        case State::kEnded:
        case State::kFailed: return;
    }
}

bool CallScanner::ends_string(char byte) {
    const bool was_escaped = std::exchange(escaped_, false);
    if (!was_escaped) escaped_ = byte == '\\';
    return !was_escaped && byte == '"';
}

void CallScanner::take_value_byte(char byte) {
    if (!in_value_ && is_blank(byte)) return;
    if (!in_value_ && names_ != nullptr && is_arguments() && byte != '{') {
        state_ = State::kFailed;
        return;
    }
    in_value_ = true;
    if (in_string_) {
        value_ += byte;
        if (ends_string(byte)) in_string_ = false;
    } else if (depth_ == 0 && (byte == ',' || byte == '}')) {
        end_value();
        if (failed()) return;
        state_ = State::kKeyOrEnd;
        if (byte == '}') take_byte(byte);
        return;
    } else {
        if (byte == '"') in_string_ = true;
        if (byte == '{' || byte == '[') ++depth_;
        if (byte == '}' || byte == ']') {
            if (depth_ == 0) {
                state_ = State::kFailed;
                return;
            }
            --depth_;
        }
        if (depth_ == 0 && !in_string_ && is_blank(byte)) return;  // behind the value
        value_ += byte;
    }
    if (is_arguments()) arguments += byte;
}

// Objects with other members are no calls.
void CallScanner::end_key() {
    bool is_known = std::find(kKeys.begin(), kKeys.end(), key_) != kKeys.end();
    state_ = is_known || is_call() ? State::kColon : State::kFailed;
    if (is_arguments()) arguments.clear();
}

bool CallScanner::may_be_call() const {
    if (names_ == nullptr) return true;
    if (state_ == State::kKey)
        return std::ranges::any_of(kKeys, [&](std::string_view key) { return key.starts_with(key_); });
    if (state_ != State::kValue || key_ != "\"name\"") return true;
    return std::ranges::any_of(*names_,
                               [&](const std::string& known) { return json_quote(known).starts_with(value_); });
}

void CallScanner::end_value() {
    if (key_ == "\"name\"") {
        name = string_of(value_);
        const bool is_unknown =
            name && names_ != nullptr && std::find(names_->begin(), names_->end(), *name) == names_->end();
        if (!name || name->empty() || is_unknown) state_ = State::kFailed;
    } else if (is_arguments() && value_.starts_with('"')) {
        // Some models write the arguments as the JSON text of a string.
        if (std::optional<std::string> text = string_of(value_)) arguments = *text;
    }
}

// The object is scanned as the value of a call around it.
NamedCallReader::NamedCallReader(const std::string& its_name) {
    name = its_name;
    scanner_.take("{\"name\":" + json_quote(its_name) + ",\"arguments\":");
}

size_t NamedCallReader::take(std::string_view text) {
    // Its end is the end of the arguments: brackets are counted by the scanner, which then waits for the '}' of the
    // call around it.
    size_t n = 0;
    while (n < text.size() && !ended() && !failed()) {
        n += scanner_.take(text.substr(n, 1));
        if (scanner_.value_is_closed()) scanner_.take("}");
    }
    text_.append(text.substr(0, n));
    arguments = scanner_.arguments;
    return n;
}

}  // namespace lorad::model
