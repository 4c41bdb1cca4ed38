#include "server/http/generate/adapter_choice.h"

#include <algorithm>
#include <limits>
#include <set>

#include "model/exec/kv_cache.h"
#include "proto/base/format.h"
#include "proto/base/mutex.h"
#include "proto/base/nearest.h"
#include "proto/json/json.h"
#include "server/access/principal.h"
#include "server/http/adapter_access.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

using adapters::AdapterTerm;
using adapters::MixLease;

adapters::AcquireOptions waiting_for(ServerContext& context, const HttpRequest& http) {
    adapters::AcquireOptions options;
    options.cancelled = [&context, &http] {
        return !context.engine.accepting() || (http.client_gone && http.client_gone());
    };
    return options;
}

// NAME of BASE:NAME and BASE::NAME; empty for anything else.
std::string_view qualified_name(std::string_view model, std::string_view base) {
    if (model.size() <= base.size() + 1 || !model.starts_with(base) || model[base.size()] != ':') return {};
    model.remove_prefix(base.size() + 1);
    if (model.starts_with(':')) model.remove_prefix(1);
    return model;
}

// Adds similar names among those that the request's key may list.
Error not_found(const ServerContext& context, const HttpRequest& http, ErrorCode code, std::string what,
                std::string_view name, std::string_view param) {
    constexpr size_t kNearestMax = 3;
    std::vector<std::string> names{context.base_name};
    for (adapters::AdapterInfo& adapter : visible(http, context.registry.list())) {
        if (!adapter.draining) names.push_back(std::move(adapter.name));
    }
    std::string like;
    for (const std::string& one : nearest_names(name, names, kNearestMax))
        like += (like.empty() ? "" : ", ") + json_quote_short(one);
    what += like.empty() ? "; GET /v1/models lists what there is" : "; did you mean " + like + "?";
    return make_error(code, std::move(what), std::string(param));
}

Error no_such_adapter(const ServerContext& context, const HttpRequest& http, std::string_view name,
                      std::string_view param) {
    return not_found(context, http, ErrorCode::kAdapterNotFound,
                     format("no adapter is called {}", json_quote_short(name)), name, param);
}

Result<MixLease> lease_of_model(ServerContext& context, const HttpRequest& http, const std::string& model,
                                const adapters::AcquireOptions& options) {
    Result<MixLease> lease = context.registry.acquire(model, options);
    if (lease.ok() || lease.error().code != ErrorCode::kAdapterNotFound) return lease;
    std::string_view name = qualified_name(model, context.base_name);
    if (name.empty()) return no_such_model(context, http, model);
    lease = context.registry.acquire(name, options);
    if (lease.ok() || lease.error().code != ErrorCode::kAdapterNotFound) return lease;
    return no_such_model(context, http, model);
}

Error listed_beside_adapter(const ServerContext& context, const proto::GenerateRequest& request,
                            std::string_view listed) {
    return make_error(ErrorCode::kInvalidRequest,
                      format("{}: the model {} is an adapter already; with a list of adapters, "
                             "model is the base, {}",
                             listed, json_quote_short(request.model), json_quote(context.base_name)),
                      std::string(listed));
}

// Where the body has the name of the i-th of request.adapters.
std::string name_field(const proto::GenerateRequest& request, size_t i) {
    return request.adapters_field == "adapters" ? format("adapters[{}].name", i) : request.adapters_field;
}

Result<MixLease> lease_of_terms(ServerContext& context, const HttpRequest& http, const proto::GenerateRequest& request,
                                const std::vector<AdapterTerm>& terms, const adapters::AcquireOptions& options) {
    Result<MixLease> lease = context.registry.acquire(terms, options);
    if (lease.ok() || lease.error().code != ErrorCode::kAdapterNotFound) return lease;
    for (size_t i = 0; i < terms.size(); ++i) {
        if (!context.registry.find(terms[i].name))
            return no_such_adapter(context, http, terms[i].name, request.adapters ? name_field(request, i) : "lora");
    }
    Error error = lease.error();
    error.param = request.adapters ? request.adapters_field : "lora";
    return error;
}

// list: the name of the list that has the number; empty where it is the body itself.
Error no_such_number(std::string_view list, size_t index, uint32_t id) {
    std::string field = format("{}[{}].id", list, index);
    return make_error(ErrorCode::kInvalidRequest, format("{}: no adapter has the number {}", field, id), field);
}

}  // namespace

Error no_such_model(const ServerContext& context, const HttpRequest& http, const std::string& model) {
    std::string_view name = qualified_name(model, context.base_name);
    if (!name.empty()) return no_such_adapter(context, http, name, "model");
    return not_found(context, http, ErrorCode::kModelNotFound,
                     format("the model {} does not exist", json_quote_short(model)), model, "model");
}

std::optional<std::string> LoraScales::name_of(const adapters::Registry& registry, uint32_t id,
                                               const access::Principal* key) {
    for (Entry& entry : entries(registry, key)) {
        if (entry.id == id) return std::move(entry.name);
    }
    return std::nullopt;
}

void LoraScales::Numbers::add(const std::string& name) {
    if (ids.emplace(name, next).second) names.emplace(next++, name);
}

void LoraScales::add(const std::string& name) {
    MutexLock lock(mutex_);
    all_.add(name);
}

void LoraScales::Numbers::add_all(const std::vector<adapters::AdapterInfo>& registered) {
    std::vector<const adapters::AdapterInfo*> fresh;
    std::set<std::string_view> present;
    for (const adapters::AdapterInfo& adapter : registered) {
        present.insert(adapter.name);
        if (!adapter.draining && !ids.contains(adapter.name)) fresh.push_back(&adapter);
    }
    std::sort(fresh.begin(), fresh.end(), [](const auto* a, const auto* b) {
        return std::tie(a->loaded_at_s, a->name) < std::tie(b->loaded_at_s, b->name);
    });
    for (const adapters::AdapterInfo* adapter : fresh) add(adapter->name);
    size_t n_beyond = names.size() - std::min(names.size(), present.size() + kGoneMax);
    for (auto named = names.begin(); n_beyond > 0 && named != names.end();) {
        if (present.contains(named->second)) {
            ++named;
            continue;
        }
        ids.erase(named->second);
        named = names.erase(named);
        --n_beyond;
    }
}

LoraScales::Numbers& LoraScales::numbers_of(const access::Principal* key) {
    if (key == nullptr) return all_;
    std::string patterns;
    for (const std::string& pattern : *key->adapters) patterns += pattern + "\n";
    auto [view, is_new] = views_.try_emplace(std::move(patterns));
    view->second.used_at = ++n_uses_;
    if (is_new && views_.size() > kViewsMax) {
        views_.erase(std::ranges::min_element(views_, {}, [](const auto& known) { return known.second.used_at; }));
    }
    return view->second;
}

std::vector<LoraScales::Entry> LoraScales::entries(const adapters::Registry& registry, const access::Principal* key) {
    std::vector<adapters::AdapterInfo> registered = registry.list();
    std::erase_if(registered, [&](const adapters::AdapterInfo& adapter) {
        return adapter.draining || (key != nullptr && !key->may_use(adapter.name));
    });
    MutexLock lock(mutex_);
    Numbers& numbers = numbers_of(key);
    numbers.add_all(registered);
    std::vector<Entry> entries;
    for (const adapters::AdapterInfo& adapter : registered) {
        auto known = all_.ids.find(adapter.name);
        auto scale = known == all_.ids.end() ? scales_.end() : scales_.find(known->second);
        entries.push_back({numbers.ids.at(adapter.name), adapter.name, scale == scales_.end() ? 0.0f : scale->second});
    }
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.id < b.id; });
    return entries;
}

Result<std::vector<AdapterTerm>> LoraScales::terms(const adapters::Registry& registry,
                                                   const std::vector<proto::IdScale>& scales, std::string_view list) {
    if (scales.empty()) return std::vector<AdapterTerm>();
    const std::vector<Entry> known = entries(registry, nullptr);
    std::vector<AdapterTerm> terms;
    for (size_t i = 0; i < scales.size(); ++i) {
        auto entry = std::lower_bound(known.begin(), known.end(), scales[i].id,
                                      [](const Entry& e, uint32_t id) { return e.id < id; });
        if (entry == known.end() || entry->id != scales[i].id) {
            return no_such_number(list, i, scales[i].id);
        }
        if (scales[i].scale != 0.0f) terms.push_back({entry->name, scales[i].scale});
    }
    return terms;
}

Status LoraScales::set(const adapters::Registry& registry, const std::vector<proto::IdScale>& scales) {
    TRY(terms(registry, scales, ""));
    MutexLock lock(mutex_);
    scales_.clear();
    for (const proto::IdScale& entry : scales) {
        if (entry.scale != 0.0f) scales_[entry.id] = entry.scale;
    }
    return ok_status();
}

std::vector<AdapterTerm> LoraScales::defaults(const adapters::Registry& registry) const {
    std::vector<AdapterTerm> terms;
    {
        MutexLock lock(mutex_);
        for (const auto& [id, scale] : scales_) {
            auto name = all_.names.find(id);
            if (name != all_.names.end()) terms.push_back({name->second, scale});
        }
    }
    std::erase_if(terms, [&](const AdapterTerm& term) { return !registry.find(term.name); });
    return terms;
}

Status limit_adapters(ServerContext& context, const HttpRequest& http, proto::GenerateRequest& request) {
    const access::Principal* key = restricted(http);
    if (key == nullptr) return ok_status();
    const char* listed = request.adapters ? request.adapters_field.c_str() : request.lora ? "lora" : nullptr;
    auto is_there = [&](std::string_view name) {
        return !name.empty() && key->may_use(name) && context.registry.find(name).has_value();
    };
    if (!request.model.empty() && request.model != context.base_name) {
        std::string_view qualified = qualified_name(request.model, context.base_name);
        if (!is_there(request.model)) {
            if (!is_there(qualified)) return no_such_model(context, http, request.model);
            // From now on only the short name counts, not an adapter that is registered under the longer one.
            request.model = std::string(qualified);
        }
        return listed == nullptr ? ok_status() : listed_beside_adapter(context, request, listed);
    }
    if (request.lora) {
        request.adapters.emplace();
        for (size_t i = 0; i < request.lora->size(); ++i) {
            const proto::IdScale& one = (*request.lora)[i];
            std::optional<std::string> name = context.lora_scales.name_of(context.registry, one.id, key);
            if (!name) return no_such_number("lora", i, one.id);
            if (one.scale != 0.0f) request.adapters->push_back({*name, one.scale});
        }
        request.lora.reset();
        request.adapters_field = "lora";
    }
    if (!request.adapters) request.adapters.emplace();
    for (size_t i = 0; i < request.adapters->size(); ++i) {
        const std::string& name = (*request.adapters)[i].name;
        if (!is_there(name)) return no_such_adapter(context, http, name, name_field(request, i));
    }
    return ok_status();
}

Status check_adapters(ServerContext& context, const HttpRequest& http, const proto::GenerateRequest& request) {
    const char* listed = request.adapters ? request.adapters_field.c_str() : request.lora ? "lora" : nullptr;
    if (!request.model.empty() && request.model != context.base_name) {
        std::string_view qualified = qualified_name(request.model, context.base_name);
        if (!context.registry.find(request.model) && (qualified.empty() || !context.registry.find(qualified)))
            return no_such_model(context, http, request.model);
        if (listed != nullptr) return listed_beside_adapter(context, request, listed);
    }
    if (request.lora) TRY(context.lora_scales.terms(context.registry, *request.lora, "lora"));
    if (!request.adapters) return ok_status();
    for (size_t i = 0; i < request.adapters->size(); ++i) {
        const std::string& name = (*request.adapters)[i].name;
        if (!context.registry.find(name)) return no_such_adapter(context, http, name, name_field(request, i));
    }
    return ok_status();
}

std::optional<std::string> only_adapter(ServerContext& context, const proto::GenerateRequest& request) {
    if (!request.model.empty() && request.model != context.base_name) {
        std::string_view qualified = qualified_name(request.model, context.base_name);
        bool is_name = qualified.empty() || context.registry.find(request.model);
        return is_name ? request.model : std::string(qualified);
    }
    std::vector<AdapterTerm> terms;
    if (request.adapters) {
        for (const proto::NamedScale& term : *request.adapters) {
            if (term.scale != 0.0f) terms.push_back({term.name, term.scale});
        }
    } else if (request.lora) {
        Result<std::vector<AdapterTerm>> listed = context.lora_scales.terms(context.registry, *request.lora, "lora");
        if (listed.ok()) terms = std::move(*listed);
    } else {
        terms = context.lora_scales.defaults(context.registry);
    }
    return terms.size() == 1 ? std::optional(terms.front().name) : std::nullopt;
}

Result<MixLease> choose_adapters(ServerContext& context, const proto::GenerateRequest& request,
                                 const HttpRequest& http) {
    const adapters::AcquireOptions options = waiting_for(context, http);
    const char* listed = request.adapters ? request.adapters_field.c_str() : request.lora ? "lora" : nullptr;
    if (!request.model.empty() && request.model != context.base_name) {
        TRY_ASSIGN(MixLease lease, lease_of_model(context, http, request.model, options));
        if (listed == nullptr) return lease;
        return listed_beside_adapter(context, request, listed);
    }
    std::vector<AdapterTerm> terms;
    if (request.adapters) {
        for (const proto::NamedScale& term : *request.adapters) terms.push_back({term.name, term.scale});
    } else if (request.lora) {
        TRY_ASSIGN(terms, context.lora_scales.terms(context.registry, *request.lora, "lora"));
    } else {
        // One that has gone since counts as 0.
        for (;;) {
            terms = context.lora_scales.defaults(context.registry);
            Result<MixLease> lease = context.registry.acquire(terms, options);
            if (lease.ok() || lease.error().code != ErrorCode::kAdapterNotFound) return lease;
        }
    }
    return lease_of_terms(context, http, request, terms, options);
}

AdapterUse use_of(const MixLease& lease, std::span<const TokenId> prompt) {
    AdapterUse use;
    if (!lease) return use;
    use.uses = lease.uses();
    std::span<const TokenId> invocation = lease.invocation_tokens();
    if (!invocation.empty()) use.from_position = activation_position(prompt, invocation);
    use.name = lease.name();
    use.lease = std::make_shared<const MixLease>(lease);
    use.revoked = [lease] { return lease.revoked(); };
    return use;
}

PrefixIdentity prefix_of(const adapters::Registry& registry, const MixLease& lease, const AdapterUse& use,
                         std::span<const TokenId> prompt, std::string_view salt) {
    PrefixScope scope;
    scope.base_fingerprint = registry.base().fingerprint;
    scope.adapters.assign(lease.content().begin(), lease.content().end());
    scope.from_position = use.from_position;
    scope.tenant_salt = salt;
    PrefixIdentity prefix(std::move(scope), model::kBlockTokens);
    prefix.extend(prompt);
    return prefix;
}

}  // namespace lorad::server
