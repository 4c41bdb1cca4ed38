// Chooses the adapters that a request runs with, and leases them: from its `model`, its `adapters` or `lora`, and the
// global scales of llama-server's interface.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "adapters/pool/registry.h"
#include "proto/base/mutex.h"
#include "proto/generate/generate_request.h"
#include "server/engine/request.h"

namespace lorad::server {

namespace access {
struct Principal;
}
struct HttpRequest;
struct ServerContext;

// llama-server knows adapters by number and gives each a scale that holds for all requests which
// name none. A name keeps its number for as long as the server runs, also when it goes and comes
// back (the last 65,536 that went); new names get the next numbers. All scales begin at 0. For a key
// with some adapters only the numbers count those alone: they tell nothing of others'. Any thread.
class LoraScales {
  public:
    struct Entry {
        uint32_t id = 0;
        std::string name;
        float scale = 0.0f;
    };

    // The registered adapters that the key may use (null: all) with their numbers, in their order.
    // Names without one get it, the oldest first.
    std::vector<Entry> entries(const adapters::Registry& registry, const access::Principal* key);
    // Returns the name of a registered adapter by its number; nothing if the key may not use it.
    std::optional<std::string> name_of(const adapters::Registry& registry, uint32_t id, const access::Principal* key);
    // Replaces all scales; adapters that are left out get 0. kInvalidRequest for an unknown number.
    Status set(const adapters::Registry& registry, const std::vector<proto::IdScale>& scales);
    // The names of a request's list. kInvalidRequest for an unknown number, param LIST[i].id.
    Result<std::vector<adapters::AdapterTerm>> terms(const adapters::Registry& registry,
                                                     const std::vector<proto::IdScale>& scales, std::string_view list);
    // Adapters with a scale other than 0 that are still there.
    std::vector<adapters::AdapterTerm> defaults(const adapters::Registry& registry) const;

    // Gives the name the next number.
    void add(const std::string& name);

  private:
    static constexpr size_t kGoneMax = 65536;  // removed names that keep their numbers
    // of keys with some adapters only; the one not used for longest is forgotten
    static constexpr size_t kViewsMax = 1024;

    struct Numbers {
        std::map<std::string, uint32_t, std::less<>> ids;
        std::map<uint32_t, std::string> names;
        uint32_t next = 0;
        uint64_t used_at = 0;

        void add(const std::string& name);
        void add_all(const std::vector<adapters::AdapterInfo>& registered);
    };
    Numbers& numbers_of(const access::Principal* key) REQUIRES(mutex_);

    mutable Mutex mutex_;
    Numbers all_ GUARDED_BY(mutex_);
    std::map<std::string, Numbers, std::less<>> views_ GUARDED_BY(mutex_);  // by the key's patterns
    uint64_t n_uses_ GUARDED_BY(mutex_) = 0;
    std::map<uint32_t, float> scales_ GUARDED_BY(mutex_);  // scales other than 0, by number in all_
};

// For a key with some adapters only, before anything else is done with the request: others' adapters do not exist for
// it, by name or by number (errors as choose_adapters()), and the global scales do not apply.
Status limit_adapters(ServerContext& context, const HttpRequest& http, proto::GenerateRequest& request);

// Checks that the request's names are known, for routes that compute nothing: nothing is brought to the device. Errors
// are those of choose_adapters() about names.
Status check_adapters(ServerContext& context, const HttpRequest& http, const proto::GenerateRequest& request);
// kModelNotFound, or kAdapterNotFound for BASE:NAME, with the similar names that the request's key may list.
Error no_such_model(const ServerContext& context, const HttpRequest& http, const std::string& model);

// The request's adapter if there is exactly one: its chat template counts.
std::optional<std::string> only_adapter(ServerContext& context, const proto::GenerateRequest& request);

// Waits, within the registry's bound, until everything is on the device; a client that leaves ends
// the wait. Empty lease: the base. kModelNotFound and kAdapterNotFound with the field that named it,
// kInvalidRequest where `model` names an adapter and the request lists others, and what
// Registry::acquire gives.
Result<adapters::MixLease> choose_adapters(ServerContext& context, const proto::GenerateRequest& request,
                                           const HttpRequest& http);

// Returns the part of a lease that the engine needs. An activated adapter counts from the last occurrence of its
// invocation tokens in the prompt on, and never if they do not occur.
AdapterUse use_of(const adapters::MixLease& lease, std::span<const TokenId> prompt);

// Returns the identities under which the prompt's KV blocks may be shared: from the contents that the lease pins, as
// use_of() applies them. Requests with different salts share none.
PrefixIdentity prefix_of(const adapters::Registry& registry, const adapters::MixLease& lease, const AdapterUse& use,
                         std::span<const TokenId> prompt, std::string_view salt);

}  // namespace lorad::server
