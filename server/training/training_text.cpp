#include "server/training/training_text.h"

#include <algorithm>

namespace lorad::server::training {
namespace {

Error needs_tokenizer() {
    return make_error(ErrorCode::kInvalidRequest,
                      "the model has no tokenizer: give lines of {\"tokens\": [...], \"labels\": [...]}");
}

// Returns the tokens that the tokenizer puts before a text when special tokens are asked for.
std::vector<TokenId> begin_of(const model::Tokenizer& tokenizer) {
    constexpr std::string_view kProbe = "a";
    const Result<std::vector<TokenId>> bare = tokenizer.encode(kProbe, false), whole = tokenizer.encode(kProbe, true);
    if (!bare.ok() || !whole.ok()) return {};
    const auto found = std::search(whole->begin(), whole->end(), bare->begin(), bare->end());
    return {whole->begin(), found == whole->end() ? whole->begin() : found};
}

}  // namespace

TrainingText::TrainingText(std::shared_ptr<const model::Tokenizer> tokenizer,
                           std::shared_ptr<const model::ChatTemplate> chat_template, std::vector<TokenId> end_ids)
    : tokenizer_(std::move(tokenizer)),
      chat_template_(std::move(chat_template)),
      end_ids_(std::move(end_ids)),
      now_(model::ChatTemplate::present()) {
    if (!tokenizer_) return;
    begin_ = begin_of(*tokenizer_);
    for (const TokenId id : end_ids_) {
        if (const std::optional<std::string> text = tokenizer_->token_text(id); text && !text->empty())
            end_texts_.push_back(*text);
    }
}

Result<TrainingChat> TrainingText::render(const ChatInput& chat) const {
    if (!tokenizer_ || !chat_template_) return needs_tokenizer();
    const RenderChat try_out = [&](const std::string& input) { return chat_template_->render(input, now_); };
    TRY_ASSIGN(FittedChat fitted, fits_.fit({}, chat, {}, try_out));
    TRY_ASSIGN(model::MarkedText rendered, chat_template_->render_marked(fitted.input, now_));
    return TrainingChat{std::move(rendered.text), std::move(rendered.marked), std::move(fitted.unread)};
}

Result<model::PlacedTokens> TrainingText::encode(std::string_view text) const {
    if (!tokenizer_) return needs_tokenizer();
    return tokenizer_->encode_placed(text);
}

bool TrainingText::is_end(TokenId token) const { return std::ranges::find(end_ids_, token) != end_ids_.end(); }

std::string TrainingText::decode(TokenId token) const {
    return tokenizer_ ? std::string(tokenizer_->token_bytes(token)) : std::string();
}

}  // namespace lorad::server::training
