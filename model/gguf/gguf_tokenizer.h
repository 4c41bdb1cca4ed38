// The tokenizer of a GGUF file as a tokenizer.json, and its chat templates: what the crate `tokenizers` and
// model/text/text.h read.
#pragma once

#include <string>
#include <vector>

#include "model/gguf/gguf_file.h"
#include "model/text/text.h"
#include "proto/base/result.h"

namespace lorad::model {

// Errors are kInvalidModel, without the file's name. vocab_size: rows of the embedding; the file may not have more
// tokens.

// A tokenizer.json; empty: the file has no tokenizer, prompts are token ids. A tokenizer of a kind, or with a way of
// cutting texts into words, that lorad does not know is refused by its name.
Result<std::string> tokenizer_from_gguf(const GgufFile& file, uint32_t vocab_size);
// "gpt2 (llama-bpe)", for reports; empty: there is none.
std::string tokenizer_kind(const GgufFile& file);

struct GgufChat {
    // the special tokens, in the form of tokenizer_config.json; empty: the file has no tokenizer
    std::string tokens_json;
    std::vector<NamedTemplate> templates;
};
Result<GgufChat> chat_from_gguf(const GgufFile& file, uint32_t vocab_size);

// The ids of a special token's field, such as "eos_token_id"; nothing where there is none. Refused beyond the
// vocabulary.
Result<std::optional<TokenId>> special_token_of(const GgufFile& file, std::string_view name, uint32_t vocab_size);

}  // namespace lorad::model
