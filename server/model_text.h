// The daemon's TextCodec: tokenizer and chat template of a model folder or GGUF file.
#pragma once

#include <filesystem>
#include <list>

#include "model/files/model_files.h"
#include "model/text/text.h"
#include "proto/base/mutex.h"
#include "server/chat/fit.h"
#include "server/sandbox/grammar_compiler.h"
#include "server/text_codec.h"

namespace lorad::server {

class ModelText final : public TextCodec {
  public:
    // A model without a tokenizer loads: requests then have to bring token ids, and answers
    // have no text. `name` is for the log.
    static Result<std::unique_ptr<ModelText>> load(const std::filesystem::path& folder);
    static Result<std::unique_ptr<ModelText>> load(const model::ModelFiles& files, const std::string& name);

    bool has_tokenizer() const { return tokenizer_ != nullptr; }
    // The model's own; null where it has none.
    const std::shared_ptr<const model::Tokenizer>& tokenizer() const { return tokenizer_; }
    const std::shared_ptr<const model::ChatTemplate>& chat_template() const { return chat_template_; }
    Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const override;
    Result<std::string> decode(std::span<const TokenId> tokens, bool skip_special_tokens) const override;
    std::optional<TokenId> token_id(std::string_view spelling) const override;
    std::string token_bytes(TokenId token) const override;
    Result<RenderedChat> render_chat(const ChatInput& chat) const override;
    std::unique_ptr<TextDecoder> make_decoder(DecodeOptions options) const override;
    Result<std::unique_ptr<TokenConstraint>> make_constraint(const proto::Structure& structure,
                                                             std::span<const TokenId> eos_ids, uint32_t vocab_size,
                                                             const access::Holder& holder) const override;
    model::ToolFormat tool_format() const override { return tool_format_; }

    // From now on helpers compile grammars and render adapters' templates, with these limits; with null neither is done
    // (kSandboxUnavailable). Called before there are requests. Without this call, as in tools, all is done in this
    // process.
    void isolate(std::unique_ptr<sandbox::HelperPool> helpers, sandbox::Admission::Options admission);
    // Returns ok if an adapter's template can be read: as model::ChatTemplate::check_source(), in a helper.
    Status check_template(std::string_view source) const;
    // Passed to the helpers at setup.
    Result<std::string> helper_words() const;

  private:
    // Null: the model's own templates.
    using Templates = std::shared_ptr<const std::vector<model::NamedTemplate>>;
    Result<Templates> own_templates(const ChatInput& chat) const;
    // If helpers render, the user of the result must have a permit.
    Result<RenderChat> renderer(const Templates& own, sandbox::Admission::Permit& permit) const;

    std::shared_ptr<const model::Tokenizer> tokenizer_;
    std::shared_ptr<const model::ChatTemplate> chat_template_;
    model::ToolFormat tool_format_ = model::ToolFormat::kHermes;
    std::unique_ptr<sandbox::HelperPool> helpers_;
    std::unique_ptr<sandbox::Admission> admission_;  // null: nothing is isolated
    std::unique_ptr<sandbox::GrammarCompiler> compiler_;

    // Adapters' templates by digest, the last used first.
    struct Own {
        std::string digest;
        Templates templates;
    };
    mutable Mutex mutex_;
    mutable std::list<Own> own_ GUARDED_BY(mutex_);
    mutable ChatFits fits_;
};

}  // namespace lorad::server
