// Answers in gpt-oss's channels, as a grammar: thoughts are free, the last message or the call is as the request wants
// it. HTTP workers.
#pragma once

#include <optional>

#include "proto/generate/generate_request.h"
#include "server/text_codec.h"

namespace lorad::server {

// Returns a special token's number as a term; for another mark, its text.
std::string mark_term(const TextCodec& text, std::string_view mark);

// The structure of the request's answers; nothing where everything is allowed.
std::optional<proto::Structure> harmony_structure(const proto::GenerateRequest& request, const TextCodec& text);

}  // namespace lorad::server
