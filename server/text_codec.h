// Text to token ids and back, as the HTTP workers need it. An interface, so that HTTP and engine
// are tested under many threads without a tokenizer. All methods from any thread; a decoder belongs
// to one request.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::server {

// Turns tokens into text as they come. Never emits half of a UTF-8 character; text that could still
// become a stop string is held back.
class TextDecoder {
  public:
    virtual ~TextDecoder() = default;
    // The text that is certain now. After a stop string was found (text ends before it) nothing
    // more comes.
    virtual Result<std::string> push(TokenId token) = 0;
    virtual bool found_stop() const = 0;
    // What was held back, at the end of the tokens.
    virtual Result<std::string> finish() = 0;
};

class TextCodec {
  public:
    virtual ~TextCodec() = default;
    virtual Result<std::vector<TokenId>> encode(std::string_view text,
                                                bool add_special_tokens) const = 0;
    // The prompt text of a chat; `messages_json` is a JSON array of messages. Ends with what makes
    // the assistant speak.
    virtual Result<std::string> render_chat(const std::string& messages_json) const = 0;
    virtual std::unique_ptr<TextDecoder> make_decoder(std::vector<std::string> stop) const = 0;
};

}  // namespace lorad::server
