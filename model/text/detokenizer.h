// Text from tokens as they arrive: what push and flush return, joined, is exactly what the
// tokenizer makes of all the tokens at once, cut before the first stop string. One per stream; one
// thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/text.h"

namespace lorad::model {

class Detokenizer {
  public:
    // Empty stop strings are ignored. With include_stop the text is cut behind the stop string.
    Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special_tokens,
                std::vector<std::string> stop_strings = {}, bool include_stop = false);

    // The text that is certain now: whole characters that no later token can change and no stop
    // string can begin with. Often empty. Nothing more comes once stopped(). O(1) amortised.
    // Without may_stop no stop string is looked for in what this token and those before it gave.
    Result<std::string> push(TokenId id, bool may_stop = true);
    // Returns what was held back, at the end of the stream; cut characters become U+FFFD as in the tokenizer's decode.
    Result<std::string> flush();

    bool stopped() const { return stopped_; }
    // The stop string that was found; empty unless stopped().
    const std::string& matched_stop() const { return matched_stop_; }

  private:
    Result<std::string> decode_byte_level(TokenId id);
    Result<std::string> decode_window(bool at_end);
    std::string release(std::string_view text, bool at_end);

    std::shared_ptr<const Tokenizer> tokenizer_;
    bool skip_special_tokens_;
    bool include_stop_;
    bool may_stop_ = true;  // in what comes next
    std::vector<std::string> stop_strings_;

    // Byte-level: the beginning of a character whose rest has not come.
    std::string cut_character_;
    // Other decoders: tokens [0, anchor_end_) were given out and are the context of the others.
    std::vector<TokenId> window_;
    size_t anchor_end_ = 0;
    size_t anchor_text_size_ = 0;  // bytes that window_[0, anchor_end_) decodes to

    std::string held_;  // may be the beginning of a stop string
    std::string matched_stop_;
    bool stopped_ = false;
};

}  // namespace lorad::model
