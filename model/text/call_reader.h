// Reads one tool call in a model's text, piece by piece as it comes: a class for each form (call_scanner.h,
// literal_call.h, xml_call.h). One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lorad::model {

// A call's text is held in memory until its name is known.
inline constexpr size_t kHeldCallBytesMax = 1 << 20;

class CallReader {
  public:
    virtual ~CallReader() = default;

    // Takes text up to the call's end; returns how many bytes it took. The result does not depend on how the text is
    // cut.
    virtual size_t take(std::string_view text) = 0;
    virtual bool ended() const = 0;
    // True: it is no call, and what was taken so far is text().
    virtual bool failed() const = 0;
    const std::string& text() const { return text_; }
    // True: it is a call, whatever follows.
    virtual bool is_call() const { return name.has_value(); }
    virtual bool may_be_call() const { return true; }  // as far as it goes, if it was cut there
    // the answer has ended although the call has not: completes its arguments where only the last bracket is missing
    virtual void close() {}

    std::optional<std::string> name;  // once it is known
    std::string arguments;            // JSON text, so far

  protected:
    std::string text_;
};

}  // namespace lorad::model
