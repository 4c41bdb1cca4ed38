#include "server/http/generate/response_memory.h"

#include "proto/base/format.h"
#include "server/access/principal.h"
#include "server/http/generate/generation.h"
#include "server/http/generate/response_store.h"

namespace lorad::server {

std::string response_tenant(const HttpRequest& http) {
    const access::Principal* key = http.principal.get();
    const bool is_told = key == nullptr || key->scopes.allow(access::Scope::kAdmin);
    // A gateway's name never equals a key's tenant: those have no blank.
    if (is_told && !http.fairness_id.empty()) return "gateway " + http.fairness_id;
    return key == nullptr ? std::string() : key->tenant;
}

std::optional<proto::ResponsesMemory> response_memory(ServerContext& context, const HttpRequest& http) {
    if (context.responses == nullptr) return std::nullopt;
    proto::ResponsesMemory memory;
    const std::string tenant = response_tenant(http);
    memory.response = [&context, tenant](std::string_view id) { return context.responses->find(tenant, id); };
    memory.item = [&context, tenant](std::string_view id) { return context.responses->find_item(tenant, id); };
    memory.make_item_id = [](std::string_view type) {
        return format("{}_{:016x}", type == "message" ? "msg" : type == "reasoning" ? "rs" : "item", random_number());
    };
    return memory;
}

}  // namespace lorad::server
