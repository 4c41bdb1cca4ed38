// Kept responses, which a later request may refer to, and their forms in a file and in answers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::proto {

// One item of a conversation, as /v1/responses writes and reads it. Items are shared by all responses whose
// conversation has them.
struct ResponseItem {
    std::string id;
    std::string json;  // an object with that id
};
using ResponseItems = std::vector<std::shared_ptr<const ResponseItem>>;

struct StoredResponse {
    std::string id;
    std::string tenant;  // whose it is
    int64_t created_s = 0;
    std::string json;     // the response object, as it was answered
    ResponseItems items;  // the conversation: of earlier turns, then this request's input, then the answer's output
    size_t input_begin = 0, input_end = 0;  // this request's own
};

// Finds the responses and items that a request may refer to: those of its tenant.
struct ResponsesMemory {
    std::function<std::shared_ptr<const StoredResponse>(std::string_view response_id)> response;
    std::function<std::shared_ptr<const ResponseItem>(std::string_view item_id)> item;
    std::function<std::string(std::string_view item_type)> make_item_id;
};

// [ITEM, ...]
std::string items_json(const ResponseItems& items);

// Limits for reading a kept response: a file wraps the values of a body in a few more levels, a conversation has those
// of many bodies, and only the number of kept bytes bounds their count.
inline constexpr uint32_t kStoredDepthMax = 96;
inline constexpr uint32_t kStoredValuesMax = UINT32_MAX;

// The limit on the continued conversation and the items that the request refers to, counted per reference.
inline constexpr size_t kConversationBytesMax = size_t{32} << 20;

// One file for each response.
std::string stored_response_text(const StoredResponse& response);
// kStorageFailed for a text that the function above did not write.
Result<StoredResponse> parse_stored_response(std::string_view text, size_t bytes_max);

// GET /v1/responses/ID/input_items: up to n_max of them behind `after` (empty: from the begin), the latest first unless
// `oldest_first`.
// kInvalidRequest where `after` is none of them.
struct ItemPage {
    size_t n_max = 20;
    std::string after = {};
    bool oldest_first = false;
};
Result<std::string> input_items_response(const StoredResponse& response, const ItemPage& page);
std::string deleted_response(std::string_view id);
std::string input_tokens_response(uint64_t n_tokens);

}  // namespace lorad::proto
