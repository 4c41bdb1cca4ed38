#include "server/http/generate/bad_word_tokens.h"

#include <algorithm>

#include "server/engine/bad_words.h"

namespace lorad::server {

Status add_bad_words(const TextCodec& text, const std::vector<std::string>& words, uint32_t vocab_size,
                     std::vector<Request>& requests) {
    if (words.empty()) return ok_status();
    auto sequences = std::make_shared<BadWords::Sequences>();
    for (const std::string& word : words) {
        const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
        TRY_ASSIGN(std::vector<TokenId> first, text.encode(bare, false));
        TRY_ASSIGN(std::vector<TokenId> later, text.encode(" " + bare, false));
        // A blank of its own before the same tokens adds nothing.
        const bool is_other = later.size() < first.size() ||
                              !std::equal(first.begin(), first.end(), later.end() - static_cast<int64_t>(first.size()));
        for (std::vector<TokenId>* tokens : {&first, &later}) {
            if (tokens->empty() || (tokens == &later && !is_other)) continue;
            const bool is_known = std::ranges::all_of(
                *tokens, [&](TokenId token) { return token >= 0 && static_cast<uint32_t>(token) < vocab_size; });
            if (is_known) sequences->push_back(std::move(*tokens));
        }
    }
    for (Request& one : requests)
        one.constraint = std::make_shared<BadWords>(sequences, vocab_size, std::move(one.constraint));
    return ok_status();
}

}  // namespace lorad::server
