#include "server/http/training_access.h"

#include <charconv>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "server/access/principal.h"

namespace lorad::server {

std::string training_tenant(const HttpRequest& http) {
    return http.principal != nullptr ? http.principal->tenant : std::string();
}

Result<training::TrainingService*> training_of(const ServerContext& context) {
    if (context.training != nullptr) return context.training;
    return make_error(ErrorCode::kNotFound,
                      "this server trains nothing: it has no state folder, or --training-jobs is 0");
}

Result<ListPage> list_page(const HttpRequest& http, size_t n_usual, size_t limit_max) {
    ListPage page;
    page.after = std::string(http.query_value("after").value_or(""));
    page.n_max = n_usual;
    if (const std::optional<std::string_view> limit = http.query_value("limit")) {
        const auto [end, error] = std::from_chars(limit->data(), limit->data() + limit->size(), page.n_max);
        if (error != std::errc() || end != limit->data() + limit->size() || page.n_max < 1 || page.n_max > limit_max)
            return make_error(
                ErrorCode::kInvalidRequest,
                format("limit: expected a number from 1 to {}, found {}", limit_max, json_quote_short(*limit)),
                "limit");
    }
    const std::string_view order = http.query_value("order").value_or("desc");
    if (order != "asc" && order != "desc")
        return make_error(ErrorCode::kInvalidRequest,
                          format("order: expected \"asc\" or \"desc\", found {}", json_quote_short(order)), "order");
    page.oldest_first = order == "asc";
    return page;
}

}  // namespace lorad::server
