// The daemon's TextCodec: tokenizer and chat template of a model folder.
#pragma once

#include <filesystem>
#include <list>
#include <mutex>

#include "model/text.h"
#include "server/text_codec.h"

namespace lorad::server {

class ModelText final : public TextCodec {
  public:
    // A folder without tokenizer.json loads: requests then have to bring token ids, and answers
    // have no text.
    static Result<std::unique_ptr<ModelText>> load(const std::filesystem::path& folder);

    bool has_tokenizer() const { return tokenizer_ != nullptr; }
    Result<std::vector<TokenId>> encode(std::string_view text,
                                        bool add_special_tokens) const override;
    Result<std::string> decode(std::span<const TokenId> tokens,
                               bool skip_special_tokens) const override;
    std::string token_bytes(TokenId token) const override;
    Result<std::string> render_chat(const ChatInput& chat) const override;
    std::unique_ptr<TextDecoder> make_decoder(DecodeOptions options) const override;
    Result<std::unique_ptr<TokenConstraint>> make_constraint(const proto::Structure& structure,
                                                             std::span<const TokenId> eos_ids,
                                                             uint32_t vocab_size) const override;
    model::ToolFormat tool_format() const override { return tool_format_; }

  private:
    Result<std::shared_ptr<const model::ChatTemplate>> template_for(const ChatInput& chat) const;

    std::shared_ptr<const model::Tokenizer> tokenizer_;
    std::shared_ptr<const model::ChatTemplate> chat_template_;
    model::ToolFormat tool_format_ = model::ToolFormat::kHermes;

    // Adapters' templates by digest, the last used first.
    struct Compiled {
        std::string digest;
        std::shared_ptr<const model::ChatTemplate> chat_template;
    };
    mutable std::mutex mutex_;
    mutable std::list<Compiled> compiled_;  // under mutex_
};

}  // namespace lorad::server
