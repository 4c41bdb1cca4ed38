// Regex::full_match: the compiled program over a text.
#include <algorithm>
#include <optional>

#include "adapters/files/regex.h"

namespace lorad::adapters {

namespace {

using Instruction = Regex::Instruction;
using Op = Regex::Instruction::Op;
using Program = Regex::Program;
using ByteSet = Regex::ByteSet;

// Follows all ways through the program at once, one byte of the text after the other.
class Matcher {
  public:
    Matcher(const Program& program, const std::vector<ByteSet>& sets, std::string_view text, RegexBudget& budget)
        : program_(program), sets_(sets), text_(text), budget_(budget) {}

    // Returns true if the part of the program that begins at `pc` reaches its kMatch from `begin`: at `end`, or
    // anywhere if there is no `end`.
    bool reaches(size_t pc, size_t begin, std::optional<size_t> end) {
        std::vector<size_t> current{pc}, next;
        std::vector<bool> seen(program_.size());
        for (size_t at = begin; at <= text_.size() && !current.empty(); ++at) {
            next.clear();
            if (!spend(program_.size() / 64 + 1)) return false;
            std::fill(seen.begin(), seen.end(), false);
            while (!current.empty()) {
                const size_t here = current.back();
                current.pop_back();
                if (seen[here]) continue;
                seen[here] = true;
                if (!spend(1)) return false;
                const Instruction& step = program_[here];
                if (step.op == Op::kMatch) {
                    if (!end || *end == at) return true;
                } else if (step.op == Op::kBytes) {
                    if (at < text_.size() && sets_[step.set].test(static_cast<uint8_t>(text_[at])))
                        next.push_back(here + 1);
                } else if (step.op == Op::kSplit) {
                    current.push_back(here + static_cast<size_t>(step.a));
                    current.push_back(here + static_cast<size_t>(step.b));
                } else if (step.op == Op::kJump) {
                    current.push_back(static_cast<size_t>(static_cast<int64_t>(here) + step.a));
                } else if (holds(step, here, at)) {
                    const bool look = step.op == Op::kLookAhead || step.op == Op::kLookBehind;
                    current.push_back(here + (look ? static_cast<size_t>(step.a) : 1));
                }
            }
            std::swap(current, next);
        }
        return false;
    }

    bool exhausted() const { return exhausted_; }

  private:
    bool spend(uint64_t n_steps) {
        if (budget_.n_steps < n_steps) {
            budget_.n_steps = 0;
            exhausted_ = true;
            return false;
        }
        budget_.n_steps -= n_steps;
        return true;
    }

    bool holds(const Instruction& step, size_t pc, size_t at) {
        switch (step.op) {
            case Op::kTextBegin: return at == 0;
            case Op::kTextEnd: return at == text_.size();
            case Op::kWordBorder: return word_border(at);
            case Op::kNotWordBorder: return !word_border(at);
            case Op::kLookAhead: return reaches(pc + 1, at, std::nullopt) != step.negated;
            case Op::kLookBehind:
                for (size_t begin = 0; begin <= at; ++begin) {
                    if (reaches(pc + 1, begin, at)) return !step.negated;
                }
                return step.negated;
            default: return false;
        }
    }

    bool word_border(size_t at) const {
        const bool before = at > 0 && Regex::is_word(text_[at - 1]);
        const bool after = at < text_.size() && Regex::is_word(text_[at]);
        return before != after;
    }

    const Program& program_;
    const std::vector<ByteSet>& sets_;
    std::string_view text_;
    RegexBudget& budget_;
    bool exhausted_ = false;
};

}  // namespace

Result<bool> Regex::full_match(std::string_view text, RegexBudget& budget) const {
    Matcher matcher(program_, sets_, text, budget);
    const bool found = matcher.reaches(0, 0, text.size());
    if (matcher.exhausted()) {
        return make_error(ErrorCode::kAdapterUnsupported, "regular expressions that take too long to match");
    }
    return found;
}

}  // namespace lorad::adapters
