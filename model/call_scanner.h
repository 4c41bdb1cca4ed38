// One tool call in a model's text: a JSON object with a name and arguments.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::model {

// What JSON has between its parts.
inline constexpr std::string_view kJsonBlanks = " \t\r\n";

// Finds name and arguments in the text of a JSON object as it comes, without building it.
class CallScanner {
  public:
    // With names the object stands where an answer might: only one of them with an object of arguments is a call. They outlive the
    // scanner.
    explicit CallScanner(const std::vector<std::string>* names = nullptr) : names_(names) {}

    // Takes text up to the object's end; returns how many bytes it took.
    size_t take(std::string_view text);
    bool ended() const { return state_ == State::kEnded; }
    // Something else than such an object; what was taken so far is text().
    bool failed() const { return state_ == State::kFailed; }
    const std::string& text() const { return text_; }
    // Inside of an object, behind a value that ends with a bracket.
    bool value_is_closed() const {
        return state_ == State::kValue && in_value_ && depth_ == 0 && !in_string_;
    }

    // It is a call, whatever follows.
    bool is_call() const { return name.has_value() && (names_ == nullptr || arguments.starts_with('{')); }
    bool may_be_call() const;  // as far as it goes, if it was cut there

    std::optional<std::string> name;  // once it is known
    std::string arguments;            // so far

  private:
    enum class State : uint8_t { kBegin, kKeyOrEnd, kKey, kColon, kValue, kEnded, kFailed };
    void take_byte(char byte);
    bool ends_string(char byte);
    void take_value_byte(char byte);
    void end_key();
    void end_value();
    bool is_arguments() const { return key_ == "\"arguments\"" || key_ == "\"parameters\""; }

    const std::vector<std::string>* const names_;
    State state_ = State::kBegin;
    std::string text_, key_, value_;
    uint32_t depth_ = 0;  // of the value
    bool in_string_ = false, escaped_ = false, in_value_ = false;
};

}  // namespace lorad::model
