// Tool calls in JSON: an object with a name and arguments, or a name and the object of its arguments.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/call_reader.h"

namespace lorad::model {

// The blanks that JSON allows between its parts.
inline constexpr std::string_view kJsonBlanks = " \t\r\n";

// Finds name and arguments in the text of a JSON object as it comes, without building it.
class CallScanner final : public CallReader {
  public:
    // With names the object stands where an answer might: only one of them with an object of arguments is a call. They
    // outlive the scanner.
    explicit CallScanner(const std::vector<std::string>* names = nullptr) : names_(names) {}

    size_t take(std::string_view text) override;
    bool ended() const override { return state_ == State::kEnded; }
    bool failed() const override { return state_ == State::kFailed; }
    // Inside of an object, behind a value that ends with a bracket.
    bool value_is_closed() const { return state_ == State::kValue && in_value_ && depth_ == 0 && !in_string_; }

    bool is_call() const override { return name.has_value() && (names_ == nullptr || arguments.starts_with('{')); }
    bool may_be_call() const override;

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
    std::string key_, value_;
    uint32_t depth_ = 0;  // of the value
    bool in_string_ = false, escaped_ = false, in_value_ = false;
};

// The object that is a named function's arguments: what follows the name in Mistral's newer form.
class NamedCallReader final : public CallReader {
  public:
    explicit NamedCallReader(const std::string& its_name);
    size_t take(std::string_view text) override;
    bool ended() const override { return scanner_.ended(); }
    bool failed() const override { return scanner_.failed(); }

  private:
    CallScanner scanner_;
};

}  // namespace lorad::model
