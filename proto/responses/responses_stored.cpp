#include "proto/responses/responses_stored.h"

#include <algorithm>

#include "proto/json/json.h"

namespace lorad::proto {
namespace {

void write_items(JsonWriter& writer, const ResponseItems& items) {
    writer.begin_array();
    for (const auto& item : items) writer.raw(item->json);
    writer.end_array();
}

}  // namespace

std::string items_json(const ResponseItems& items) {
    JsonWriter writer;
    write_items(writer, items);
    return writer.take();
}

std::string stored_response_text(const StoredResponse& response) {
    JsonWriter writer;
    writer.begin_object()
        .field("id", response.id)
        .field("tenant", response.tenant)
        .field("created_s", response.created_s)
        .field("input_begin", uint64_t{response.input_begin})
        .field("input_end", uint64_t{response.input_end});
    writer.key("response").raw(response.json).key("items");
    write_items(writer, response.items);
    return writer.end_object().take();
}

Result<StoredResponse> parse_stored_response(std::string_view text, size_t bytes_max) {
    JsonParseOptions options;
    options.name = "a stored response";
    options.code = ErrorCode::kStorageFailed;
    options.max_bytes = bytes_max;
    options.max_depth = kStoredDepthMax;
    options.max_values = kStoredValuesMax;
    TRY_ASSIGN(JsonDocument document, parse_json(text, options));
    const JsonValue root = document.root();
    StoredResponse out;
    TRY_ASSIGN(JsonValue id, root.require("id"));
    TRY_ASSIGN(out.id, id.as_string());
    TRY_ASSIGN(out.tenant, root.string_or("tenant", ""));
    TRY_ASSIGN(JsonValue created, root.require("created_s"));
    TRY_ASSIGN(out.created_s, created.as_int());
    TRY_ASSIGN(JsonValue response, root.require("response"));
    out.json = response.dump();
    TRY_ASSIGN(JsonValue list, root.require("items"));
    TRY_ASSIGN(std::vector<JsonValue> items, list.as_array());
    for (const JsonValue& item : items) {
        TRY_ASSIGN(JsonValue item_id, item.require("id"));
        TRY_ASSIGN(std::string_view item_text, item_id.as_string());
        out.items.push_back(std::make_shared<const ResponseItem>(ResponseItem{std::string(item_text), item.dump()}));
    }
    TRY_ASSIGN(int64_t begin, root.int_or("input_begin", 0, 0, static_cast<int64_t>(items.size())));
    TRY_ASSIGN(int64_t end, root.int_or("input_end", begin, begin, static_cast<int64_t>(items.size())));
    out.input_begin = static_cast<size_t>(begin);
    out.input_end = static_cast<size_t>(end);
    return out;
}

Result<std::string> input_items_response(const StoredResponse& response, const ItemPage& page) {
    ResponseItems items(response.items.begin() + static_cast<int64_t>(response.input_begin),
                        response.items.begin() + static_cast<int64_t>(response.input_end));
    if (!page.oldest_first) std::ranges::reverse(items);
    if (!page.after.empty()) {
        auto found = std::ranges::find_if(items, [&](const auto& item) { return item->id == page.after; });
        if (found == items.end())
            return make_error(ErrorCode::kInvalidRequest, "after: expected the id of one of the items", "after");
        items.erase(items.begin(), found + 1);
    }
    const bool has_more = items.size() > page.n_max;
    if (has_more) items.resize(page.n_max);
    JsonWriter writer;
    writer.begin_object().field("object", "list").key("data");
    write_items(writer, items);
    for (const char* name : {"first_id", "last_id"}) {
        writer.key(name);
        if (items.empty()) {
            writer.null();
        } else {
            writer.value(name[0] == 'f' ? items.front()->id : items.back()->id);
        }
    }
    return writer.field("has_more", has_more).end_object().take();
}

std::string deleted_response(std::string_view id) {
    JsonWriter writer;
    return writer.begin_object().field("id", id).field("object", "response").field("deleted", true).end_object().take();
}

std::string input_tokens_response(uint64_t n_tokens) {
    JsonWriter writer;
    return writer.begin_object()
        .field("object", "response.input_tokens")
        .field("input_tokens", n_tokens)
        .end_object()
        .take();
}

}  // namespace lorad::proto
