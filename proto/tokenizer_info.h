// Answers GET /tokenizer_info, as vLLM does, with the configuration of the model's tokenizer.
#pragma once

#include <string>
#include <string_view>

#include "proto/base/result.h"

namespace lorad::proto {

// Returns an object with the members of tokenizer_config.json (`config`; empty: there is none), `tokenizer_class` and,
// if there is one, `chat_template`: the argument if it is not empty, else the configuration's. Tokens that are written
// as objects become their texts; paths of the machine that the model was made on are left out. kInvalidModel if
// `config` is no JSON object.
Result<std::string> tokenizer_info(std::string_view config, std::string_view chat_template);

}  // namespace lorad::proto
