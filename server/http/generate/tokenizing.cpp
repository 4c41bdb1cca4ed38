#include "server/http/generate/tokenizing.h"

#include <algorithm>

#include "proto/base/format.h"
#include "server/access/principal.h"
#include "server/http/place.h"

namespace lorad::server {
namespace {

constexpr size_t kFirstBytesPerToken = 8, kSlack = 64;  // twice a usual token's; what merges across the cut may save
constexpr size_t kUnpaidBytes = 4 << 10;                // free of charge if a prompt is refused
// The longest wait for others' texts.
constexpr std::chrono::seconds kTextWait{10};

}  // namespace

size_t text_bytes_max(uint32_t n_positions_max) {
    return std::max(kTextBytesMin, kTextBytesPerToken * static_cast<size_t>(n_positions_max));
}

uint64_t tokenizing_bytes_max(uint32_t n_positions_max) {
    return std::max<uint64_t>(1 << 20, 2 * static_cast<uint64_t>(text_bytes_max(n_positions_max)));
}

// Charges the least possible number of tokens, before the real one is known.
Status Tokenizing::begin_charge(size_t n_bytes) {
    const bool is_free = what_ == TokensFor::kGenerating && n_bytes <= kUnpaidBytes;
    if (http_.principal == nullptr || is_free) return ok_status();
    const access::Account::TokenCount count{.n_prompt = n_bytes / kTextBytesPerToken + 1, .n_answers = 0};
    if (auto exceeded = http_.principal->account->charge(count, charge_)) {
        *http_.retry_after_s = exceeded->retry_after_s;
        return exceeded->error;
    }
    return ok_status();
}

void Tokenizing::end_charge(bool is_refused) {
    if (charge_ == nullptr) return;
    if (is_refused || what_ == TokensFor::kShowing)
        charge_->settle(n_tokens_, 0);
    else
        charge_->take_back();
    charge_.reset();
}

Result<std::vector<TokenId>> Tokenizing::encode(std::string_view text, bool add_special_tokens) {
    const auto has_left = [&] { return http_.client_gone && http_.client_gone(); };
    const uint64_t n_bytes = std::min<uint64_t>(std::max<size_t>(text.size(), 1), context_.texts_now.n_max());
    const access::SharedPlaces::Place room = context_.texts_now.wait(holder_of(http_), n_bytes, kTextWait, has_left);
    if (!room.taken())
        return make_error(ErrorCode::kOverloaded, "as much text is being tokenized as may be; try again in a moment");
    TRY_ASSIGN(std::vector<TokenId> tokens, context_.text.encode(text, add_special_tokens));
    n_tokens_ += tokens.size();
    return tokens;
}

// Parts of it first, each twice the one before and from the begin on, so that the tokens of what fits are always those
// of the whole.
Result<std::vector<TokenId>> Tokenizing::within_context(std::string_view text, bool add_special_tokens,
                                                        const std::string& field) {
    const size_t n_enough = context_.n_positions_max + kSlack;
    const auto too_long = [&](const std::string& found) {
        return make_error(ErrorCode::kContextLengthExceeded,
                          format("this model's maximum context length is {} tokens, the input has {}",
                                 context_.n_positions_max, found),
                          field);
    };
    if (text.size() > text_bytes_max(context_.n_positions_max))
        return too_long(format("{} bytes of text", text.size()));
    for (size_t n_bytes = n_enough * kFirstBytesPerToken; text.size() > 2 * n_bytes; n_bytes *= 2) {
        size_t n_whole = n_bytes;
        while (n_whole > 0 && (static_cast<uint8_t>(text[n_whole]) & 0xC0) == 0x80) --n_whole;  // whole characters
        TRY_ASSIGN(const std::vector<TokenId> first, encode(text.substr(0, n_whole), false));
        if (first.size() > n_enough) return too_long(format("more than {}", n_enough));
        if (http_.client_gone && http_.client_gone()) return make_error(ErrorCode::kOverloaded, "the client has left");
    }
    return encode(text, add_special_tokens);
}

Result<std::vector<TokenId>> Tokenizing::of_prompt(std::string_view text, bool add_special_tokens,
                                                   const std::string& field) {
    TRY(begin_charge(std::min(text.size(), text_bytes_max(context_.n_positions_max))));
    Result<std::vector<TokenId>> tokens = within_context(text, add_special_tokens, field);
    end_charge(!tokens.ok());
    n_tokens_ = 0;
    return tokens;
}

Result<std::vector<TokenId>> Tokenizing::of_text(std::string_view text, bool add_special_tokens,
                                                 const std::string& field) {
    const size_t n_bytes_max = text_bytes_max(context_.n_positions_max);
    if (text.size() > n_bytes_max) {
        return make_error(
            ErrorCode::kPayloadTooLarge,
            format("{}: {} bytes of text, at most {} are tokenized: {} for each token of the context, and at least {}",
                   field, text.size(), n_bytes_max, kTextBytesPerToken, kTextBytesMin),
            field);
    }
    TRY(begin_charge(text.size()));
    Result<std::vector<TokenId>> tokens = encode(text, add_special_tokens);
    end_charge(!tokens.ok());
    n_tokens_ = 0;
    return tokens;
}

}  // namespace lorad::server
