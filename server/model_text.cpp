#include "server/model_text.h"

#include <algorithm>

#include "model/detokenizer.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/generate_request.h"
#include "proto/json.h"

namespace lorad::server {
namespace {

class ModelDecoder final : public TextDecoder {
  public:
    ModelDecoder(std::shared_ptr<const model::Tokenizer> tokenizer, DecodeOptions options)
        : detokenizer_(std::move(tokenizer), options.skip_special_tokens, std::move(options.stop),
                       options.include_stop),
          n_tokens_min_(options.n_tokens_min) {}
    Result<std::string> push(TokenId token) override {
        return detokenizer_.push(token, ++n_tokens_ > n_tokens_min_);
    }
    bool found_stop() const override { return detokenizer_.stopped(); }
    std::string matched_stop() const override { return detokenizer_.matched_stop(); }
    Result<std::string> finish() override { return detokenizer_.flush(); }

  private:
    model::Detokenizer detokenizer_;
    const uint32_t n_tokens_min_;
    uint32_t n_tokens_ = 0;
};

// For a model without tokenizer.
class SilentDecoder final : public TextDecoder {
  public:
    Result<std::string> push(TokenId) override { return std::string(); }
    bool found_stop() const override { return false; }
    std::string matched_stop() const override { return {}; }
    Result<std::string> finish() override { return std::string(); }
};

// The family whose words the chat template uses.
model::ToolFormat format_of(const model::ChatTemplate& chat_template) {
    if (chat_template.mentions("<|tool_call|>") || chat_template.mentions("functools"))
        return model::ToolFormat::kPhi;
    if (chat_template.mentions("[TOOL_CALLS]")) return model::ToolFormat::kMistral;
    if (chat_template.mentions("<|python_tag|>")) return model::ToolFormat::kLlama3;
    return model::ToolFormat::kHermes;
}

Error no_tokenizer() {
    return make_error(ErrorCode::kInvalidRequest,
                      "the served model has no tokenizer.json: give \"prompt\" as a list of token "
                      "ids to /v1/completions");
}

Error no_helpers() {
    return make_error(ErrorCode::kSandboxUnavailable, "an adapter's own chat template needs a process that could not be started; the server's log says why");
}

// Stands behind the text that is continued, so that its end is found whatever the text is and the
// template writes behind it; the blank is gone where the template trims.
constexpr std::string_view kEndMark = "LORAD-CONTINUES-HERE ";

// Cuts at the mark; where the template trims, the text's own trailing blanks as well.
Result<std::string> cut_at_mark(std::string rendered, std::string_view text) {
    constexpr std::string_view kBlanks = " \t\n\r\f\v";
    std::string_view mark = kEndMark.substr(0, kEndMark.size() - 1);
    size_t end = rendered.rfind(mark);
    if (end == std::string::npos) {
        return make_error(ErrorCode::kInvalidRequest,
                          "continue_final_message: the chat template changes the text of the last "
                          "message, so that it cannot be continued",
                          "continue_final_message");
    }
    bool trims = rendered.compare(end, kEndMark.size(), kEndMark) != 0;
    rendered.resize(end);
    size_t last = text.find_last_not_of(kBlanks);
    if (trims && last != std::string_view::npos)
        rendered.resize(end - std::min(end, text.size() - last - 1));
    return rendered;
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
    text->tool_format_ = format_of(*text->chat_template_);
    return text;
}

Result<std::vector<TokenId>> ModelText::encode(std::string_view text,
                                               bool add_special_tokens) const {
    if (!tokenizer_) return no_tokenizer();
    return tokenizer_->encode(text, add_special_tokens);
}

Result<std::string> ModelText::decode(std::span<const TokenId> tokens,
                                      bool skip_special_tokens) const {
    if (!tokenizer_) return std::string();
    return tokenizer_->decode(tokens, skip_special_tokens);
}

std::string ModelText::token_bytes(TokenId token) const {
    return tokenizer_ ? std::string(tokenizer_->token_bytes(token)) : std::string();
}

void ModelText::isolate(std::unique_ptr<sandbox::HelperPool> helpers, uint32_t n_turns) {
    helpers_ = std::move(helpers);
    turns_ = std::make_unique<sandbox::Turns>(n_turns);
    if (!tokenizer_) return;
    compiler_ = std::make_unique<sandbox::GrammarCompiler>(tokenizer_, helpers_.get(), *turns_, sandbox::GrammarCompiler::Options{});
}

Result<std::string> ModelText::helper_words() const { return tokenizer_ ? tokenizer_->words() : Result<std::string>(std::string()); }

Result<std::string> ModelText::template_source(const ChatInput& chat) const {
    constexpr size_t kSourcesMax = 64;
    {
        std::lock_guard lock(mutex_);
        for (auto entry = sources_.begin(); entry != sources_.end(); ++entry) {
            if (entry->digest != chat.template_digest) continue;
            sources_.splice(sources_.begin(), sources_, entry);
            return entry->source;
        }
    }
    TRY_ASSIGN(std::string source, chat.template_text());
    std::lock_guard lock(mutex_);
    sources_.push_front({chat.template_digest, source});
    if (sources_.size() > kSourcesMax) sources_.pop_back();
    return source;
}

Status ModelText::check_template(std::string_view source) const {
    if (!turns_) return model::ChatTemplate::check_source(source);
    if (!helpers_) return no_helpers();
    TRY_ASSIGN(const sandbox::Turns::Turn turn, turns_->enter({}));
    Result<std::vector<std::string>> done = helpers_->run({sandbox::kCheck, {std::string(source)}});
    return done.ok() ? ok_status() : Status(done.error());
}

// An adapter's own template is not the operator's: it runs in a helper.
Result<std::string> ModelText::render_with(const ChatInput& chat, const std::string& input) const {
    if (chat.template_digest.empty()) return chat_template_->render(input);
    TRY_ASSIGN(const std::string source, template_source(chat));
    if (!turns_) {
        TRY_ASSIGN(const std::shared_ptr<const model::ChatTemplate> own, chat_template_->with_source(source));
        return own->render(input);
    }
    if (!helpers_) return no_helpers();
    TRY_ASSIGN(const std::string tokens, chat_template_->tokens_json());
    TRY_ASSIGN(const sandbox::Turns::Turn turn, turns_->enter(chat.holder));
    TRY_ASSIGN(std::vector<std::string> done, helpers_->run({sandbox::kRender, {source, tokens, input, sandbox::number_field(uint64_t(model::ChatTemplate::present()))}}));
    if (done.size() != 1) return make_error(ErrorCode::kInternal, "a helper says what none should");
    return std::move(done[0]);
}

Result<std::string> ModelText::render_chat(const ChatInput& chat) const {
    if (!chat_template_) return no_tokenizer();
    JsonWriter input;
    input.begin_object().key("messages");
    input.raw(chat.continued_text ? proto::messages_with_appended(chat.messages_json, kEndMark)
                                  : chat.messages_json);
    input.field("add_generation_prompt", chat.add_generation_prompt);
    if (!chat.tools_json.empty()) input.key("tools").raw(chat.tools_json);
    if (!chat.documents_json.empty()) input.key("documents").raw(chat.documents_json);
    if (!chat.kwargs_json.empty()) input.key("extra").raw(chat.kwargs_json);
    input.end_object();
    Result<std::string> rendered = render_with(chat, input.take());
    if (!rendered.ok()) {
        Error error = rendered.error();
        if (error.param.empty()) error.param = "messages";
        return error;
    }
    if (chat.continued_text) return cut_at_mark(std::move(*rendered), *chat.continued_text);
    return rendered;
}

std::unique_ptr<TextDecoder> ModelText::make_decoder(DecodeOptions options) const {
    if (!tokenizer_) return std::make_unique<SilentDecoder>();
    return std::make_unique<ModelDecoder>(tokenizer_, std::move(options));
}

Result<std::unique_ptr<TokenConstraint>> ModelText::make_constraint(
    const proto::Structure& structure, std::span<const TokenId> eos_ids, uint32_t vocab_size,
    const access::Holder& holder) const {
    if (!tokenizer_) return no_tokenizer();
    if (compiler_) return compiler_->compile(structure, eos_ids, vocab_size, holder);
    Result<std::unique_ptr<model::Grammar>> grammar = model::Grammar::create(
        *tokenizer_, sandbox::grammar_kind(structure.kind), structure.source, eos_ids, vocab_size);
    if (!grammar.ok()) {
        return make_error(grammar.error().code,
                          format("{}: {}", structure.param, grammar.error().message),
                          structure.param);
    }
    return std::unique_ptr<TokenConstraint>(
        std::make_unique<sandbox::GrammarConstraint>(std::move(*grammar), vocab_size));
}

}  // namespace lorad::server
