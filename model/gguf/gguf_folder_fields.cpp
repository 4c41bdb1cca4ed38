#include "model/gguf/gguf_folder_fields.h"

#include <algorithm>
#include <array>
#include <map>
#include <span>
#include <utility>

#include "model/config/rope.h"
#include "model/files/files.h"
#include "model/gguf/gguf_names.h"
#include "model/gguf/gguf_words.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr uint64_t kTokenizerBytesMax = uint64_t{256} << 20;
constexpr uint32_t kTokenizerValuesMax = 1u << 23;
enum TokenKind : int32_t { kNormalToken = 1, kControlToken = 3, kOwnToken = 4, kUnusedToken = 5 };

Error no_words(std::string what) { return make_error(ErrorCode::kInvalidModel, std::move(what)); }

// The first value anywhere in it for which this holds.
template <typename F>
std::optional<JsonValue> find_in(const JsonValue& value, const F& holds) {
    if (holds(value)) return value;
    if (const auto members = value.as_object(); members.ok()) {
        for (const JsonMember& member : *members) {
            if (const auto found = find_in(member.value, holds)) return found;
        }
    } else if (const auto elements = value.as_array(); elements.ok()) {
        for (const JsonValue& element : *elements) {
            if (const auto found = find_in(element, holds)) return found;
        }
    }
    return std::nullopt;
}
bool has_type(const JsonValue& value, std::string_view type) {
    const auto found = value.find("type");
    return found && found->is_string() && *found->as_string() == type;
}
bool is_true(const JsonValue& object, std::string_view key) {
    const auto found = object.find(key);
    return found && found->is_bool() && *found->as_bool();
}

// tokenizer.ggml.pre of a tokenizer.json.
Result<std::string_view> name_of_words(const JsonValue& root) {
    const auto pre = root.find("pre_tokenizer");
    const auto model = root.require("model");
    if (!model.ok()) return model.error();
    const auto is_bytes = [](const JsonValue& v) { return has_type(v, "ByteLevel"); };
    if (!pre || !find_in(*pre, is_bytes))
        return no_words("tokenizer.json: expected byte-level BPE (a pre_tokenizer ByteLevel), found another; lorad "
                        "writes no other tokenizer into GGUF");
    std::string_view pattern;
    if (const auto split = find_in(*pre, [](const JsonValue& v) { return has_type(v, "Split"); })) {
        const auto of = split->find("pattern");
        const auto regex = of ? of->find("Regex") : std::nullopt;
        if (!regex || !regex->is_string()) return split->error("expected a Split by a regular expression");
        TRY_ASSIGN(pattern, regex->as_string());
    }
    const bool digits = find_in(*pre, [](const JsonValue& v) {
                            return has_type(v, "Digits") && is_true(v, "individual_digits");
                        }).has_value();
    const auto normalizer = root.find("normalizer");
    const bool nfc = normalizer && find_in(*normalizer, [](const JsonValue& v) { return has_type(v, "NFC"); });
    const bool whole = is_true(*model, "ignore_merges");
    for (const std::string_view name : {"llama-bpe", "dbrx", "qwen2", "tekken", "gpt-4o", "smollm", "gpt-2"}) {
        const WordCutting& known = *word_cutting(name);
        if (known.pattern == pattern && known.is_digit_by_digit == digits && known.is_nfc == nfc &&
            known.takes_whole_words == whole)
            return name;
    }
    return no_words(
        format("tokenizer.json: GGUF has no name that lorad knows for its way to cut words ({}); known are {}",
               pattern.empty() ? "ByteLevel" : json_quote_short(pattern), word_cuttings()));
}

struct Vocabulary {
    std::vector<std::string> tokens;
    std::vector<int32_t> kinds;

    std::optional<uint32_t> id_of(std::string_view token) const {
        const auto found = std::ranges::find(tokens, token);
        return found == tokens.end() ? std::nullopt : std::optional(static_cast<uint32_t>(found - tokens.begin()));
    }
};

Status put_token(Vocabulary& vocabulary, const JsonValue& id, std::string_view token, int32_t kind) {
    TRY_ASSIGN(const uint64_t at, id.as_uint());
    if (at >= vocabulary.tokens.size())
        return id.error(format("expected an id below the model's {} tokens", vocabulary.tokens.size()));
    vocabulary.tokens[at] = token;
    vocabulary.kinds[at] = kind;
    return ok_status();
}

Result<Vocabulary> vocabulary_of(const JsonValue& root, uint32_t vocab_size) {
    Vocabulary vocabulary;
    for (uint32_t id = 0; id < vocab_size; ++id) vocabulary.tokens.push_back(format("[PAD{}]", id));
    vocabulary.kinds.assign(vocab_size, kUnusedToken);
    TRY_ASSIGN(const JsonValue model, root.require("model"));
    TRY_ASSIGN(const JsonValue vocab, model.require("vocab"));
    TRY_ASSIGN(const auto entries, vocab.as_object());
    for (const JsonMember& entry : entries) TRY(put_token(vocabulary, entry.value, entry.key, kNormalToken));
    if (const auto added = root.find("added_tokens")) {
        TRY_ASSIGN(const auto tokens, added->as_array());
        for (const JsonValue& token : tokens) {
            TRY_ASSIGN(const JsonValue id, token.require("id"));
            TRY_ASSIGN(const JsonValue content, token.require("content"));
            TRY_ASSIGN(const std::string_view text, content.as_string());
            TRY(put_token(vocabulary, id, text, is_true(token, "special") ? kControlToken : kOwnToken));
        }
    }
    return vocabulary;
}

Result<std::vector<std::string>> merges_of(const JsonValue& root) {
    TRY_ASSIGN(const JsonValue model, root.require("model"));
    TRY_ASSIGN(const JsonValue merges, model.require("merges"));
    TRY_ASSIGN(const auto all, merges.as_array());
    std::vector<std::string> texts;
    texts.reserve(all.size());
    for (const JsonValue& merge : all) {
        if (merge.is_string()) {
            TRY_ASSIGN(const std::string_view text, merge.as_string());
            texts.emplace_back(text);
            continue;
        }
        TRY_ASSIGN(const auto two, merge.as_array());
        if (two.size() != 2) return merge.error("expected two texts");
        TRY_ASSIGN(const std::string_view left, two[0].as_string());
        TRY_ASSIGN(const std::string_view right, two[1].as_string());
        texts.push_back(format("{} {}", left, right));
    }
    return texts;
}

// Returns true if a special token is put at that end of each text: at the first or last place of the template.
bool adds_token(const JsonValue& root, bool at_begin) {
    const auto post = root.find("post_processor");
    const auto processing =
        post ? find_in(*post, [](const JsonValue& v) { return has_type(v, "TemplateProcessing"); }) : std::nullopt;
    const auto single = processing ? processing->find("single") : std::nullopt;
    if (!single || !single->is_array() || single->size() == 0) return false;
    const auto parts = *single->as_array();
    return (at_begin ? parts.front() : parts.back()).has("SpecialToken");
}

// A token of tokenizer_config.json: a text, or an object with it.
std::optional<std::string> token_named(const JsonValue& config, std::string_view key) {
    const auto found = config.find(key);
    if (!found) return std::nullopt;
    const auto text = found->is_object() ? found->find("content") : found;
    return text && text->is_string() ? std::optional(std::string(*text->as_string())) : std::nullopt;
}

Status write_tokenizer(const std::filesystem::path& folder, const ModelFiles& files, const ModelConfig& config,
                       GgufWriter& writer) {
    std::error_code ignored;
    if (!std::filesystem::exists(folder / "tokenizer.json", ignored)) {
        writer.text("tokenizer.ggml.model", "none");  // prompts are token ids
        return ok_status();
    }
    TRY_ASSIGN(const std::string text,
               read_text_file(folder / "tokenizer.json", kTokenizerBytesMax, ErrorCode::kInvalidModel));
    TRY_ASSIGN(const JsonDocument document, parse_json(text, {.name = "tokenizer.json",
                                                              .code = ErrorCode::kInvalidModel,
                                                              .max_bytes = kTokenizerBytesMax,
                                                              .max_values = kTokenizerValuesMax,
                                                              .allow_duplicate_keys = true}));
    const JsonValue root = document.root();
    TRY_ASSIGN(const std::string_view words, name_of_words(root));
    TRY_ASSIGN(const Vocabulary vocabulary, vocabulary_of(root, config.vocab_size));
    TRY_ASSIGN(const std::vector<std::string> merges, merges_of(root));
    writer.text("tokenizer.ggml.model", "gpt2");
    writer.text("tokenizer.ggml.pre", words);
    writer.texts("tokenizer.ggml.tokens", vocabulary.tokens);
    writer.integers("tokenizer.ggml.token_type", vocabulary.kinds);
    writer.texts("tokenizer.ggml.merges", merges);
    writer.flag("tokenizer.ggml.add_bos_token", adds_token(root, true));
    writer.flag("tokenizer.ggml.add_eos_token", adds_token(root, false));

    TRY_ASSIGN(const ModelFiles::TokenizerConfig of, files.tokenizer_config());
    std::optional<uint32_t> end;
    std::string chat_template = of.chat_template;
    if (!of.json.empty()) {
        TRY_ASSIGN(const JsonDocument settings, parse_json(of.json, {.name = "tokenizer_config.json",
                                                                     .code = ErrorCode::kInvalidModel,
                                                                     .allow_duplicate_keys = true}));
        const JsonValue tokens = settings.root();
        const auto put = [&](std::string_view name, std::string_view key) {
            const auto token = token_named(tokens, name);
            const auto id = token ? vocabulary.id_of(*token) : std::nullopt;
            if (id) writer.u32(key, *id);
            return id;
        };
        put("bos_token", "tokenizer.ggml.bos_token_id");
        put("pad_token", "tokenizer.ggml.padding_token_id");
        end = put("eos_token", "tokenizer.ggml.eos_token_id");
        if (const auto own = tokens.find("chat_template"); chat_template.empty() && own && own->is_string())
            chat_template = *own->as_string();
    }
    for (const TokenId id : config.generation.eos_token_ids) {
        if (end == static_cast<uint32_t>(id)) continue;
        writer.u32(end ? "tokenizer.ggml.eot_token_id" : "tokenizer.ggml.eos_token_id", static_cast<uint32_t>(id));
        if (end) break;
        end = static_cast<uint32_t>(id);
    }
    if (!chat_template.empty()) writer.text("tokenizer.chat_template", chat_template);
    return ok_status();
}

}  // namespace

std::vector<float> llama3_factors(const RopeConfig& rope) {
    if (rope.type != RopeType::kLlama3) return {};
    RopeConfig plain = rope;
    plain.type = RopeType::kDefault;
    const std::vector<double> before = rope_frequencies(plain), after = rope_frequencies(rope);
    std::vector<float> factors;
    for (size_t i = 0; i < after.size(); ++i) factors.push_back(static_cast<float>(before[i] / after[i]));
    return factors;
}

Status write_folder_fields(const std::filesystem::path& folder, const ModelFiles& files, const ModelConfig& config,
                           GgufWriter& writer) {
    const GgufArchitecture* architecture = gguf_architecture_of(config.architecture);
    if (architecture == nullptr)
        return no_words(format("config.json: GGUF has no {} that lorad writes", config.architecture));
    if (!config.layers.empty())
        return no_words(
            format("config.json: lorad writes no {} into GGUF yet; quantize the model's own GGUF file in F16 instead",
                   config.architecture));
    if (config.rope.type != RopeType::kDefault && config.rope.type != RopeType::kLinear &&
        config.rope.type != RopeType::kLlama3) {
        return no_words("config.json: lorad writes no rope scaling into GGUF but linear and llama3's; quantize the "
                        "model's own GGUF file in F16 instead");
    }
    const auto is_other = [&](uint32_t window) { return window != config.sliding_windows.front(); };
    if (std::ranges::any_of(config.sliding_windows, is_other))
        return no_words("config.json: lorad writes no windows into GGUF that differ between layers");
    const auto key = [&](std::string_view name) { return format("{}.{}", architecture->gguf, name); };
    writer.text("general.architecture", architecture->gguf);
    writer.text("general.name", served_name_of(folder));
    writer.u32(key("block_count"), config.n_layers);
    writer.u32(key("context_length"), config.max_positions);
    writer.u32(key("embedding_length"), config.hidden_size);
    writer.u32(key("feed_forward_length"), config.intermediate_size);
    writer.u32(key("attention.head_count"), config.n_heads);
    writer.u32(key("attention.head_count_kv"), config.n_kv_heads);
    writer.u32(key("attention.key_length"), config.head_dim);
    writer.u32(key("attention.value_length"), config.head_dim);
    writer.f32(key("attention.layer_norm_rms_epsilon"), config.rms_norm_eps);
    if (config.sliding_windows.front() != 0)
        writer.u32(key("attention.sliding_window"), config.sliding_windows.front());
    writer.f32(key("rope.freq_base"), static_cast<float>(config.rope.theta));
    writer.u32(key("rope.dimension_count"), config.rope.rotary_dim);
    writer.u32(key("vocab_size"), config.vocab_size);
    if (config.rope.type == RopeType::kLinear) {
        writer.text(key("rope.scaling.type"), "linear");
        writer.f32(key("rope.scaling.factor"), static_cast<float>(config.rope.factor));
    }
    return write_tokenizer(folder, files, config, writer);
}

}  // namespace lorad::model
