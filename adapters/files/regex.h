// Regular expressions in Python's syntax, as adapter configs hold them, matched in time linear in the text for every
// expression: an uploaded adapter cannot make the server backtrack.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::adapters {

// Steps that matching may still take; shared by all expressions of an adapter.
struct RegexBudget {
    uint64_t n_steps = 10'000'000;  // some 80 ms; a large model's modules take two millions
};

// Bytes, not characters; '.' matches all but a newline. Compiled once, then used by any number of threads.
class Regex {
  public:
    // kAdapterInvalid: Python would not compile it either. kAdapterUnsupported: back references, conditionals, flags,
    // atomic groups and possessive repeats, or an expression that is too large. The message says where.
    static Result<Regex> compile(std::string_view pattern);

    // Like re.fullmatch. An error if the budget is used up.
    Result<bool> full_match(std::string_view text, RegexBudget& budget) const;

    // One step of the compiled program; targets are relative to the instruction.
    struct Instruction {
        enum class Op : uint8_t {
            kBytes,  // one byte of `set`
            kSplit,  // go on at both a and b
            kJump,   // go on at a
            kTextBegin,
            kTextEnd,
            kWordBorder,
            kNotWordBorder,
            kLookAhead,   // the program up to a must match from here on ...
            kLookBehind,  // ... or up to here; with `negated`: must not
            kMatch,
        };
        Op op = Op::kMatch;
        bool negated = false;
        int32_t a = 0, b = 0;
        uint32_t set = 0;  // index in sets
    };
    using Program = std::vector<Instruction>;
    using ByteSet = std::bitset<256>;
    static bool is_word(char c);  // \w

  private:
    Program program_;
    std::vector<ByteSet> sets_;
};

}  // namespace lorad::adapters
