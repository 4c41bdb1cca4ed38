// The parts of responses_parse.cpp. Private to proto/responses/.
#pragma once

#include "proto/generate/chat_translation.h"
#include "proto/responses/responses_stored.h"

namespace lorad::proto {

// Collects the input's items to keep them; responses: null if none are kept.
struct InputMemory {
    const ResponsesMemory* responses = nullptr;
    ResponseItems* own = nullptr;  // with `responses`
    size_t n_bytes = 0;            // of the earlier conversation
};
Status translate_input(const JsonValue& input, ChatMessages& messages, const InputMemory& memory);
size_t bytes_of(const ResponseItems& items);
// Translates the conversation of an earlier response; errors name previous_response_id.
Status translate_conversation(const ResponseItems& items, ChatMessages& messages);

}  // namespace lorad::proto
