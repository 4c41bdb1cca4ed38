// Bridges the C ABI of model/text to values and Results.
#include "model/text/text.h"

#include <algorithm>
#include <ctime>
#include <fstream>

#include "model/text/lorad_text.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/json/json.h"

namespace lorad::model {

namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxTokenizerBytes = 256u << 20;
constexpr uintmax_t kMaxTemplateBytes = 4u << 20;
constexpr uintmax_t kMaxConfigBytes = 64u << 20;  // added_tokens_decoder may list a whole vocabulary

LoradText as_text(std::string_view text) {
    return {reinterpret_cast<const uint8_t*>(text.data() == nullptr ? "" : text.data()), text.size()};
}

LoradText as_optional(const std::optional<std::string>& text) {
    return text ? as_text(std::string_view(*text)) : LoradText{nullptr, 0};
}

std::string take(LoradBytes bytes) {
    std::string text(reinterpret_cast<const char*>(bytes.data), bytes.size);
    lorad_text_free_bytes(bytes);
    return text;
}

// A panic's own text says nothing to clients, and may hold what they sent: a part of it is for the log.
Error panic_error(const std::string& text) {
    constexpr size_t kLoggedBytes = 200;
    log_warn("the text library failed on an input: {}", std::string_view(text).substr(0, kLoggedBytes));
    return make_error(ErrorCode::kInputTooComplex,
                      "the library that reads this fails on it; nothing but this request is harmed");
}

Error request_error(int32_t code, LoradBytes bytes) {
    std::string message = take(bytes);
    switch (code) {
        case LORAD_TEXT_PANIC: return panic_error(message);
        case LORAD_TEXT_TOO_COMPLEX: return make_error(ErrorCode::kInputTooComplex, std::move(message));
        case LORAD_TEXT_NO_MEMORY: return make_error(ErrorCode::kOutOfMemory, std::move(message));
        case LORAD_TEXT_TEMPLATE_RAISED: return make_error(ErrorCode::kInvalidRequest, std::move(message), "messages");
        case LORAD_TEXT_TEMPLATE_FAILED:
            return make_error(ErrorCode::kInvalidRequest, format("chat template: {}", message), "messages");
        case LORAD_TEXT_NO_SUCH_TEMPLATE:
            return make_error(ErrorCode::kUnsupportedParameter, format("chat_template: {}", message), "chat_template");
        case LORAD_TEXT_NO_TEMPLATE: return make_error(ErrorCode::kInvalidRequest, std::move(message), "messages");
        default: return make_error(ErrorCode::kInvalidRequest, std::move(message));
    }
}

// The file's content, nothing when there is no such file.
Result<std::optional<std::string>> read_optional(const fs::path& path, uintmax_t limit) {
    std::error_code ec;
    if (!fs::exists(path, ec)) return std::optional<std::string>();
    if (!fs::is_regular_file(path, ec)) {
        return make_error(ErrorCode::kInvalidModel, format("{}: not a regular file", path.string()));
    }
    const uintmax_t size = fs::file_size(path, ec);
    if (ec) {
        return make_error(ErrorCode::kInvalidModel, format("{}: cannot be read: {}", path.string(), ec.message()));
    }
    if (size > limit) {
        return make_error(ErrorCode::kInvalidModel,
                          format("{}: {} bytes, expected at most {}", path.string(), size, limit));
    }
    std::ifstream file(path, std::ios::binary);
    std::string content(size, '\0');
    if (!file.read(content.data(), static_cast<std::streamsize>(size))) {
        return make_error(ErrorCode::kInvalidModel, format("{}: cannot be read", path.string()));
    }
    return std::optional<std::string>(std::move(content));
}

// The form of chat_template.json for templates with names.
std::string named_json(std::span<const NamedTemplate> sources) {
    JsonWriter writer;
    writer.begin_object().key("chat_template").begin_array();
    for (const NamedTemplate& one : sources)
        writer.begin_object().field("name", one.name).field("template", one.source).end_object();
    return writer.end_array().end_object().take();
}

std::string joined_sources(std::span<const NamedTemplate> sources) {
    std::string joined;
    for (const NamedTemplate& one : sources) joined += one.source;
    return joined;
}

// The default one of chat_template.json, where that has no other.
std::optional<std::string> single_template(const std::optional<std::string>& json) {
    if (!json) return std::nullopt;
    const Result<JsonDocument> document = parse_json(*json);
    if (!document.ok()) return std::nullopt;
    const std::optional<JsonValue> value = document->root().find("chat_template");
    if (!value || !value->is_string()) return std::nullopt;
    return std::string(*value->as_string());
}

Result<std::vector<NamedTemplate>> read_named_templates(const fs::path& model_dir) {
    std::vector<NamedTemplate> sources;
    for (const std::string& name : template_names_in(model_dir)) {
        const fs::path file = model_dir / kNamedTemplatesFolder / (name + std::string(kTemplateSuffix));
        TRY_ASSIGN(std::optional<std::string> source, read_optional(file, kMaxTemplateBytes));
        if (source) sources.push_back({name, std::move(*source)});
    }
    return sources;
}

}  // namespace

void give_up_text_reserve() { lorad_text_give_up_reserve(); }

bool is_template_name(std::string_view name) {
    constexpr size_t kBytesMax = 64;
    return !name.empty() && name.size() <= kBytesMax && name.front() != '.' && std::ranges::all_of(name, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' ||
               c == '.';
    });
}

std::vector<std::string> template_names_in(const fs::path& dir) {
    std::vector<std::string> names;
    std::error_code error;
    fs::directory_iterator entry(dir / kNamedTemplatesFolder, error);
    for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
        const fs::path& file = entry->path();
        if (file.extension() == kTemplateSuffix && is_template_name(file.stem().native()))
            names.push_back(file.stem().native());
    }
    std::ranges::sort(names);
    if (names.size() > kNamedTemplatesMax) names.resize(kNamedTemplatesMax);
    return names;
}

bool text_reserve_is_whole() { return lorad_text_reserve_is_whole() != 0; }

Result<std::shared_ptr<const Tokenizer>> Tokenizer::load(const fs::path& model_dir) {
    const fs::path path = model_dir / "tokenizer.json";
    TRY_ASSIGN(const std::optional<std::string> json, read_optional(path, kMaxTokenizerBytes));
    if (!json) {
        return make_error(ErrorCode::kInvalidModel,
                          format("{}: not found; lorad needs the tokenizer in this form", path.string()));
    }
    return from_json(*json, path.string());
}

Result<std::shared_ptr<const Tokenizer>> Tokenizer::from_json(std::string_view json, std::string_view name) {
    LoradTokenizer* handle = nullptr;
    LoradBytes error{};
    if (lorad_tokenizer_new(as_text(json), &handle, &error) != LORAD_TEXT_OK) {
        return make_error(ErrorCode::kInvalidModel, format("{}: not a usable tokenizer: {}", name, take(error)));
    }
    return std::shared_ptr<const Tokenizer>(new Tokenizer(handle));
}

Tokenizer::Tokenizer(LoradTokenizer* handle)
    : handle_(handle), decoder_kind_(static_cast<DecoderKind>(lorad_tokenizer_decoder(handle))) {}

Tokenizer::~Tokenizer() { lorad_tokenizer_free(handle_); }

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
    LoradIds ids{};
    LoradBytes error{};
    const int32_t code = lorad_tokenizer_encode(handle_, as_text(text), add_special_tokens, &ids, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    std::vector<TokenId> result(ids.data, ids.data + ids.size);
    lorad_text_free_ids(ids);
    return result;
}

Result<PlacedTokens> Tokenizer::encode_placed(std::string_view text) const {
    LoradIds ids{}, begins{};
    LoradBytes error{};
    const int32_t code = lorad_tokenizer_encode_placed(handle_, as_text(text), &ids, &begins, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    PlacedTokens placed{{ids.data, ids.data + ids.size}, {begins.data, begins.data + begins.size}};
    lorad_text_free_ids(ids);
    lorad_text_free_ids(begins);
    return placed;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
    static_assert(sizeof(TokenId) == sizeof(uint32_t));
    LoradBytes text{};
    LoradBytes error{};
    // A negative id reads as one far beyond the vocabulary, which adds nothing.
    const int32_t code = lorad_tokenizer_decode(handle_, reinterpret_cast<const uint32_t*>(ids.data()), ids.size(),
                                                skip_special_tokens, &text, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return take(text);
}

uint32_t Tokenizer::vocab_size() const { return lorad_tokenizer_vocab_size(handle_); }

std::optional<TokenId> Tokenizer::token_id(std::string_view token) const {
    const int64_t id = lorad_tokenizer_token_id(handle_, as_text(token));
    if (id < 0) return std::nullopt;
    return static_cast<TokenId>(id);
}

std::optional<std::string> Tokenizer::token_text(TokenId id) const {
    LoradBytes text{};
    LoradBytes error{};
    if (lorad_tokenizer_token_text(handle_, static_cast<uint32_t>(id), &text, &error) != LORAD_TEXT_OK) {
        lorad_text_free_bytes(error);
        return std::nullopt;
    }
    return take(text);
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
    const LoradText bytes = lorad_tokenizer_token_bytes(handle_, static_cast<uint32_t>(id));
    return {reinterpret_cast<const char*>(bytes.data), bytes.size};
}

Result<std::string> Tokenizer::words() const {
    LoradBytes list{};
    LoradBytes error{};
    const int32_t code = lorad_tokenizer_words(handle_, &list, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return take(list);
}

Result<std::shared_ptr<const Words>> Words::from_list(std::string_view list) {
    LoradWords* handle = nullptr;
    LoradBytes error{};
    const int32_t code = lorad_words_new(as_text(list), &handle, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return std::shared_ptr<const Words>(new Words(handle));
}

Words::~Words() { lorad_words_free(handle_); }

bool Tokenizer::is_special(TokenId id) const {
    return (lorad_tokenizer_token_flags(handle_, static_cast<uint32_t>(id)) & LORAD_TOKEN_SPECIAL) != 0;
}

bool Tokenizer::is_byte(TokenId id) const {
    return (lorad_tokenizer_token_flags(handle_, static_cast<uint32_t>(id)) & LORAD_TOKEN_BYTE) != 0;
}

bool Tokenizer::exists(TokenId id) const {
    return (lorad_tokenizer_token_flags(handle_, static_cast<uint32_t>(id)) & LORAD_TOKEN_UNKNOWN) == 0;
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::load(const fs::path& model_dir) {
    TRY_ASSIGN(const auto config, read_optional(model_dir / "tokenizer_config.json", kMaxConfigBytes));
    TRY_ASSIGN(const auto tokens, read_optional(model_dir / "special_tokens_map.json", kMaxConfigBytes));
    TRY_ASSIGN(const auto jinja, read_optional(model_dir / "chat_template.jinja", kMaxTemplateBytes));
    TRY_ASSIGN(const auto json, read_optional(model_dir / "chat_template.json", kMaxTemplateBytes));
    TRY_ASSIGN(std::vector<NamedTemplate> named, read_named_templates(model_dir));
    std::optional<std::string> one = jinja, several = json;
    if (!named.empty()) {
        if (!one) one = single_template(json);
        if (one) named.push_back({std::string(kDefaultTemplate), std::move(*one)});
        one.reset();
        several = named_json(named);
    }
    LoradTemplate* handle = nullptr;
    LoradBytes error{};
    if (lorad_template_new(as_optional(config), as_optional(tokens), as_optional(one), as_optional(several), &handle,
                           &error) != LORAD_TEXT_OK) {
        return make_error(ErrorCode::kInvalidModel, format("{}: chat template: {}", model_dir.string(), take(error)));
    }
    std::string sources = jinja.value_or("") + joined_sources(named);
    if (!jinja) sources += json.value_or("") + config.value_or("");
    return std::shared_ptr<const ChatTemplate>(
        new ChatTemplate(handle, std::move(sources), config.value_or(""), tokens.value_or("")));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::make(std::span<const NamedTemplate> sources,
                                                               std::string config, std::string tokens) {
    LoradTemplate* handle = nullptr;
    LoradBytes error{};
    const LoradText absent{nullptr, 0};
    const bool is_one = sources.size() == 1 && sources.front().name == kDefaultTemplate;
    const std::string several = is_one ? std::string() : named_json(sources);
    if (lorad_template_new(config.empty() ? absent : as_text(config), tokens.empty() ? absent : as_text(tokens),
                           is_one ? as_text(sources.front().source) : absent, is_one ? absent : as_text(several),
                           &handle, &error) != LORAD_TEXT_OK) {
        return make_error(ErrorCode::kInvalidModel, format("chat template: {}", take(error)));
    }
    return std::shared_ptr<const ChatTemplate>(
        new ChatTemplate(handle, joined_sources(sources), std::move(config), std::move(tokens)));
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::from_source(std::string_view source,
                                                                      std::string_view tokens_json) {
    const NamedTemplate one[] = {{std::string(kDefaultTemplate), std::string(source)}};
    return from_sources(one, tokens_json);
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::from_sources(std::span<const NamedTemplate> sources,
                                                                       std::string_view tokens_json) {
    return make(sources, std::string(tokens_json), {});
}

Result<std::shared_ptr<const ChatTemplate>> ChatTemplate::with_sources(std::span<const NamedTemplate> sources) const {
    return make(sources, config_, tokens_);
}

Status ChatTemplate::check_source(std::string_view source) {
    TRY_ASSIGN(const auto made, from_source(source, {}));
    LoradBytes error{};
    if (lorad_template_check(made->handle_, &error) == LORAD_TEXT_OK) return ok_status();
    return make_error(ErrorCode::kAdapterInvalid, take(error));
}

ChatTemplate::~ChatTemplate() { lorad_template_free(handle_); }

Result<std::string> ChatTemplate::tokens_json() const {
    LoradBytes text{};
    LoradBytes error{};
    const int32_t code = lorad_template_tokens(handle_, &text, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return take(text);
}

int64_t ChatTemplate::present() {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    if (localtime_r(&now, &local) == nullptr) return now;
    return static_cast<int64_t>(now) + local.tm_gmtoff;
}

bool ChatTemplate::exists() const { return lorad_template_exists(handle_) != 0; }

Result<std::string> ChatTemplate::render(const std::string& json_input, int64_t now) const {
    LoradBytes text{};
    LoradBytes error{};
    if (now == kPresent) now = present();
    const int32_t code = lorad_template_render(handle_, as_text(json_input), now, &text, nullptr, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return take(text);
}

Result<MarkedText> ChatTemplate::render_marked(const std::string& json_input, int64_t now) const {
    LoradBytes text{}, error{};
    LoradIds marked{};
    if (now == kPresent) now = present();
    const int32_t code = lorad_template_render(handle_, as_text(json_input), now, &text, &marked, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    MarkedText result{take(text), {}};
    for (size_t i = 0; i + 1 < marked.size; i += 2) result.marked.push_back({marked.data[i], marked.data[i + 1]});
    lorad_text_free_ids(marked);
    std::ranges::sort(result.marked, {}, &TextSpan::begin);
    return result;
}

Result<std::unique_ptr<Grammar>> Grammar::create(const Tokenizer& tokenizer, GrammarKind kind, std::string_view source,
                                                 std::span<const TokenId> eos_ids, uint32_t vocab_size) {
    LoradGrammar* handle = nullptr;
    LoradBytes error{};
    const int32_t code = lorad_grammar_new(tokenizer.handle_, static_cast<int32_t>(kind), as_text(source),
                                           reinterpret_cast<const uint32_t*>(eos_ids.data()), eos_ids.size(),
                                           vocab_size, &handle, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return std::unique_ptr<Grammar>(new Grammar(handle));
}

Result<std::unique_ptr<Grammar>> Grammar::create(const Words& words, GrammarKind kind, std::string_view source,
                                                 std::span<const TokenId> eos_ids, uint32_t vocab_size) {
    LoradGrammar* handle = nullptr;
    LoradBytes error{};
    const int32_t code = lorad_grammar_of_words(words.handle_, static_cast<int32_t>(kind), as_text(source),
                                                reinterpret_cast<const uint32_t*>(eos_ids.data()), eos_ids.size(),
                                                vocab_size, &handle, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return std::unique_ptr<Grammar>(new Grammar(handle));
}

size_t Grammar::n_bytes() const { return lorad_grammar_bytes(handle_, nullptr); }

size_t Grammar::n_bytes_compiling() const {
    size_t compiling = 0;
    (void)lorad_grammar_bytes(handle_, &compiling);
    return compiling;
}

Result<std::unique_ptr<Grammar>> Grammar::duplicate() const {
    LoradGrammar* handle = nullptr;
    LoradBytes error{};
    const int32_t code = lorad_grammar_duplicate(handle_, &handle, &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return std::unique_ptr<Grammar>(new Grammar(handle));
}

Grammar::~Grammar() { lorad_grammar_free(handle_); }

Status Grammar::mask(std::span<uint32_t> words) {
    LoradBytes error{};
    const int32_t code = lorad_grammar_mask(handle_, words.data(), words.size(), &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return ok_status();
}

Status Grammar::commit(TokenId id) {
    LoradBytes error{};
    const int32_t code = lorad_grammar_commit(handle_, static_cast<uint32_t>(id), &error);
    if (code != LORAD_TEXT_OK) return request_error(code, error);
    return ok_status();
}

bool Grammar::complete() {
    const int32_t state = lorad_grammar_state(handle_);
    return state == 1 || state == 2;
}

bool Grammar::finished() { return lorad_grammar_state(handle_) == 2; }

}  // namespace lorad::model
