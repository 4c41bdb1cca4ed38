// Shared parts of the training routes: whose files and jobs, and pages of lists.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "proto/base/result.h"
#include "server/http/routes.h"
#include "server/training/training_service.h"

namespace lorad::server {

// The key's tenant; empty where there are no keys.
std::string training_tenant(const HttpRequest& http);
// kNotFound where this server trains nothing.
Result<training::TrainingService*> training_of(const ServerContext& context);

struct ListPage {
    std::string after;
    size_t n_max = 20;
    bool oldest_first = false;
};
// after, limit (1 to 100, or limit_max), order.
Result<ListPage> list_page(const HttpRequest& http, size_t n_usual, size_t limit_max);

// Returns the page of `all` that begins behind the id `after`, and true if there are more. id_of(T) is an item's id.
// kInvalidRequest: no such id.
template <typename T, typename IdOf>
Result<std::pair<std::vector<T>, bool>> page_of(std::vector<T> all, const ListPage& page, IdOf id_of) {
    if (page.oldest_first) std::reverse(all.begin(), all.end());
    size_t begin = 0;
    if (!page.after.empty()) {
        while (begin < all.size() && id_of(all[begin]) != page.after) ++begin;
        if (begin == all.size())
            return make_error(ErrorCode::kInvalidRequest, "after: nothing of the list is called so", "after");
        ++begin;
    }
    const size_t end = std::min(all.size(), begin + page.n_max);
    const bool has_more = end < all.size();
    std::vector<T> part(std::make_move_iterator(all.begin() + static_cast<ptrdiff_t>(begin)),
                        std::make_move_iterator(all.begin() + static_cast<ptrdiff_t>(end)));
    return std::pair(std::move(part), has_more);
}

}  // namespace lorad::server
