// A tokenizer.json as any model folder may have it, and a text for it: refused, or tokens of its vocabulary that become
// text again. The first line is the text, the rest the file.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "model/text/text.h"
#include "proto/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace lorad;
    const std::string_view input(reinterpret_cast<const char*>(data), size);
    const size_t split = std::min(input.find('\n'), input.size());
    const std::string_view text = input.substr(0, split), json = input.substr(std::min(split + 1, input.size()));
    const auto tokenizer = model::Tokenizer::from_json(json, "tokenizer.json");
    if (!tokenizer.ok()) {
        CHECK(tokenizer.error().code == ErrorCode::kInvalidModel && !tokenizer.error().message.empty());
        return 0;
    }
    const auto ids = (*tokenizer)->encode(text, true);
    if (!ids.ok()) return 0;
    for (const TokenId id : *ids) CHECK(id >= 0 && static_cast<uint32_t>(id) < (*tokenizer)->vocab_size());
    (void)(*tokenizer)->decode(*ids, false).ok();
    (void)(*tokenizer)->decode(*ids, true).ok();
    for (const TokenId id : {TokenId{-1}, TokenId{0}, TokenId{INT32_MAX}}) {
        (void)(*tokenizer)->token_text(id);
        (void)(*tokenizer)->token_bytes(id);
        (void)(*tokenizer)->is_byte(id);
    }
    return 0;
}
