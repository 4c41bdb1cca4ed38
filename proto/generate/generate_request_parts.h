// The parts of generate_request_parse.cpp, by what they read. Private to proto/generate/, and
// for parsers of other bodies that have the same fields.
#pragma once

#include "proto/generate/generate_request.h"
#include "proto/json/json.h"

namespace lorad::proto {

// Parses a whole body; a chat must have no custom tools, and no choices among tools.
Result<GenerateRequest> parse_generate_object(const JsonValue& root, ApiKind kind, uint32_t vocab_size);
// The same for a chat that may have them.
Result<GenerateRequest> parse_generate_root(const JsonValue& root, ApiKind kind, uint32_t vocab_size);
// Parses a translated body; `ignored`: the client's fields already found to have no effect.
Result<GenerateRequest> parse_translated(const std::string& translated, ApiKind kind, uint32_t vocab_size,
                                         FieldNames names, std::vector<std::string> ignored);

Status parse_sampling(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size);
Status parse_limits(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size);
Status parse_stop(const JsonValue& root, GenerateRequest& request);
Status parse_output(const JsonValue& root, GenerateRequest& request);  // after limits
Status parse_prompts(const JsonValue& root, GenerateRequest& request, uint32_t vocab_size);
Status parse_messages(const JsonValue& root, GenerateRequest& request);
Status parse_structure(const JsonValue& root, GenerateRequest& request);
Status parse_tools(const JsonValue& root, GenerateRequest& request);  // after limits; the structure, too
Status parse_adapters(const JsonValue& root, GenerateRequest& request);
Status parse_template_options(const JsonValue& root, GenerateRequest& request);  // after messages

// A number within [min, max], without `min` itself unless min_allowed; nothing where it is absent.
Result<std::optional<float>> optional_number(const JsonValue& root, std::string_view name, double min, bool min_allowed,
                                             double max);
// A list of token ids of the vocabulary, n_max at most.
Result<std::vector<TokenId>> parse_ids(const JsonValue& value, uint32_t vocab_size, size_t n_max);
// A text of at most n_max bytes; empty where it is absent.
Result<std::string> short_text(const JsonValue& root, std::string_view name, size_t n_max);

bool is_number(const JsonValue& value, double expected);
bool is_bool(const JsonValue& value, bool expected);
bool is_text(const JsonValue& value, std::string_view expected);

}  // namespace lorad::proto
