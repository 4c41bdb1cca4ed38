// Knows how texts are cut into words before byte-level BPE: GGUF gives only a name (tokenizer.ggml.pre).
#pragma once

#include <string>
#include <string_view>

namespace lorad::model {

struct WordCutting {
    std::string_view name;           // tokenizer.ggml.pre
    std::string_view pattern;        // of a word; empty: GPT-2's, which the crate has itself
    bool is_digit_by_digit = false;  // before that
    bool is_nfc = false;             // the text is composed first
    bool takes_whole_words = false;  // a word that is an entry needs no merges
    bool adds_begin = false;         // where the file does not say whether the beginning token is put before texts
};
// nullptr: lorad knows none of this name.
const WordCutting* word_cutting(std::string_view name);
std::string word_cuttings();  // "gpt-2, llama-bpe, ..."

}  // namespace lorad::model
