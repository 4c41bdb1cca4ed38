// The text side of training data: the model's own chat template and tokenizer, with places.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/text.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "server/chat/fit.h"
#include "server/text_codec.h"

namespace lorad::server::training {

// A chat as the template shows it.
struct TrainingChat {
    std::string text;
    // what `{% generation %}` marks, in bytes of the text; empty: the template marks nothing
    std::vector<model::TextSpan> marked;
    std::vector<std::string> unread;  // fields that the template does not show: "tools"
};

// Any thread; the calls take milliseconds.
class TrainingText {
  public:
    // tokenizer null: only lines of tokens can be read. `end_ids`: tokens that end an answer, of generation_config.json
    // and config.json.
    TrainingText(std::shared_ptr<const model::Tokenizer> tokenizer,
                 std::shared_ptr<const model::ChatTemplate> chat_template, std::vector<TokenId> end_ids);

    bool has_tokenizer() const { return tokenizer_ != nullptr; }
    // Renders as for serving: each message in the form the template takes. The template sees one time in all calls.
    // kInvalidRequest if it refuses the chat.
    Result<TrainingChat> render(const ChatInput& chat) const;
    // Tokenizes the text unchanged, without the tokenizer's own special tokens. kInvalidRequest without a tokenizer.
    Result<model::PlacedTokens> encode(std::string_view text) const;
    // The tokens that the tokenizer puts before a text that is no chat.
    const std::vector<TokenId>& begin_tokens() const { return begin_; }
    // The token that ends a text; negative: there is none.
    TokenId end_token() const { return end_ids_.empty() ? -1 : end_ids_.front(); }
    bool is_end(TokenId token) const;
    // The end tokens as they are spelled in texts.
    const std::vector<std::string>& end_texts() const { return end_texts_; }
    std::string decode(TokenId token) const;  // the vocabulary's spelling; for people

  private:
    std::shared_ptr<const model::Tokenizer> tokenizer_;
    std::shared_ptr<const model::ChatTemplate> chat_template_;
    std::vector<TokenId> end_ids_, begin_;
    std::vector<std::string> end_texts_;
    const int64_t now_;
    mutable ChatFits fits_;
};

}  // namespace lorad::server::training
