// Reads gpt-oss's messages in channels, each "<|start|>ROLE to=RECIPIENT<|channel|>CHANNEL<|message|>TEXT<|end|>". What
// it thinks (analysis), what it says (final, and commentary to nobody) and what it calls (commentary to functions.NAME)
// come apart; no header is part of any of them.
// Text in, pieces out; what comes of it does not depend on how it is cut. One per answer; one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::model {

class HarmonyParser {
  public:
    enum class Kind : uint8_t { kReasoning, kContent, kCall };
    // Pieces come in the order in which they were written; two that follow each other differ in kind or call.
    struct Piece {
        Kind kind = Kind::kContent;
        std::string text;   // of a call: arguments
        std::string name;   // in a call's first piece
        uint32_t call = 0;  // its number
    };

    // The prompt says where the answer begins: behind "<|start|>assistant", or within a message. Without functions
    // nothing is a call: what is said to one is a thought.
    HarmonyParser(std::string_view prompt, bool has_functions);

    std::vector<Piece> push(std::string_view text);
    // Gives what was held back. `cut`: the model was not at its end; what has begun as a mark is no text then.
    std::vector<Piece> finish(bool cut = false);
    uint32_t n_calls() const { return n_calls_; }
    bool in_call() const { return in_body_ && kind_ == Kind::kCall; }

  private:
    void read(bool at_end, std::vector<Piece>& out);
    void take_mark(std::string_view mark, std::vector<Piece>& out);
    void begin_message(std::vector<Piece>& out);
    void end_message(std::vector<Piece>& out);
    void say(std::string_view text, std::vector<Piece>& out);
    bool is_plain() const;

    const bool has_functions_;
    std::string pending_;
    std::string header_;  // of the message that begins
    size_t n_given_ = 0;  // bytes of it that the prompt has
    bool in_body_ = false;
    bool any_message_ = false;
    Kind kind_ = Kind::kContent;
    std::string function_;  // of a call whose first piece has not come
    bool call_is_empty_ = false;
    bool begins_ = false;  // nothing of the message has been said
    bool any_reasoning_ = false, any_content_ = false;
    uint32_t n_calls_ = 0;
};

}  // namespace lorad::model
