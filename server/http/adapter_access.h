// Adapters that a request's key may not use do not exist for it: not in lists, not as names, not in errors. HTTP
// workers.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "adapters/pool/registry.h"
#include "proto/adapter_request.h"
#include "server/http/routes.h"

namespace lorad::server {

// The key's, or null where it may use all.
const access::Principal* restricted(const HttpRequest& http);
bool may_use(const HttpRequest& http, std::string_view adapter);

// kAdapterNotFound, as the registry says it about a name that is not there. For a key with some adapters this comes
// first for names that are not there as well: further checks must not tell the two apart.
Status check_visible(const adapters::Registry& registry, const HttpRequest& http, std::string_view adapter);
// kForbidden where the key may give no such name, whether it is there or not.
Status check_may_name(const HttpRequest& http, std::string_view adapter);
// kForbidden but for keys that may do everything: routes that read files of the server.
Status check_admin(const HttpRequest& http, std::string_view param);

std::vector<adapters::AdapterInfo> visible(const HttpRequest& http, std::vector<adapters::AdapterInfo> all);
// The next n_max that are visible.
adapters::Registry::Page visible_page(const adapters::Registry& registry, const HttpRequest& http,
                                      std::string_view after, size_t n_max);

// The holder of this request's uploads: the key's tenant, or everybody if there are no keys.
adapters::Holder holder_of(const ServerContext& context, const HttpRequest& http);

// Remembers whose upload it is, and asks for it.
void own_blob(ServerContext& context, const HttpRequest& http, const std::string& sha256);
bool owns_blob(const ServerContext& context, const HttpRequest& http, std::string_view sha256);
// kAdapterFileNotFound, as the registry says it.
Status check_own_blobs(const ServerContext& context, const HttpRequest& http, std::span<const proto::FileDigest> files);

}  // namespace lorad::server
