#include "server/http/adapter_access.h"

#include <algorithm>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "server/access/principal.h"

namespace lorad::server {

const access::Principal* restricted(const HttpRequest& http) {
    return http.principal != nullptr && http.principal->is_restricted() ? http.principal.get() : nullptr;
}

bool may_use(const HttpRequest& http, std::string_view adapter) {
    return access::may_use(http.principal.get(), adapter);
}

Status check_visible(const adapters::Registry& registry, const HttpRequest& http, std::string_view adapter) {
    const access::Principal* key = restricted(http);
    if (key == nullptr || (key->may_use(adapter) && registry.find(adapter))) return ok_status();
    return make_error(ErrorCode::kAdapterNotFound, format("no adapter is called {}", json_quote_short(adapter)),
                      "lora_name");
}

Status check_may_name(const HttpRequest& http, std::string_view adapter) {
    if (may_use(http, adapter)) return ok_status();
    return make_error(ErrorCode::kForbidden, format("this key may not name an adapter {}", json_quote_short(adapter)),
                      "name");
}

Status check_admin(const HttpRequest& http, std::string_view param) {
    if (http.principal == nullptr || http.principal->scopes.allow(access::Scope::kAdmin)) return ok_status();
    return make_error(ErrorCode::kForbidden,
                      format("{}: files of the server are read for keys with the scope admin only", param),
                      std::string(param));
}

std::vector<adapters::AdapterInfo> visible(const HttpRequest& http, std::vector<adapters::AdapterInfo> all) {
    const access::Principal* key = restricted(http);
    if (key == nullptr) return all;
    std::erase_if(all, [&](const adapters::AdapterInfo& adapter) { return !key->may_use(adapter.name); });
    // A mix may consist of adapters that the key may not use.
    auto hide = [&](std::vector<adapters::AdapterTerm>& terms) {
        std::erase_if(terms, [&](const adapters::AdapterTerm& term) { return !key->may_use(term.name); });
    };
    for (adapters::AdapterInfo& adapter : all) {
        hide(adapter.mix);
        for (adapters::PastTarget& past : adapter.history) hide(past.mix);
    }
    return all;
}

adapters::Registry::Page visible_page(const adapters::Registry& registry, const HttpRequest& http,
                                      std::string_view after, size_t n_max) {
    if (restricted(http) == nullptr) return registry.page(after, n_max);
    constexpr size_t kAtOnce = 1000;
    adapters::Registry::Page out;
    std::string last(after);
    for (bool more = true; more;) {
        adapters::Registry::Page page = registry.page(last, kAtOnce);
        more = page.more && !page.adapters.empty();
        if (more) last = page.adapters.back().name;
        for (adapters::AdapterInfo& adapter : visible(http, std::move(page.adapters))) {
            if (out.adapters.size() == n_max) {
                out.more = true;
                return out;
            }
            out.adapters.push_back(std::move(adapter));
        }
    }
    return out;
}

adapters::Holder holder_of(const ServerContext& context, const HttpRequest& http) {
    if (http.principal == nullptr) return {adapters::holder_key(""), 0, 0};
    return {adapters::holder_key(http.principal->tenant), context.uploads.held_bytes_max, context.uploads.n_held_max};
}

void own_blob(ServerContext& context, const HttpRequest& http, const std::string& sha256) {
    if (const access::Principal* key = restricted(http)) context.blob_owners.add(key->tenant, sha256);
}

bool owns_blob(const ServerContext& context, const HttpRequest& http, std::string_view sha256) {
    const access::Principal* key = restricted(http);
    return key == nullptr || context.blob_owners.has(key->tenant, sha256) ||
           context.registry.holds_blob(sha256, adapters::holder_key(key->tenant));
}

Status check_own_blobs(const ServerContext& context, const HttpRequest& http,
                       std::span<const proto::FileDigest> files) {
    for (const proto::FileDigest& file : files) {
        if (owns_blob(context, http, file.sha256)) continue;
        return make_error(ErrorCode::kAdapterFileNotFound,
                          format("files: {}: no blob {} was uploaded", json_quote(file.file), json_quote(file.sha256)),
                          "files");
    }
    return ok_status();
}

}  // namespace lorad::server
