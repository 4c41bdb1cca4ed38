#include "model/gguf/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <unordered_map>

#include "model/gguf/gguf_fields.h"
#include "model/gguf/gguf_words.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

constexpr std::string_view kPrefix = "tokenizer.ggml.";
constexpr std::string_view kTemplateKey = "tokenizer.chat_template";
constexpr size_t kGgufTemplateBytesMax = size_t{4} << 20;
constexpr size_t kPieceBytesMax = 256;               // of those that are split into two in every way
constexpr std::string_view kBlank = "\xe2\x96\x81";  // U+2581, as which SentencePiece has a blank

// tokenizer.ggml.token_type
enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

std::string full_key(std::string_view name) { return std::string(kPrefix).append(name); }
bool has_tokenizer(const GgufFile& file) {
    const std::string kind = file.text(full_key("model"));
    return file.field(full_key("model")) != nullptr && kind != "none" && kind != "no_vocab";
}
Error invalid_text(std::string what) { return make_error(ErrorCode::kInvalidModel, std::move(what)); }

struct GgufVocabulary {
    std::vector<std::string_view> tokens;
    std::vector<int64_t> types;
    std::vector<bool> is_entry;  // not the padding of a converter, nor a text that occurred before
    std::unordered_map<std::string_view, uint32_t> ids;
};

Result<std::vector<int64_t>> token_types(const GgufFile& file, size_t n_tokens) {
    const std::string key = full_key("token_type");
    const GgufValue* value = file.field(key);
    if (value == nullptr) return std::vector<int64_t>(n_tokens, kNormal);
    auto types = value->as_integers();
    if (!types || types->size() != n_tokens)
        return gguf_field_error(key, format("{} integers, one for each token", n_tokens), *value);
    return std::move(*types);
}

Result<GgufVocabulary> read_vocabulary(const GgufFile& file, uint32_t vocab_size) {
    const std::string key = full_key("tokens");
    const GgufValue* value = file.field(key);
    if (value == nullptr) return invalid_text(format("{} is missing", key));
    auto tokens = value->as_texts();
    if (!tokens || tokens->empty() || tokens->size() > vocab_size) {
        return gguf_field_error(key, format("1 to {} texts (the rows of token_embd.weight)", vocab_size), *value);
    }
    GgufVocabulary vocabulary{.tokens = std::move(*tokens), .types = {}, .is_entry = {}, .ids = {}};
    TRY_ASSIGN(vocabulary.types, token_types(file, vocabulary.tokens.size()));
    vocabulary.is_entry.resize(vocabulary.tokens.size());
    for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
        const std::string_view token = vocabulary.tokens[id];
        if (replace_invalid_utf8(token) != token) return invalid_text(format("{}: token {}: expected UTF-8", key, id));
        const bool is_padding = vocabulary.types[id] == kUnused && token == format("[PAD{}]", id);
        vocabulary.is_entry[id] = !is_padding && vocabulary.ids.emplace(token, id).second;
    }
    return vocabulary;
}

Result<std::optional<bool>> optional_flag(const GgufFile& file, std::string_view name) {
    const std::string key = full_key(name);
    const GgufValue* value = file.field(key);
    if (value == nullptr) return std::optional<bool>();
    const auto flag = value->as_flag();
    if (!flag) return gguf_field_error(key, "true or false", *value);
    return flag;
}

void write_pattern(JsonWriter& json, std::string_view kind, std::string_view text) {
    json.key("pattern").begin_object().field(kind, text).end_object();
}

void write_added_tokens(JsonWriter& json, const GgufVocabulary& vocabulary, bool is_phi3) {
    json.key("added_tokens").begin_array();
    for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
        const int64_t type = vocabulary.types[id];
        if (!vocabulary.is_entry[id] || (type != kControl && type != kUserDefined && type != kUnknown)) continue;
        const std::string_view token = vocabulary.tokens[id];
        // Phi-3's take the blanks behind them, of which GGUF says nothing; llama.cpp has the same exceptions.
        const bool takes_blanks =
            is_phi3 && type != kUserDefined && token != "<unk>" && token != "<s>" && token != "<|endoftext|>";
        json.begin_object()
            .field("id", id)
            .field("content", token)
            .field("single_word", false)
            .field("lstrip", false)
            .field("rstrip", takes_blanks);
        json.field("normalized", false).field("special", type != kUserDefined).end_object();
    }
    json.end_array();
}

void write_vocabulary(JsonWriter& json, const GgufVocabulary& vocabulary) {
    json.key("vocab").begin_object();
    for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
        if (vocabulary.is_entry[id]) json.field(vocabulary.tokens[id], id);
    }
    json.end_object();
}

// The tokens around a text: those of add_bos_token and add_eos_token.
struct Around {
    std::optional<std::string_view> begin, end;
    TokenId begin_id = 0, end_id = 0;
};

Result<Around> read_around(const GgufFile& file, const GgufVocabulary& vocabulary, bool adds_begin_by_default) {
    TRY_ASSIGN(const auto adds_begin, optional_flag(file, "add_bos_token"));
    TRY_ASSIGN(const auto adds_end, optional_flag(file, "add_eos_token"));
    Around around;
    const auto n_tokens = static_cast<uint32_t>(vocabulary.tokens.size());
    TRY_ASSIGN(const auto begin, special_token_of(file, "bos_token_id", n_tokens));
    TRY_ASSIGN(const auto end, special_token_of(file, "eos_token_id", n_tokens));
    if (adds_begin.value_or(adds_begin_by_default && begin)) {
        if (!begin)
            return invalid_text(
                format("{} is true, but there is no {}", full_key("add_bos_token"), full_key("bos_token_id")));
        around.begin_id = *begin;
        around.begin = vocabulary.tokens[static_cast<size_t>(*begin)];
    }
    if (adds_end.value_or(false)) {
        if (!end)
            return invalid_text(
                format("{} is true, but there is no {}", full_key("add_eos_token"), full_key("eos_token_id")));
        around.end_id = *end;
        around.end = vocabulary.tokens[static_cast<size_t>(*end)];
    }
    return around;
}

void write_post_processor(JsonWriter& json, const Around& around) {
    json.key("post_processor");
    if (!around.begin && !around.end) {
        json.null();
        return;
    }
    const auto write_template = [&](std::initializer_list<std::string_view> sequences) {
        json.begin_array();
        int type_id = 0;
        for (const std::string_view sequence : sequences) {
            const auto write_special = [&](std::string_view token) {
                json.begin_object()
                    .key("SpecialToken")
                    .begin_object()
                    .field("id", token)
                    .field("type_id", type_id)
                    .end_object()
                    .end_object();
            };
            if (around.begin) write_special(*around.begin);
            json.begin_object()
                .key("Sequence")
                .begin_object()
                .field("id", sequence)
                .field("type_id", type_id)
                .end_object()
                .end_object();
            if (around.end) write_special(*around.end);
            ++type_id;
        }
        json.end_array();
    };
    json.begin_object().field("type", "TemplateProcessing").key("single");
    write_template({"A"});
    json.key("pair");
    write_template({"A", "B"});
    json.key("special_tokens").begin_object();
    const auto write_token = [&](std::string_view token, TokenId id) {
        json.key(token).begin_object().field("id", token).key("ids").begin_array().value(int64_t{id}).end_array();
        json.key("tokens").begin_array().value(token).end_array().end_object();
    };
    if (around.begin) write_token(*around.begin, around.begin_id);
    if (around.end && (!around.begin || around.end_id != around.begin_id)) write_token(*around.end, around.end_id);
    json.end_object().end_object();
}

void write_byte_level(JsonWriter& json, bool cuts) {
    json.begin_object()
        .field("type", "ByteLevel")
        .field("add_prefix_space", false)
        .field("trim_offsets", true)
        .field("use_regex", cuts)
        .end_object();
}

void write_words(JsonWriter& json, const WordCutting& cutting) {
    json.key("normalizer");
    if (cutting.is_nfc)
        json.begin_object().field("type", "NFC").end_object();
    else
        json.null();
    json.key("pre_tokenizer").begin_object().field("type", "Sequence").key("pretokenizers").begin_array();
    if (cutting.is_digit_by_digit)
        json.begin_object().field("type", "Digits").field("individual_digits", true).end_object();
    if (!cutting.pattern.empty()) {
        json.begin_object().field("type", "Split");
        write_pattern(json, "Regex", cutting.pattern);
        json.field("behavior", "Isolated").field("invert", false).end_object();
    }
    write_byte_level(json, cutting.pattern.empty());
    json.end_array().end_object().key("decoder");
    write_byte_level(json, true);
}

void begin_model(JsonWriter& json) { json.key("model").begin_object().field("type", "BPE").key("dropout").null(); }

// "left right" each; tokens may begin with a blank.
Status write_merges(const GgufFile& file, const GgufVocabulary& vocabulary, JsonWriter& json) {
    const std::string key = full_key("merges");
    const GgufValue* value = file.field(key);
    if (value == nullptr) return invalid_text(format("{} is missing", key));
    const auto merges = value->as_texts();
    if (!merges) return gguf_field_error(key, "texts", *value);
    json.key("merges").begin_array();
    for (size_t i = 0; i < merges->size(); ++i) {
        const std::string_view merge = (*merges)[i];
        const size_t blank = merge.find(' ', 1);
        const std::string_view left = merge.substr(0, blank),
                               right = blank == std::string_view::npos ? std::string_view() : merge.substr(blank + 1);
        if (left.empty() || right.empty() || !vocabulary.ids.contains(left) || !vocabulary.ids.contains(right)) {
            return invalid_text(format("{}: merge {}: expected two tokens with a blank between, found {}", key, i,
                                       json_quote_short(merge)));
        }
        json.begin_array().value(left).value(right).end_array();
    }
    json.end_array();
    return ok_status();
}

Result<std::string> byte_level_json(const GgufFile& file, const GgufVocabulary& vocabulary,
                                    const WordCutting& cutting) {
    TRY_ASSIGN(const Around around, read_around(file, vocabulary, cutting.adds_begin));
    JsonWriter json;
    json.begin_object().field("version", "1.0").key("truncation").null().key("padding").null();
    write_added_tokens(json, vocabulary, false);
    write_words(json, cutting);
    write_post_processor(json, around);
    begin_model(json);
    json.key("unk_token")
        .null()
        .field("fuse_unk", false)
        .field("byte_fallback", false)
        .field("ignore_merges", cutting.takes_whole_words);
    write_vocabulary(json, vocabulary);
    TRY(write_merges(file, vocabulary, json));
    return json.end_object().end_object().take();
}

struct Merge {
    std::string_view left, right;
    double score;
    size_t n_left, n_right;  // characters
};

size_t n_characters(std::string_view text) {
    return static_cast<size_t>(
        std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

// SentencePiece joins the neighbours whose piece has the highest score. As merges: every way to cut a piece into two,
// the highest score first; the order of equal ones is that of transformers' converter.
Result<std::vector<Merge>> piece_merges(const GgufFile& file, const GgufVocabulary& vocabulary) {
    const std::string key = full_key("scores");
    const GgufValue* value = file.field(key);
    if (value == nullptr) return invalid_text(format("{} is missing", key));
    const auto scores = value->as_numbers();
    if (!scores || scores->size() != vocabulary.tokens.size())
        return gguf_field_error(key, format("{} numbers, one for each token", vocabulary.tokens.size()), *value);
    const auto id_of = [&](std::string_view text) -> std::optional<uint32_t> {
        const auto found = vocabulary.ids.find(text);
        const bool is_piece = found != vocabulary.ids.end() && vocabulary.is_entry[found->second] &&
                              vocabulary.types[found->second] == kNormal;
        return is_piece ? std::optional(found->second) : std::nullopt;
    };
    std::vector<Merge> merges;
    for (uint32_t id = 0; id < vocabulary.tokens.size(); ++id) {
        const std::string_view piece = vocabulary.tokens[id];
        if (!vocabulary.is_entry[id] || vocabulary.types[id] != kNormal) continue;
        if (!std::isfinite((*scores)[id]))
            return invalid_text(format("{}: token {}: expected a number, found {}", key, id, (*scores)[id]));
        if (piece.size() > kPieceBytesMax)
            return invalid_text(format("{}: token {}: expected at most {} bytes, found {}", full_key("tokens"), id,
                                       kPieceBytesMax, piece.size()));
        std::vector<std::pair<std::pair<uint32_t, uint32_t>, size_t>> cuts;
        for (size_t at = 1; at < piece.size(); ++at) {
            if ((static_cast<unsigned char>(piece[at]) & 0xc0) == 0x80) continue;
            const auto left = id_of(piece.substr(0, at));
            const auto right = left ? id_of(piece.substr(at)) : std::nullopt;
            if (right) cuts.push_back({{*left, *right}, at});
        }
        std::ranges::sort(cuts);
        for (const auto& [ids, at] : cuts) {
            merges.push_back({piece.substr(0, at), piece.substr(at), (*scores)[id], n_characters(piece.substr(0, at)),
                              n_characters(piece.substr(at))});
        }
    }
    std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
        return std::tuple(a.score, a.n_left, a.n_right) > std::tuple(b.score, b.n_left, b.n_right);
    });
    return merges;
}

void write_pieces(JsonWriter& json, bool adds_blank, bool has_bytes) {
    const auto write_blanks = [&](std::string_view from, std::string_view to) {
        json.begin_object().field("type", "Replace");
        write_pattern(json, "String", from);
        json.field("content", to).end_object();
    };
    json.key("normalizer").begin_object().field("type", "Sequence").key("normalizers").begin_array();
    if (adds_blank) json.begin_object().field("type", "Prepend").field("prepend", kBlank).end_object();
    write_blanks(" ", kBlank);
    json.end_array().end_object().key("pre_tokenizer").null();
    json.key("decoder").begin_object().field("type", "Sequence").key("decoders").begin_array();
    write_blanks(kBlank, " ");
    if (has_bytes) json.begin_object().field("type", "ByteFallback").end_object();
    json.begin_object().field("type", "Fuse").end_object();
    if (adds_blank)
        json.begin_object()
            .field("type", "Strip")
            .field("content", " ")
            .field("start", 1)
            .field("stop", 0)
            .end_object();
    json.end_array().end_object();
}

// has_merges: the file lists them, as Gemma 4's do; else they follow from the pieces' scores.
Result<std::string> pieces_json(const GgufFile& file, const GgufVocabulary& vocabulary, bool has_merges) {
    TRY_ASSIGN(const auto removes_blanks, optional_flag(file, "remove_extra_whitespaces"));
    if (removes_blanks.value_or(false))
        return invalid_text(format("{} = true is not supported", full_key("remove_extra_whitespaces")));
    TRY_ASSIGN(const auto adds_blank, optional_flag(file, "add_space_prefix"));
    TRY_ASSIGN(const Around around, read_around(file, vocabulary, true));
    std::vector<Merge> merges;
    if (!has_merges) {
        TRY_ASSIGN(merges, piece_merges(file, vocabulary));
    }
    const bool has_bytes = std::ranges::find(vocabulary.types, int64_t{kByte}) != vocabulary.types.end();
    const auto unknown = std::ranges::find(vocabulary.types, int64_t{kUnknown});
    JsonWriter json;
    json.begin_object().field("version", "1.0").key("truncation").null().key("padding").null();
    write_added_tokens(json, vocabulary, file.text("general.architecture") == "phi3");
    write_pieces(json, adds_blank.value_or(true), has_bytes);
    write_post_processor(json, around);
    begin_model(json);
    json.key("unk_token");
    if (unknown != vocabulary.types.end())
        json.value(vocabulary.tokens[static_cast<size_t>(unknown - vocabulary.types.begin())]);
    else
        json.null();
    json.field("fuse_unk", true).field("byte_fallback", has_bytes).field("ignore_merges", false);
    write_vocabulary(json, vocabulary);
    if (has_merges) {
        TRY(write_merges(file, vocabulary, json));
        return json.end_object().end_object().take();
    }
    json.key("merges").begin_array();
    for (const Merge& merge : merges) json.begin_array().value(merge.left).value(merge.right).end_array();
    json.end_array().end_object().end_object();
    return json.take();
}

Result<std::string> special_tokens_json(const GgufFile& file, const GgufVocabulary& vocabulary) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kNames = {
        {{"bos_token_id", "bos_token"},
         {"eos_token_id", "eos_token"},
         {"unknown_token_id", "unk_token"},
         {"padding_token_id", "pad_token"},
         {"separator_token_id", "sep_token"},
         {"seperator_token_id", "sep_token"},
         {"cls_token_id", "cls_token"},
         {"mask_token_id", "mask_token"}}};
    JsonWriter json;
    json.begin_object();
    for (const auto& [name, ours] : kNames) {
        if (name == "seperator_token_id" && file.field(full_key("separator_token_id")) != nullptr) continue;
        TRY_ASSIGN(const auto id, special_token_of(file, name, static_cast<uint32_t>(vocabulary.tokens.size())));
        if (id) json.field(ours, vocabulary.tokens[static_cast<size_t>(*id)]);
    }
    return json.end_object().take();
}

Result<std::vector<NamedTemplate>> templates_of(const GgufFile& file) {
    std::vector<NamedTemplate> templates;
    for (const auto& [key, value] : file.fields) {
        if (!key.starts_with(kTemplateKey)) continue;
        std::string_view name = std::string_view(key).substr(kTemplateKey.size());
        if (!name.empty() && name.front() != '.') continue;  // tokenizer.chat_templates: the names again
        name = name.empty() ? kDefaultTemplate : name.substr(1);
        const auto source = value.as_text();
        if (!source || source->size() > kGgufTemplateBytesMax || replace_invalid_utf8(*source) != *source) {
            return gguf_field_error(key, format("a text in UTF-8 of at most {} bytes", kGgufTemplateBytesMax), value);
        }
        if (!is_template_name(name) || templates.size() == kNamedTemplatesMax) {
            return invalid_text(format("{}: expected at most {} templates whose names are of letters, digits and _ - .",
                                       json_quote_short(key), kNamedTemplatesMax));
        }
        templates.push_back({std::string(name), std::string(*source)});
    }
    return templates;
}

}  // namespace

Result<std::optional<TokenId>> special_token_of(const GgufFile& file, std::string_view name, uint32_t vocab_size) {
    const std::string key = full_key(name);
    const GgufValue* value = file.field(key);
    if (value == nullptr) return std::optional<TokenId>();
    const auto id = value->as_integer();
    // -1 or the highest uint32: none, in files of some converters.
    if (id == -1 || id == int64_t{UINT32_MAX}) return std::optional<TokenId>();
    if (!id || *id < 0 || *id >= int64_t{vocab_size})
        return gguf_field_error(key, format("0 to {}, a token of the vocabulary", vocab_size - 1), *value);
    return std::optional<TokenId>(static_cast<TokenId>(*id));
}

Result<std::string> tokenizer_from_gguf(const GgufFile& file, uint32_t vocab_size) {
    if (!has_tokenizer(file)) return std::string();
    const std::string kind = file.text(full_key("model")), cutting_name = file.text(full_key("pre"));
    if (kind != "gpt2" && kind != "llama" && kind != "gemma4") {
        return invalid_text(format("{}: a tokenizer of the kind {} is not supported; supported are gpt2 (byte-level "
                                   "BPE), llama (SentencePiece with scores) and gemma4",
                                   full_key("model"), json_quote_short(kind)));
    }
    TRY_ASSIGN(const GgufVocabulary vocabulary, read_vocabulary(file, vocab_size));
    if (kind != "gpt2") return pieces_json(file, vocabulary, kind == "gemma4");
    const WordCutting* cutting = word_cutting(cutting_name);
    if (cutting != nullptr) return byte_level_json(file, vocabulary, *cutting);
    return invalid_text(format("{}: words cut as {} are not supported; supported are {}", full_key("pre"),
                               cutting_name.empty() ? "nothing says" : json_quote_short(cutting_name),
                               word_cuttings()));
}

std::string tokenizer_kind(const GgufFile& file) {
    if (!has_tokenizer(file)) return {};
    const std::string kind = file.text(full_key("model"));
    return kind == "gpt2" ? format("{} ({})", kind, file.text(full_key("pre"))) : kind;
}

Result<GgufChat> chat_from_gguf(const GgufFile& file, uint32_t vocab_size) {
    GgufChat chat;
    if (!has_tokenizer(file)) return chat;
    TRY_ASSIGN(const GgufVocabulary vocabulary, read_vocabulary(file, vocab_size));
    TRY_ASSIGN(chat.tokens_json, special_tokens_json(file, vocabulary));
    TRY_ASSIGN(chat.templates, templates_of(file));
    return chat;
}

}  // namespace lorad::model
