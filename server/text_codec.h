// Text to token ids and back, as the HTTP workers need it. An interface, so that HTTP and engine
// are tested under many threads without a tokenizer. All methods from any thread; a decoder belongs
// to one request.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/text/text.h"
#include "model/text/tool_calls.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"
#include "proto/generate/structure.h"
#include "server/access/shared_places.h"
#include "server/engine/token_constraint.h"

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
    // The stop string that was found; empty where none was.
    virtual std::string matched_stop() const = 0;
    // Returns held-back text, at the end of the tokens.
    virtual Result<std::string> finish() = 0;
};

struct DecodeOptions {
    std::vector<std::string> stop;
    bool include_stop = false;  // the text ends behind the stop string
    bool skip_special_tokens = true;
    uint32_t n_tokens_min = 0;  // stop strings do not count in the text of the tokens before
};

// The input of a chat template: JSON texts, empty if there is none.
struct ChatInput {
    std::string messages_json;          // an array of messages
    std::string tools_json;             // an array of tools
    std::string documents_json;         // an array of objects
    std::string kwargs_json;            // an object: more variables
    bool add_generation_prompt = true;  // ends with what makes the assistant speak
    // The last message's text: the prompt ends with it, so that the answer continues it.
    std::optional<std::string> continued_text;
    std::string template_name;  // one of several; empty: transformers' choice
    // An adapter's own templates take the model's place: their digest, and where they come from when
    // they are not known yet. Empty, or none of them there: the model's.
    std::string template_digest;
    std::function<Result<std::vector<model::NamedTemplate>>()> template_sources;
    access::Holder holder;  // whose share of the places it takes where that is an adapter's
};

struct RenderedChat {
    std::string text;
    // Fields of the request that the template does not show to the model: "tools", "messages[2].name".
    std::vector<std::string> unread = {};
};

class TextCodec {
  public:
    virtual ~TextCodec() = default;
    virtual Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const = 0;
    virtual Result<std::string> decode(std::span<const TokenId> tokens, bool skip_special_tokens) const = 0;
    // The token that the vocabulary spells so; nothing where it has none.
    virtual std::optional<TokenId> token_id(std::string_view spelling) const = 0;
    // The bytes that a token adds to a text; empty for ids without one.
    virtual std::string token_bytes(TokenId token) const = 0;
    // The prompt text of a chat, each message as its template takes it. kInvalidRequest, naming the role, where the
    // template shows nothing of a message.
    virtual Result<RenderedChat> render_chat(const ChatInput& chat) const = 0;
    virtual std::unique_ptr<TextDecoder> make_decoder(DecodeOptions options) const = 0;
    // Compiles the constraint of an answer; this takes milliseconds and is bounded. kInvalidRequest, naming
    // structure.param, if it is not supported; kInputTooComplex if it takes too much. eos_ids end the answer. holder:
    // the owner of the places it takes.
    virtual Result<std::unique_ptr<TokenConstraint>> make_constraint(const proto::Structure& structure,
                                                                     std::span<const TokenId> eos_ids,
                                                                     uint32_t vocab_size,
                                                                     const access::Holder& holder) const = 0;
    // The served model's format of tool calls, as far as its chat template shows it.
    virtual model::ToolFormat tool_format() const = 0;
};

}  // namespace lorad::server
