// Words that an answer must not have, as tokens. HTTP workers.
#pragma once

#include <string>
#include <vector>

#include "server/engine/request.h"
#include "server/text_codec.h"

namespace lorad::server {

// Adds them to what the requests' answers may be, each with a state of its own; a grammar that is there goes into it. A
// word is bad at the begin of a text and, where the tokenizer makes other tokens of blank and word, behind a blank.
Status add_bad_words(const TextCodec& text, const std::vector<std::string>& words, uint32_t vocab_size,
                     std::vector<Request>& requests);

}  // namespace lorad::server
