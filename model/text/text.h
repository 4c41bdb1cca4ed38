// Text for the layers above: tokenizer, chat template and grammar, as values that throw nothing.
// The work is done by the Rust crate in model/text, which stays behind text.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"

struct LoradTokenizer;
struct LoradTemplate;
struct LoradGrammar;
struct LoradWords;

namespace lorad::model {

// False while memory is short: an allocation of the crate has failed, and what is under way lives on
// its reserve. Nothing new should be begun. Any thread.
bool text_reserve_is_whole();
// Called by a process that is to end when its memory does. Any thread.
void give_up_text_reserve();

// The way from tokens to text, as far as decoding one token after the other cares.
enum class DecoderKind : uint8_t {
    kByteLevel,     // the tokens' bytes joined; ill-formed UTF-8 is replaced by U+FFFD
    kByteFallback,  // as kOther, but a run of byte tokens decodes as a whole
    kOther,         // one by one, given the token before
};

// Tokens of a text, and the byte of the text where each begins: that of its character, where a character is several
// tokens.
struct PlacedTokens {
    std::vector<TokenId> ids;
    std::vector<uint32_t> begins;
};

// Bytes [begin, end) of a text.
struct TextSpan {
    size_t begin = 0, end = 0;
    bool operator==(const TextSpan&) const = default;
};

// A rendered chat, and the parts of it that the template marks by `{% generation %}` as the assistant's.
struct MarkedText {
    std::string text;
    std::vector<TextSpan> marked;  // in the order of the text
};

// tokenizer.json of a model folder. Immutable: any number of threads may share one.
class Tokenizer {
  public:
    // kInvalidModel naming the file when it is missing, too large or not a tokenizer.
    static Result<std::shared_ptr<const Tokenizer>> load(const std::filesystem::path& model_dir);
    static Result<std::shared_ptr<const Tokenizer>> from_json(std::string_view json, std::string_view name);
    ~Tokenizer();
    Tokenizer(const Tokenizer&) = delete;
    Tokenizer& operator=(const Tokenizer&) = delete;

    // Special tokens written out in the text become their ids, as in the reference. kInvalidRequest
    // for text that is not UTF-8.
    Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const;
    // The same with places, without special tokens of the tokenizer's own.
    Result<PlacedTokens> encode_placed(std::string_view text) const;
    // Ids without a token add nothing.
    Result<std::string> decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

    // One more than the highest id; a model's vocabulary is at least as large.
    uint32_t vocab_size() const;
    std::optional<TokenId> token_id(std::string_view token) const;
    // The token as the vocabulary spells it, not as text.
    std::optional<std::string> token_text(TokenId id) const;
    // The bytes that the token adds to a text; need not be UTF-8. Valid as long as the tokenizer.
    std::string_view token_bytes(TokenId id) const;
    bool is_special(TokenId id) const;
    // Stands for one byte of a character that the vocabulary lacks.
    bool is_byte(TokenId id) const;
    bool exists(TokenId id) const;
    DecoderKind decoder_kind() const { return decoder_kind_; }
    // The vocabulary as grammars need it, for Words in another process.
    Result<std::string> words() const;

  private:
    friend class Grammar;
    explicit Tokenizer(LoradTokenizer* handle);

    LoradTokenizer* handle_;
    DecoderKind decoder_kind_;
};

// The bytes of a vocabulary's tokens. Immutable: any number of threads may share one.
class Words {
  public:
    // list: Tokenizer::words().
    static Result<std::shared_ptr<const Words>> from_list(std::string_view list);
    ~Words();
    Words(const Words&) = delete;
    Words& operator=(const Words&) = delete;

  private:
    friend class Grammar;
    explicit Words(LoradWords* handle) : handle_(handle) {}

    LoradWords* handle_;
};

// One of a model's or an adapter's chat templates; "default" is that of chats, "tool_use" that of chats with tools.
struct NamedTemplate {
    std::string name;
    std::string source;
    bool operator==(const NamedTemplate&) const = default;
};
inline constexpr std::string_view kDefaultTemplate = "default";

// The folder in which save_pretrained() puts the templates that have names, each in NAME.jinja.
inline constexpr std::string_view kNamedTemplatesFolder = "additional_chat_templates";
inline constexpr std::string_view kTemplateSuffix = ".jinja";
inline constexpr size_t kNamedTemplatesMax = 16;
// 1 to 64 letters, digits and `_ - .`, not beginning with a dot.
bool is_template_name(std::string_view name);
// The names of the templates in that folder of `dir`, sorted; none where there is no such folder.
std::vector<std::string> template_names_in(const std::filesystem::path& dir);

// The chat template of a model folder with its special tokens. Immutable: any number of threads may
// share one.
class ChatTemplate {
  public:
    static constexpr int64_t kPresent = std::numeric_limits<int64_t>::min();
    static int64_t present();  // what the local wall clock shows, as render() takes it

    // Reads chat_template.jinja, chat_template.json and tokenizer_config.json, the first that has a
    // template wins, and the named ones beside it. A folder without a template loads; rendering then answers
    // kInvalidRequest. A damaged file is kInvalidModel.
    static Result<std::shared_ptr<const ChatTemplate>> load(const std::filesystem::path& model_dir);
    // tokens_json: the special tokens in the form of tokenizer_config.json.
    static Result<std::shared_ptr<const ChatTemplate>> from_source(std::string_view source,
                                                                   std::string_view tokens_json);
    // The same for several, of which one need not be the default.
    static Result<std::shared_ptr<const ChatTemplate>> from_sources(std::span<const NamedTemplate> sources,
                                                                    std::string_view tokens_json);
    // Other templates with the special tokens of this one; none of them need be the default. kInvalidModel where they
    // cannot be read.
    Result<std::shared_ptr<const ChatTemplate>> with_sources(std::span<const NamedTemplate> sources) const;
    // Checks that it parses; if not, kAdapterInvalid names the line.
    static Status check_source(std::string_view source);
    ~ChatTemplate();
    ChatTemplate(const ChatTemplate&) = delete;
    ChatTemplate& operator=(const ChatTemplate&) = delete;

    bool exists() const;
    // Its special tokens, for from_source().
    Result<std::string> tokens_json() const;
    // Returns true if the template or its configuration contains the text, such as "<tool_call>".
    bool mentions(std::string_view text) const { return sources_.find(text) != std::string::npos; }
    // json_input:
    // {"messages":[...],"tools":[...],"documents":[...],"add_generation_prompt":bool,"extra":{name:
    // value},"template":name}; all but messages may be absent. Without a name, the template is tool_use
    // where there are tools and such a one, else the default. Extra values become variables and win over special
    // tokens. What the template raises is kInvalidRequest with its own message, since the
    // conversation is what it objects to. now: for strftime_now, what the local wall clock shows,
    // in seconds since 1970 as if it were UTC; kPresent asks the system.
    Result<std::string> render(const std::string& json_input, int64_t now = kPresent) const;
    // The same with the parts that the template marks; none where it marks nothing, or only what it prints by way of a
    // variable.
    Result<MarkedText> render_marked(const std::string& json_input, int64_t now = kPresent) const;

  private:
    static Result<std::shared_ptr<const ChatTemplate>> make(std::span<const NamedTemplate> sources, std::string config,
                                                            std::string tokens);
    ChatTemplate(LoradTemplate* handle, std::string sources, std::string config, std::string tokens)
        : handle_(handle), sources_(std::move(sources)), config_(std::move(config)), tokens_(std::move(tokens)) {}

    LoradTemplate* handle_;
    const std::string sources_;          // what it was made of
    const std::string config_, tokens_;  // files that name the special tokens; may be empty
};

enum class GrammarKind : uint8_t { kJsonSchema, kRegex, kLark };

// The tokens that a grammar allows next, for one sequence. One thread at a time.
class Grammar {
  public:
    // eos_ids end the text and are allowed only where it is complete. vocab_size: width of the
    // model's logits. kInvalidRequest when the source is not of its kind, kInputTooComplex where it goes too deep or
    // makes the library fail.
    // Takes as much stack, memory and time as the source makes it: for sources of clients see server/sandbox.
    static Result<std::unique_ptr<Grammar>> create(const Tokenizer& tokenizer, GrammarKind kind,
                                                   std::string_view source, std::span<const TokenId> eos_ids,
                                                   uint32_t vocab_size);
    static Result<std::unique_ptr<Grammar>> create(const Words& words, GrammarKind kind, std::string_view source,
                                                   std::span<const TokenId> eos_ids, uint32_t vocab_size);
    // Another one in the same state, for another sequence; cheaper than create().
    Result<std::unique_ptr<Grammar>> duplicate() const;
    ~Grammar();
    Grammar(const Grammar&) = delete;
    Grammar& operator=(const Grammar&) = delete;

    // Sets bit id % 32 of words[id / 32] for every allowed id; words holds mask_words(vocab_size)
    // (model/output/logits.h).
    Status mask(std::span<uint32_t> words);
    // Takes the token that was chosen; kInvalidRequest when the grammar does not allow it.
    Status commit(TokenId id);
    bool complete();  // the text so far is a whole one
    bool finished();  // nothing may follow but the end
    // Memory that it holds now, and the most that compiling it took.
    size_t n_bytes() const;
    size_t n_bytes_compiling() const;

  private:
    explicit Grammar(LoradGrammar* handle) : handle_(handle) {}

    LoradGrammar* handle_;
};

}  // namespace lorad::model
