// A grammar over a vocabulary of bytes, compiled and followed for some tokens on the stack that the program gives to
// clients' grammars: refused with a reason, or a mask for each step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "model/output/logits.h"
#include "model/text/text.h"
#include "proto/base/check.h"
#include "proto/base/thread.h"

namespace lorad::fuzz {

// The alphabet of a vocabulary of bytes, with some longer tokens and an end.
inline constexpr uint32_t kVocabSize = 256 + 5;

inline std::string word_list() {
    std::string list;
    auto add = [&](std::string_view word) {
        const auto length = uint32_t(word.size());
        for (int i = 0; i < 4; ++i) list.push_back(char(length >> (8 * i) & 0xff));
        list += word;
    };
    for (int byte = 0; byte < 256; ++byte) add(std::string(1, char(byte)));
    for (const char* word : {"ab", "{\"a\":", "null", "  "}) add(word);
    list += std::string(4, '\xff');  // the end, which no text has
    return list;
}

inline void compile_grammar(model::GrammarKind kind, const std::string& source) {
    static const auto words = model::Words::from_list(word_list());
    CHECK(words.ok());
    const std::vector<TokenId> ends = {TokenId(kVocabSize) - 1};
    auto grammar = model::Grammar::create(**words, kind, source, ends, kVocabSize);
    if (!grammar.ok()) {
        CHECK(!grammar.error().message.empty() && grammar.error().message.size() < 3000);
        CHECK(grammar.error().code != ErrorCode::kInternal);
        return;
    }
    std::vector<uint32_t> mask(model::mask_words(kVocabSize));
    for (uint32_t step = 0; step < 8 && (*grammar)->mask(mask).ok(); ++step) {
        TokenId next = TokenId(step * 31 % kVocabSize);
        uint32_t n_seen = 0;
        while (n_seen++ < kVocabSize && (mask[size_t(next) / 32] >> (next % 32) & 1) == 0)
            next = TokenId((uint32_t(next) + 1) % kVocabSize);
        if (n_seen > kVocabSize || !(*grammar)->commit(next).ok()) break;
    }
}

template <typename Work>
void on_big_stack(Work work) {
    std::thread thread;
    CHECK(start_thread(thread, std::move(work), kBigStackBytes));
    thread.join();
}

}  // namespace lorad::fuzz
