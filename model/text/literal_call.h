// Tool calls whose arguments are written as literals: call:NAME{key:<|"|>text<|"|>,n:1} as Gemma 4 does (FunctionGemma
// with <escape>), NAME(key="text", n=1) as Python does (Gemma 3, LFM2, Llama 4). Said again as JSON while they come.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "model/text/call_reader.h"
#include "proto/schema/argument_types.h"

namespace lorad::model {

// The spelling of calls in one form.
struct LiteralStyle {
    std::string_view prefix;  // before the name
    char open, close;         // around the arguments
    char key_separator;       // behind an argument's name
    std::string_view quote;   // around texts, with nothing escaped between; empty: as Python writes them
    bool is_python = false;   // print(CALL) is CALL; arguments may stand without their names
};
inline constexpr LiteralStyle kGemma4Style{"call:", '{', '}', ':', "<|\"|>"};
inline constexpr LiteralStyle kFunctionGemmaStyle{"call:", '{', '}', ':', "<escape>"};
inline constexpr LiteralStyle kPythonStyle{"", '(', ')', '=', "", true};

class LiteralCallReader final : public CallReader {
  public:
    // needs_known: only a function of these is a call. They outlive the reader.
    LiteralCallReader(const LiteralStyle& style, const std::vector<proto::FunctionTypes>& functions, bool needs_known)
        : style_(style), functions_(functions), needs_known_(needs_known) {}

    size_t take(std::string_view text) override;
    bool ended() const override { return state_ == State::kEnded; }
    bool failed() const override { return state_ == State::kFailed; }
    bool may_be_call() const override;
    void close() override;

  private:
    enum class State : uint8_t {
        kPrefix,
        kName,
        kKey,
        kValue,
        kWord,
        kText,
        kEscape,
        kHex,
        kAfter,
        kUnwrap,
        kEnded,
        kFailed
    };
    enum class Holder : uint8_t { kArguments, kObject, kArray };

    void take_byte(char byte);
    void take_name_byte(char byte);
    void take_key_byte(char byte);
    void take_value_byte(char byte);
    void take_text_byte(char byte);
    void take_escaped_byte(char byte);
    void take_after_byte(char byte);
    void begin_key(std::string_view key);
    bool begin_positional();
    void end_word();
    void say(std::string_view text);
    void end_text();
    void open(Holder holder, char byte);
    void close_holder();
    char closer() const;

    const LiteralStyle style_;
    const std::vector<proto::FunctionTypes>& functions_;
    const bool needs_known_;
    const proto::FunctionTypes* function_ = nullptr;
    State state_ = State::kPrefix;
    std::string pending_;
    std::vector<Holder> holders_;
    std::vector<bool> any_;          // whether each has something
    std::string_view quote_;         // of the text that is being read
    bool escapes_ = false;           // it is in quotes of Python's or JSON's
    bool is_key_ = false;            // it is the name of an object's member
    bool awaits_separator_ = false;  // a member's name in quotes has ended
    bool is_wrapped_ = false;        // in print()
    uint32_t n_hex_ = 0;             // digits of an escape that are to come
    size_t n_positional_ = 0;
    std::string key_;  // of the argument that is being read
};

}  // namespace lorad::model
