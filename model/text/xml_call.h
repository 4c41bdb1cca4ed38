// Tool calls as Qwen3-Coder and Qwen3.5 write them:
//   <function=NAME>
//   <parameter=KEY>
//   VALUE
//   </parameter>
//   </function>
// A value is the text between the marks, less one line break at each end; what it is depends on the parameter's schema.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/text/call_reader.h"
#include "proto/schema/argument_types.h"

namespace lorad::model {

inline constexpr std::string_view kXmlFunction = "<function=";

class XmlCallReader final : public CallReader {
  public:
    // needs_known: only a function of these is a call. They outlive the reader.
    XmlCallReader(const std::vector<proto::FunctionTypes>& functions, bool needs_known)
        : functions_(functions), needs_known_(needs_known) {}

    size_t take(std::string_view text) override;
    bool ended() const override { return state_ == State::kEnded; }
    bool failed() const override { return state_ == State::kFailed; }
    bool may_be_call() const override;
    void close() override;

  private:
    enum class State : uint8_t { kOpening, kName, kBetween, kKey, kValue, kEnded, kFailed };
    void take_byte(char byte);
    void end_name();
    void begin_value();
    void take_value_byte();
    void say_text(bool at_end);
    void end_value(size_t n_mark);

    const std::vector<proto::FunctionTypes>& functions_;
    const bool needs_known_;
    const proto::FunctionTypes* function_ = nullptr;  // null: unknown
    State state_ = State::kOpening;
    std::string pending_;  // of what the state reads
    proto::ValueTypes types_;
    bool streams_ = false;  // the value is a text whatever comes: it is said as it comes
    size_t n_said_ = 0;     // bytes of it
    bool any_ = false;      // a parameter has begun
};

}  // namespace lorad::model
