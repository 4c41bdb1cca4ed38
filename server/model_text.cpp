#include "server/model_text.h"

#include <algorithm>

#include "model/text/detokenizer.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/generate/generate_request.h"
#include "proto/json/json.h"

namespace lorad::server {
namespace {

class ModelDecoder final : public TextDecoder {
  public:
    ModelDecoder(std::shared_ptr<const model::Tokenizer> tokenizer, DecodeOptions options)
        : detokenizer_(std::move(tokenizer), options.skip_special_tokens, std::move(options.stop),
                       options.include_stop),
          n_tokens_min_(options.n_tokens_min) {}
    Result<std::string> push(TokenId token) override { return detokenizer_.push(token, ++n_tokens_ > n_tokens_min_); }
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
    if (chat_template.mentions("<|channel|>") && chat_template.mentions("<|start|>"))
        return model::ToolFormat::kHarmony;
    if (chat_template.mentions("<|tool_call>")) return model::ToolFormat::kGemma4;
    if (chat_template.mentions("<start_function_call>")) return model::ToolFormat::kFunctionGemma;
    if (chat_template.mentions("<|tool_call_start|>") || chat_template.mentions("<|python_start|>"))
        return model::ToolFormat::kPython;
    if (chat_template.mentions("<function=")) return model::ToolFormat::kQwenXml;
    if (chat_template.mentions("<|tool_call|>") || chat_template.mentions("functools")) return model::ToolFormat::kPhi;
    if (chat_template.mentions("[TOOL_CALLS]")) return model::ToolFormat::kMistral;
    if (chat_template.mentions("<|python_tag|>")) return model::ToolFormat::kLlama3;
    // Gemma 3 has no marks of its own: it writes calls as Python or JSON does.
    if (chat_template.mentions("<start_of_turn>")) return model::ToolFormat::kPython;
    return model::ToolFormat::kHermes;
}

Error no_tokenizer() {
    return make_error(ErrorCode::kInvalidRequest,
                      "the served model has no tokenizer: give \"prompt\" as a list of token "
                      "ids to /v1/completions");
}

Error no_helpers() {
    return make_error(
        ErrorCode::kSandboxUnavailable,
        "an adapter's own chat template needs a process that could not be started; the server's log says why");
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
    if (trims && last != std::string_view::npos) rendered.resize(end - std::min(end, text.size() - last - 1));
    return rendered;
}

// A variable that the template's text does not even mention.
void add_unread_kwargs(const ChatInput& chat, const std::function<bool(std::string_view)>& mentions,
                       std::vector<std::string>& unread) {
    if (chat.kwargs_json.empty()) return;
    Result<JsonDocument> kwargs = parse_json(chat.kwargs_json);
    if (!kwargs.ok() || !kwargs->root().is_object()) return;
    for (const JsonMember& variable : *kwargs->root().as_object()) {
        if (unread.size() >= proto::kIgnoredFieldsMax) return;
        if (!mentions(variable.key)) unread.push_back("chat_template_kwargs." + std::string(variable.key));
    }
}

void warn_lost_tools(const model::ChatTemplate& chat_template) {
    const std::optional<bool> shown =
        shows_tools([&](const std::string& input) { return chat_template.render(input); });
    if (shown && !*shown)
        log_warn("the chat template shows no tools to the model: requests with tools say so in the header "
                 "x-lorad-ignored-fields");
}

}  // namespace

Result<std::unique_ptr<ModelText>> ModelText::load(const std::filesystem::path& folder) {
    TRY_ASSIGN(const auto files, model::ModelFiles::open(folder));
    return load(*files, folder.filename().string());
}

Result<std::unique_ptr<ModelText>> ModelText::load(const model::ModelFiles& files, const std::string& name) {
    auto text = std::unique_ptr<ModelText>(new ModelText);
    TRY_ASSIGN(text->tokenizer_, files.tokenizer());
    if (!text->tokenizer_) {
        log_warn("{} has no tokenizer that lorad reads (tokenizer.json, or the fields of a GGUF file): prompts must be "
                 "token ids, answers have no text",
                 name);
        return text;
    }
    TRY_ASSIGN(text->chat_template_, files.chat_template());
    text->tool_format_ = format_of(*text->chat_template_);
    if (text->chat_template_->exists()) warn_lost_tools(*text->chat_template_);
    return text;
}

Result<std::vector<TokenId>> ModelText::encode(std::string_view text, bool add_special_tokens) const {
    if (!tokenizer_) return no_tokenizer();
    return tokenizer_->encode(text, add_special_tokens);
}

Result<std::string> ModelText::decode(std::span<const TokenId> tokens, bool skip_special_tokens) const {
    if (!tokenizer_) return std::string();
    return tokenizer_->decode(tokens, skip_special_tokens);
}

std::optional<TokenId> ModelText::token_id(std::string_view spelling) const {
    return tokenizer_ ? tokenizer_->token_id(spelling) : std::nullopt;
}

std::string ModelText::token_bytes(TokenId token) const {
    return tokenizer_ ? std::string(tokenizer_->token_bytes(token)) : std::string();
}

void ModelText::isolate(std::unique_ptr<sandbox::HelperPool> helpers, sandbox::Admission::Options admission) {
    helpers_ = std::move(helpers);
    admission_ = std::make_unique<sandbox::Admission>(std::move(admission));
    if (!tokenizer_) return;
    compiler_ = std::make_unique<sandbox::GrammarCompiler>(tokenizer_, helpers_.get(), *admission_,
                                                           sandbox::GrammarCompiler::Options{});
}

Result<std::string> ModelText::helper_words() const {
    return tokenizer_ ? tokenizer_->words() : Result<std::string>(std::string());
}

Result<ModelText::Templates> ModelText::own_templates(const ChatInput& chat) const {
    constexpr size_t kOwnMax = 64;
    {
        MutexLock lock(mutex_);
        for (auto entry = own_.begin(); entry != own_.end(); ++entry) {
            if (entry->digest != chat.template_digest) continue;
            own_.splice(own_.begin(), own_, entry);
            return entry->templates;
        }
    }
    TRY_ASSIGN(std::vector<model::NamedTemplate> read, chat.template_sources());
    const auto templates = std::make_shared<const std::vector<model::NamedTemplate>>(std::move(read));
    MutexLock lock(mutex_);
    own_.push_front({chat.template_digest, templates});
    if (own_.size() > kOwnMax) own_.pop_back();
    return templates;
}

Status ModelText::check_template(std::string_view source) const {
    if (!admission_) return model::ChatTemplate::check_source(source);
    if (!helpers_) return no_helpers();
    TRY_ASSIGN(sandbox::Admission::Permit permit, admission_->enter({}));
    Result<std::vector<std::string>> done = helpers_->run({sandbox::kCheck, {std::string(source)}}, permit);
    return done.ok() ? ok_status() : Status(done.error());
}

// An adapter's own templates are not the operator's: they run in a helper.
Result<RenderChat> ModelText::renderer(const Templates& own, sandbox::Admission::Permit& permit) const {
    if (!own) return RenderChat([this](const std::string& input) { return chat_template_->render(input); });
    if (!admission_) {
        TRY_ASSIGN(const std::shared_ptr<const model::ChatTemplate> made, chat_template_->with_sources(*own));
        return RenderChat([made](const std::string& input) { return made->render(input); });
    }
    if (!helpers_) return no_helpers();
    TRY_ASSIGN(std::string tokens, chat_template_->tokens_json());
    return RenderChat(
        [this, own, &permit, tokens = std::move(tokens)](const std::string& input) -> Result<std::string> {
            sandbox::Frame job{
                sandbox::kRender,
                {tokens, input, sandbox::number_field(static_cast<uint64_t>(model::ChatTemplate::present()))}};
            for (const model::NamedTemplate& one : *own) {
                job.fields.push_back(one.name);
                job.fields.push_back(one.source);
            }
            TRY_ASSIGN(std::vector<std::string> done, helpers_->run(job, permit));
            if (done.size() != 1) return make_error(ErrorCode::kInternal, "a helper says what none should");
            return std::move(done[0]);
        });
}

Result<RenderedChat> ModelText::render_chat(const ChatInput& chat) const {
    if (!chat_template_) return no_tokenizer();
    Templates own;
    if (!chat.template_digest.empty()) {
        TRY_ASSIGN(own, own_templates(chat));
        if (own->empty()) own = nullptr;
    }
    // One permit for all renderings, so that waiting does not use up the time for finding the form.
    sandbox::Admission::Permit permit;
    TRY_ASSIGN(const RenderChat render, renderer(own, permit));
    if (own && admission_) {
        TRY_ASSIGN(permit, admission_->enter(chat.holder));
    }
    TRY_ASSIGN(FittedChat fitted, fits_.fit(own ? chat.template_digest : std::string(), chat,
                                            chat.continued_text ? kEndMark : std::string_view(), render));
    Result<std::string> rendered = render(fitted.input);
    if (rendered.ok() && chat.continued_text) rendered = cut_at_mark(std::move(*rendered), *chat.continued_text);
    if (!rendered.ok()) {
        Error error = rendered.error();
        if (error.param.empty()) error.param = "messages";
        if (!fitted.developer.empty() && error.code == ErrorCode::kInvalidRequest) {
            error.param = fitted.developer;
            error.message =
                format("{}: the chat template takes the message neither as \"developer\" nor as \"system\": {}",
                       fitted.developer, error.message);
        }
        return error;
    }
    const auto mentions = [&](std::string_view name) {
        if (!own) return chat_template_->mentions(name);
        return std::ranges::any_of(
            *own, [&](const model::NamedTemplate& one) { return one.source.find(name) != std::string::npos; });
    };
    add_unread_kwargs(chat, mentions, fitted.unread);
    return RenderedChat{std::move(*rendered), std::move(fitted.unread)};
}

std::unique_ptr<TextDecoder> ModelText::make_decoder(DecodeOptions options) const {
    if (!tokenizer_) return std::make_unique<SilentDecoder>();
    return std::make_unique<ModelDecoder>(tokenizer_, std::move(options));
}

Result<std::unique_ptr<TokenConstraint>> ModelText::make_constraint(const proto::Structure& structure,
                                                                    std::span<const TokenId> eos_ids,
                                                                    uint32_t vocab_size,
                                                                    const access::Holder& holder) const {
    if (!tokenizer_) return no_tokenizer();
    if (compiler_) return compiler_->compile(structure, eos_ids, vocab_size, holder);
    Result<std::unique_ptr<model::Grammar>> grammar = model::Grammar::create(
        *tokenizer_, sandbox::grammar_kind(structure.kind), structure.source, eos_ids, vocab_size);
    if (!grammar.ok()) {
        return make_error(grammar.error().code, format("{}: {}", structure.param, grammar.error().message),
                          structure.param);
    }
    return std::unique_ptr<TokenConstraint>(
        std::make_unique<sandbox::GrammarConstraint>(std::move(*grammar), vocab_size));
}

}  // namespace lorad::server
