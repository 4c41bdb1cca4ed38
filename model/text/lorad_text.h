// C ABI of the Rust crate lorad_text: tokenizer, chat template, grammar. C++ code uses model/text/text.h
// instead. Rules: strings are UTF-8 with a length, never zero terminated; nothing unwinds across
// this border; handles may be shared by threads unless the function says otherwise; every
// LoradBytes and LoradIds that is filled must be freed.
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct LoradTokenizer LoradTokenizer;
typedef struct LoradTemplate LoradTemplate;
typedef struct LoradGrammar LoradGrammar;
typedef struct LoradWords LoradWords;

typedef struct LoradText {
    const uint8_t* data;  // may be null: absent, which is not the same as empty
    size_t size;
} LoradText;

typedef struct LoradBytes {
    uint8_t* data;
    size_t size;
    size_t capacity;
} LoradBytes;

typedef struct LoradIds {
    uint32_t* data;
    size_t size;
    size_t capacity;
} LoradIds;

// The result of a function. On anything but LORAD_TEXT_OK the message is in `error` and the other outputs are
// untouched.
enum {
    LORAD_TEXT_OK = 0,
    LORAD_TEXT_INVALID_FILE = 1,     // tokenizer or template source cannot be used
    LORAD_TEXT_INVALID_INPUT = 2,    // the caller's text, ids or JSON
    LORAD_TEXT_TEMPLATE_RAISED = 3,  // by raise_exception; the message is its text alone
    LORAD_TEXT_TEMPLATE_FAILED = 4,  // an error inside it, like an undefined attribute
    LORAD_TEXT_NO_TEMPLATE = 5,
    LORAD_TEXT_REJECTED = 6,  // a token that the grammar does not allow
    LORAD_TEXT_PANIC = 7,     // a defect here; do not use the handle further. The message is for a log, not for clients
    LORAD_TEXT_NO_MEMORY = 8,
    LORAD_TEXT_TOO_COMPLEX = 9,        // nested, or referring to itself, deeper than is read
    LORAD_TEXT_NO_SUCH_TEMPLATE = 10,  // there is no template of the requested name
};

// The tokenizer's way from tokens to text, as far as incremental decoding cares.
enum {
    LORAD_DECODER_BYTE_LEVEL = 0,     // text is the tokens' bytes joined, ill-formed UTF-8 replaced
    LORAD_DECODER_BYTE_FALLBACK = 1,  // runs of byte tokens decode as a whole
    LORAD_DECODER_OTHER = 2,          // tokens decode one by one, given the one before
};

enum {
    LORAD_TOKEN_SPECIAL = 1,  // left out when special tokens are skipped
    LORAD_TOKEN_BYTE = 2,     // stands for one byte (byte fallback)
    LORAD_TOKEN_UNKNOWN = 4,  // no such token
};

enum {
    LORAD_GRAMMAR_JSON_SCHEMA = 0,
    LORAD_GRAMMAR_REGEX = 1,
    LORAD_GRAMMAR_LARK = 2,
};

// 0 from an allocation of this library that failed on until there is memory again: calls under way
// go on with memory that was set aside, 32 MiB; new ones should not be made.
int32_t lorad_text_reserve_is_whole(void);
// Called by a process that is to end when its memory does: no reserve and no waiting from here on.
void lorad_text_give_up_reserve(void);

void lorad_text_free_bytes(LoradBytes bytes);
void lorad_text_free_ids(LoradIds ids);

int32_t lorad_tokenizer_new(LoradText tokenizer_json, LoradTokenizer** out, LoradBytes* error);
void lorad_tokenizer_free(LoradTokenizer* tokenizer);
int32_t lorad_tokenizer_encode(const LoradTokenizer* tokenizer, LoradText text, int32_t add_special_tokens,
                               LoradIds* out, LoradBytes* error);
// Adds no special tokens of the tokenizer's own; begins: the byte of the text where each token begins.
int32_t lorad_tokenizer_encode_placed(const LoradTokenizer* tokenizer, LoradText text, LoradIds* out, LoradIds* begins,
                                      LoradBytes* error);
int32_t lorad_tokenizer_decode(const LoradTokenizer* tokenizer, const uint32_t* ids, size_t count,
                               int32_t skip_special_tokens, LoradBytes* out, LoradBytes* error);
uint32_t lorad_tokenizer_vocab_size(const LoradTokenizer* tokenizer);
int32_t lorad_tokenizer_decoder(const LoradTokenizer* tokenizer);
// -1 when there is no such token.
int64_t lorad_tokenizer_token_id(const LoradTokenizer* tokenizer, LoradText token);
uint32_t lorad_tokenizer_token_flags(const LoradTokenizer* tokenizer, uint32_t id);
// The token as the vocabulary spells it.
int32_t lorad_tokenizer_token_text(const LoradTokenizer* tokenizer, uint32_t id, LoradBytes* out, LoradBytes* error);
// The bytes that the token adds to a text. Borrowed: valid as long as the tokenizer.
LoradText lorad_tokenizer_token_bytes(const LoradTokenizer* tokenizer, uint32_t id);

// The tokens' bytes as one list, which is all that grammars need of a tokenizer.
int32_t lorad_tokenizer_words(const LoradTokenizer* tokenizer, LoradBytes* out, LoradBytes* error);
int32_t lorad_words_new(LoradText list, LoradWords** out, LoradBytes* error);
void lorad_words_free(LoradWords* words);

// tokenizer_config: tokenizer_config.json; special_tokens: special_tokens_map.json; jinja:
// chat_template.jinja; template_json: chat_template.json, whose templates may have names. Each may be absent. Later
// ones win over tokenizer_config for the template; where none of them is the default one, that of tokenizer_config is.
int32_t lorad_template_new(LoradText tokenizer_config, LoradText special_tokens, LoradText jinja,
                           LoradText template_json, LoradTemplate** out, LoradBytes* error);
void lorad_template_free(LoradTemplate* chat_template);
int32_t lorad_template_exists(const LoradTemplate* chat_template);
// Its special tokens, in the form of tokenizer_config.json.
int32_t lorad_template_tokens(const LoradTemplate* chat_template, LoradBytes* out, LoradBytes* error);
// Checks that all its sources parse; new() leaves that to the first rendering.
int32_t lorad_template_check(const LoradTemplate* chat_template, LoradBytes* error);
// input: {"messages":[...],"tools":[...],"documents":[...],"add_generation_prompt":bool,
// "extra":{name: value},"template":name}.
// now: for strftime_now, what the local wall clock shows, in seconds since 1970 as if it were UTC.
// marked: begin and end, in bytes of the text, of each block `{% generation %}`; may be null.
int32_t lorad_template_render(const LoradTemplate* chat_template, LoradText input, int64_t now, LoradBytes* out,
                              LoradIds* marked, LoradBytes* error);

// The vocabulary as the model has it (logits may be wider than the tokenizer): padded with tokens
// never allowed.
int32_t lorad_grammar_new(const LoradTokenizer* tokenizer, int32_t kind, LoradText source, const uint32_t* eos_ids,
                          size_t eos_count, uint32_t vocab_size, LoradGrammar** out, LoradBytes* error);
int32_t lorad_grammar_of_words(const LoradWords* words, int32_t kind, LoradText source, const uint32_t* eos_ids,
                               size_t eos_count, uint32_t vocab_size, LoradGrammar** out, LoradBytes* error);
// Memory that it holds now; with its state it grows. compiling (may be null): the most that it took
// to compile.
size_t lorad_grammar_bytes(const LoradGrammar* grammar, size_t* compiling);
void lorad_grammar_free(LoradGrammar* grammar);
// Another one in the same state.
int32_t lorad_grammar_duplicate(const LoradGrammar* grammar, LoradGrammar** out, LoradBytes* error);
// One thread at a time may use a grammar. words: (vocab_size + 31) / 32, bit id % 32 of word id /
// 32: allowed.
int32_t lorad_grammar_mask(LoradGrammar* grammar, uint32_t* words, size_t word_count, LoradBytes* error);
int32_t lorad_grammar_commit(LoradGrammar* grammar, uint32_t id, LoradBytes* error);
// 1: the text so far is complete; 2: nothing may follow but the end; 0: neither; 3: a panic was
// caught.
int32_t lorad_grammar_state(LoradGrammar* grammar);

#ifdef __cplusplus
}
#endif
