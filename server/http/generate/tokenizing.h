// Turns text into tokens for one request, on its HTTP worker. A tokenizer takes a second and hundreds of bytes for each
// of a million characters, cannot be stopped half way, and has no limit: so its input is bounded by what the context
// can hold, also over all requests at a time, and the sender's quota pays for it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/access/account.h"
#include "server/http/routes.h"

namespace lorad::server {

// The most bytes of one text. English has 4 or 5 bytes a token, indented code not twice as many; runs of one character
// are what has more.
inline constexpr size_t kTextBytesPerToken = 16;
inline constexpr size_t kTextBytesMin = 256 << 10;  // however small the context
size_t text_bytes_max(uint32_t n_positions_max);
// Bytes of text that are tokenized at a time.
uint64_t tokenizing_bytes_max(uint32_t n_positions_max);

// The purpose of the tokens.
enum class TokensFor : uint8_t {
    kGenerating,  // they are a prompt: charged when it is handed to the engine
    kShowing,     // nothing else: charged here
};

class Tokenizing {
  public:
    Tokenizing(ServerContext& context, const HttpRequest& http, TokensFor what)
        : context_(context), http_(http), what_(what) {}

    // Tokenizes a prompt. kContextLengthExceeded if it has more tokens than the context, which a prefix of it may show;
    // kRateLimited if the key's tokens are used up; kOverloaded if others' texts take too long, or the client has left.
    Result<std::vector<TokenId>> of_prompt(std::string_view text, bool add_special_tokens, const std::string& field);
    // Tokenizes a text that need not fit the context. kPayloadTooLarge.
    Result<std::vector<TokenId>> of_text(std::string_view text, bool add_special_tokens, const std::string& field);

  private:
    Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens);
    Result<std::vector<TokenId>> within_context(std::string_view text, bool add_special_tokens,
                                                const std::string& field);
    Status begin_charge(size_t n_bytes);
    void end_charge(bool is_refused);

    ServerContext& context_;
    const HttpRequest& http_;
    const TokensFor what_;
    std::shared_ptr<access::Account::Charge> charge_;  // null: nobody's, or too little
    uint64_t n_tokens_ = 0;                            // made for the text at hand
};

}  // namespace lorad::server
