// Bodies of POST /v1/responses, as OpenAI's clients send them: said as a chat, with what the answer
// repeats of them.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "proto/generate/generate_request.h"
#include "proto/responses/responses_stored.h"

namespace lorad::proto {

struct ResponsesRequest {
    GenerateRequest generate;

    // Repeated in the answer, as JSON.
    std::string instructions_json = "null";
    std::string metadata_json = "{}";
    std::string tools_json = "[]";
    std::string tool_choice_json = "\"auto\"";
    std::string format_json = R"({"type":"text"})";
    bool parallel_tool_calls = true;
    bool with_logprobs = false;

    std::set<std::string, std::less<>> custom_tools;  // custom_tools.h

    // If the server keeps responses: `store` keeps this one; the others are its conversation before the answer.
    bool store = false;
    std::string previous_response_id;
    ResponseItems earlier, own_input;
};

// Errors as parse_generate_request(), about the body's own fields. `memory`: null where nothing is kept; what refers to
// earlier responses is refused then.
Result<ResponsesRequest> parse_responses_request(std::string_view body, uint32_t vocab_size,
                                                 const ResponsesMemory* memory = nullptr);

}  // namespace lorad::proto
