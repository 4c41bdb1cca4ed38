// Whether a text may be said as a whole under a structure, with a real tokenizer.
#pragma once

#include <gtest/gtest.h>

#include "proto/generate/structure.h"
#include "tests/model/text_goldens.h"

namespace lorad::server {

inline bool accepts(const proto::Structure& structure, std::string_view text) {
    static const std::shared_ptr<const model::Tokenizer> kTokenizer = model::golden_tokenizer("qwen2");
    const std::vector<TokenId> eos{*kTokenizer->token_id("<|im_end|>")};
    const auto kind =
        structure.kind == proto::StructureKind::kLark ? model::GrammarKind::kLark : model::GrammarKind::kJsonSchema;
    auto grammar = model::Grammar::create(*kTokenizer, kind, structure.source, eos, kTokenizer->vocab_size());
    EXPECT_TRUE(grammar.ok()) << grammar.error().message << "\n" << structure.source;
    if (!grammar.ok()) return false;
    for (TokenId token : *kTokenizer->encode(text, false)) {
        if (!(*grammar)->commit(token).ok()) return false;
    }
    return (*grammar)->complete();
}

}  // namespace lorad::server
