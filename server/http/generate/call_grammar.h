// Answers in which the model decides whether it calls functions, as a grammar: what a call holds follows its
// schema, or the answer follows another one. HTTP workers.
#pragma once

#include <optional>

#include "proto/generate/generate_request.h"
#include "server/text_codec.h"

namespace lorad::server {

// The structure of the request's answers: its own; with functions beside a response's format, that or calls; with
// functions that are followed strictly, any text and such calls. Nothing where everything is allowed.
std::optional<proto::Structure> answer_structure(const proto::GenerateRequest& request, model::ToolFormat format,
                                                 const TextCodec& text);

}  // namespace lorad::server
