// What GET /tokenizer_info tells, as vLLM does: how the model's tokenizer is configured.
#pragma once

#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::proto {

// An object with the members of tokenizer_config.json (`config`; empty: there is none), `tokenizer_class` and, where
// there is one, `chat_template`: `chat_template` if it is not empty, else that of the configuration. Tokens that are
// written as objects become their texts; paths of the machine that the model was made on are left out. kInvalidModel
// for what is no JSON object.
Result<std::string> tokenizer_info(std::string_view config, std::string_view chat_template);

}  // namespace lorad::proto
