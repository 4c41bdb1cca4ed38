#include "server/model_text.h"

#include "model/detokenizer.h"
#include "proto/base/log.h"
#include "proto/json.h"

namespace lorad::server {
namespace {

class ModelDecoder final : public TextDecoder {
  public:
    ModelDecoder(std::shared_ptr<const model::Tokenizer> tokenizer, std::vector<std::string> stop)
        : detokenizer_(std::move(tokenizer), true, std::move(stop)) {}
    Result<std::string> push(TokenId token) override { return detokenizer_.push(token); }
    bool found_stop() const override { return detokenizer_.stopped(); }
    Result<std::string> finish() override { return detokenizer_.flush(); }

  private:
    model::Detokenizer detokenizer_;
};

// For a model without tokenizer.
class SilentDecoder final : public TextDecoder {
  public:
    Result<std::string> push(TokenId) override { return std::string(); }
    bool found_stop() const override { return false; }
    Result<std::string> finish() override { return std::string(); }
};

Error no_tokenizer() {
    return make_error(ErrorCode::kInvalidRequest,
                      "the served model has no tokenizer.json: give \"prompt\" as a list of token "
                      "ids to /v1/completions");
}

}  // namespace

Result<std::unique_ptr<ModelText>> ModelText::load(const std::filesystem::path& folder) {
    auto text = std::unique_ptr<ModelText>(new ModelText);
    std::error_code error;
    if (!std::filesystem::exists(folder / "tokenizer.json", error)) {
        log_warn("{} has no tokenizer.json: prompts must be token ids, answers have no text",
                 folder.filename().string());
        return text;
    }
    TRY_ASSIGN(text->tokenizer_, model::Tokenizer::load(folder));
    TRY_ASSIGN(text->chat_template_, model::ChatTemplate::load(folder));
    return text;
}

Result<std::vector<TokenId>> ModelText::encode(std::string_view text,
                                               bool add_special_tokens) const {
    if (!tokenizer_) return no_tokenizer();
    return tokenizer_->encode(text, add_special_tokens);
}

Result<std::string> ModelText::render_chat(const std::string& messages_json) const {
    if (!chat_template_) return no_tokenizer();
    JsonWriter input;
    input.begin_object()
        .key("messages")
        .raw(messages_json)
        .field("add_generation_prompt", true)
        .end_object();
    Result<std::string> rendered = chat_template_->render(input.take());
    if (!rendered.ok() && rendered.error().param.empty()) {
        Error error = rendered.error();
        error.param = "messages";
        return error;
    }
    return rendered;
}

std::unique_ptr<TextDecoder> ModelText::make_decoder(std::vector<std::string> stop) const {
    if (!tokenizer_) return std::make_unique<SilentDecoder>();
    return std::make_unique<ModelDecoder>(tokenizer_, std::move(stop));
}

}  // namespace lorad::server
