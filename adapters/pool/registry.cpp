#include "adapters/pool/registry.h"

#include <algorithm>
#include <iterator>

#include "proto/base/clock.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/mutex.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

// The interval at which a waiting call checks that its client is still there.
constexpr std::chrono::milliseconds kDrainPoll{50};
// The intervals of checking that the store is in its place, and of ending old uploads.
constexpr std::chrono::seconds kLookPeriod{2}, kExpirePeriod{60};

PoolOptions pool_options(const RegistryOptions& options, const WeightStore& weights) {
    PoolOptions pool;
    pool.n_slots = weights.n_slots();
    if (options.n_adapters_max != 0) pool.n_slots = std::min(pool.n_slots, options.n_adapters_max);
    pool.device_bytes_max = options.device_bytes_max;
    pool.ram_bytes_max = options.ram_bytes_max;
    pool.starvation_bound = options.starvation_bound;
    return pool;
}

}  // namespace

Registry::Registry(BaseModel base, WeightStore& weights, const RegistryOptions& options)
    : Registry(std::move(base), weights, options, memory_store({})) {}

Registry::Registry(BaseModel base, WeightStore& weights, const RegistryOptions& options, std::unique_ptr<Store> files)
    : base_(std::move(base)),
      options_(options),
      files_(std::move(files)),
      pool_(std::make_shared<Pool>(weights, pool_options(options, weights))) {
    publish(files_->found());
    housekeeper_ = std::thread([this] { housekeeping(); });
}

Registry::~Registry() {
    {
        const MutexLock lock(pool_->mutex);
        stopping_ = true;
    }
    pool_->dead_added.notify_all();
    housekeeper_.join();
    // Adapters without leases leave the device; the names stay in the store.
    publish(Catalogue());
}

std::shared_ptr<const Catalogue> Registry::catalogue() const {
    const MutexLock lock(pool_->mutex);
    return catalogue_;
}

// ---------------------------------------------------------------------------------------------------- changes of names

Result<AdapterInfo> Registry::commit(const std::string& name, const std::function<Status(Catalogue&)>& change) {
    const FifoLock commit_lock(commit_mutex_);
    const AdapterInfo before = find(name).value_or(AdapterInfo{});
    Catalogue next = *catalogue_;
    TRY(change(next));
    next.drop_unused();
    std::erase_if(next.trash, [&](const std::string& blob) { return !files_->blob_bytes(blob); });
    if (next != *catalogue_) {
        ++next.sequence;
        TRY(files_->save(next));
        publish(std::move(next));
    } else {
        // An unchanged catalogue is acknowledged as well, so a restart must find it.
        TRY(files_->is_settled());
    }
    return find(name).value_or(before);
}

const GenerationPtr& Registry::known_generation(const GenerationRecord& record) {
    const auto found = pool_->generations.find(record.id);
    if (found != pool_->generations.end()) return found->second;
    auto made = std::make_shared<Generation>(record);
    return pool_->generations.emplace(record.id, std::move(made)).first->second;
}

// Makes the catalogue the present one.
void Registry::publish(Catalogue next) {
    Freed freed;
    {
        const MutexLock lock(pool_->mutex);
        auto& generations = pool_->generations;
        // Allocations that may fail come first.
        auto shared = std::make_shared<const Catalogue>(std::move(next));
        for (const auto& [id, record] : shared->generations) known_generation(record);
        catalogue_ = std::move(shared);
        for (auto& [id, generation] : generations) {
            generation->in_catalogue = catalogue_->generations.contains(id);
            generation->n_names = generation->n_pins = 0;
        }
        for (const auto& [name, alias] : catalogue_->aliases) {
            for (const Part& part : alias.target.parts) {
                Generation& generation = *generations.at(part.generation);
                ++generation.n_names;
                generation.n_pins += alias.pinned;
            }
        }
        pool_->n_pinned = pool_->n_pinned_bytes = 0;
        for (const auto& [id, generation] : generations) {
            if (generation->n_pins == 0) continue;
            ++pool_->n_pinned;
            pool_->n_pinned_bytes += generation->record.device_bytes;
        }
        pool_->drop_unnamed(freed);
        pool_->wake_first();  // pins may be gone
    }
    pool_->free(std::move(freed));
}

// Deletes blobs of generations that are gone.
void Registry::collect_files() {
    const FifoLock commit_lock(commit_mutex_);
    const std::vector<GenerationRecord> dead = pool_->take_dead();
    for (const GenerationRecord& record : dead) {
        for (const FileRecord& file : record.files) {
            if (catalogue_->trash.contains(file.sha256)) unwanted_blobs_.insert(file.sha256);
        }
    }
    delete_unwanted();
}

// Deletes blobs of a refused adapter, unless others need them.
void Registry::discard_files(const std::vector<std::string>& blobs) {
    const FifoLock commit_lock(commit_mutex_);
    unwanted_blobs_.insert(blobs.begin(), blobs.end());
    delete_unwanted();
}

// A blob that a call holds, or that a generation without a name needs, stays unwanted and is looked at again when that
// ends. A blob of a named generation is wanted: it goes to the trash with the last name. A blob promised to its
// uploader is wanted too: expire_uploads() tells when that ends.
void Registry::delete_unwanted() {
    std::set<std::string> blobs;
    std::ranges::set_difference(unwanted_blobs_, held_blobs_, std::inserter(blobs, blobs.end()));
    std::erase_if(blobs, [&](const std::string& blob) REQUIRES(commit_mutex_) {
        return files_->is_held(blob) && unwanted_blobs_.erase(blob) > 0;
    });
    if (blobs.empty()) return;
    {
        const MutexLock lock(pool_->mutex);
        for (const auto& [id, generation] : pool_->generations) {
            if (blobs.empty()) break;
            for (const FileRecord& file : generation->record.files) {
                if (blobs.erase(file.sha256) > 0 && generation->in_catalogue) unwanted_blobs_.erase(file.sha256);
            }
        }
    }
    for (const std::string& blob : blobs) {
        files_->remove(blob);
        unwanted_blobs_.erase(blob);
    }
}

void Registry::expire_uploads(int64_t now_s) {
    if (const std::vector<std::string> ended = files_->expire(now_s); !ended.empty()) discard_files(ended);
}

void Registry::housekeeping() {
    auto expires_at = std::chrono::steady_clock::now() + kExpirePeriod;
    for (;;) {
        {
            MutexLock lock(pool_->mutex);
            pool_->dead_added.wait_for(lock, kLookPeriod,
                                       [&]() REQUIRES(pool_->mutex) { return stopping_ || pool_->has_dead(); });
            if (stopping_) return;
        }
        collect_files();
        store_in_place_ = files_->is_in_place().ok();
        if (std::chrono::steady_clock::now() < expires_at) continue;
        expires_at = std::chrono::steady_clock::now() + kExpirePeriod;
        expire_uploads(unix_time_s());
    }
}

Result<AdapterInfo> Registry::set_name(const std::string& name, Target target, const GenerationRecord* record,
                                       const ChangeOptions& options) {
    bool existed = false;
    const Result<AdapterInfo> committed = commit(name, [&](Catalogue& next) -> Status {
        existed = next.aliases.contains(name);
        if (!existed && next.aliases.size() >= options_.n_names_max) {
            return make_error(ErrorCode::kAdapterLimit,
                              format("{} adapters are registered, as many as there may be", next.aliases.size()));
        }
        if (record != nullptr) next.generations.try_emplace(record->id, *record);
        for (const Part& part : target.parts) {  // found before this call's turn came, for a mix
            if (next.generations.contains(part.generation)) continue;
            return make_error(ErrorCode::kAdapterNotFound,
                              format("{} was removed or replaced by another call", json_quote(part.name)), "adapters");
        }
        return next.set(name, target, options);
    });
    if (!committed.ok()) return committed.error();
    const std::string generation = target.generation();
    pool_->events.add(existed ? EventKind::kReplaced : EventKind::kRegistered, name, generation);
    log_info("adapter {} name={} generation={} parts={}", existed ? "replaced" : "registered", json_quote(name),
             short_id(generation), target.parts.size());
    collect_files();
    return committed;
}

Result<AdapterInfo> Registry::register_mix(std::string_view name, std::span<const AdapterTerm> terms,
                                           const ChangeOptions& options) {
    TRY(check_adapter_name(name, options_.base_name));
    TRY(check_terms(terms));
    Target target;
    {
        const MutexLock lock(pool_->mutex);
        TRY_ASSIGN(target.parts, parts_of(terms, nullptr));
    }
    if (target.parts.empty()) {
        return make_error(ErrorCode::kInvalidRequest, "adapters: all scales are 0; that is the base model", "adapters");
    }
    target.since_s = unix_time_s();
    TRY_ASSIGN(AdapterInfo info, set_name(std::string(name), std::move(target), nullptr, options));
    keep_active(info.name);
    return info;
}

Result<AdapterInfo> Registry::remove(std::string_view name, const RemoveOptions& options) {
    const std::string key(name);
    TRY_ASSIGN(AdapterInfo info,
               commit(key, [&](Catalogue& next) { return next.remove(key, options.expected_generation); }));
    if (merge_ != nullptr) merge_->release(key);
    const auto count = [&]() REQUIRES(pool_->mutex) {
        uint32_t n = 0;
        for (LeaseState* lease : pool_->leases) {
            const bool uses = std::any_of(lease->names.begin(), lease->names.end(),
                                          [&](const UsedName& used) { return used.name == key; });
            n += uses;
            if (uses && options.mode == RemoveMode::kNow) lease->revoked = true;
        }
        return n;
    };
    {
        const auto deadline = std::chrono::steady_clock::now() + options.timeout;
        const auto ended = [&]() REQUIRES(pool_->mutex) { return (info.n_leases = count()) == 0; };
        MutexLock lock(pool_->mutex);
        while (!ended() && std::chrono::steady_clock::now() < deadline) {
            pool_->lease_ended.wait_until(lock, std::min(deadline, std::chrono::steady_clock::now() + kDrainPoll));
            lock.unlock();
            const bool cancelled = options.cancelled && options.cancelled();
            lock.lock();
            if (cancelled) break;
        }
    }
    info.draining = true;
    info.slot = info.n_leases > 0 ? info.slot : kNoAdapterSlot;
    pool_->events.add(EventKind::kRemoved, key, info.generation);
    log_info("adapter removed name={} generation={} leases={}", json_quote(name), short_id(info.generation),
             info.n_leases);
    collect_files();
    return info;
}

Result<AdapterInfo> Registry::rollback(std::string_view name, std::string_view generation) {
    const std::string key(name);
    std::string now;
    const Result<AdapterInfo> committed = commit(key, [&](Catalogue& next) -> Status {
        TRY(next.rollback(key, generation, unix_time_s()));
        now = next.aliases.find(key)->second.target.generation();
        return ok_status();
    });
    if (!committed.ok()) return committed.error();
    pool_->events.add(EventKind::kReplaced, key, now, "rollback");
    log_info("adapter rolled back name={} generation={}", json_quote(name), short_id(now));
    keep_active(key);
    return committed;
}

// ------------------------------------------------------------------------------------------------------------
// activation

Result<AdapterInfo> Registry::activate(std::string_view name, const ActivateOptions& options) {
    const std::string key(name);
    const bool merging = options.mode == ActivationMode::kMerged || options.mode == ActivationMode::kAuto;
    if (options.mode == ActivationMode::kNone) {
        return make_error(ErrorCode::kInvalidLoadPolicy, "mode: expected unmerged, merged or auto", "mode");
    }
    if (merging && merge_ == nullptr) {
        return make_error(ErrorCode::kInvalidLoadPolicy, "this server does not merge adapters", "mode");
    }
    TRY_ASSIGN(MixLease lease, acquire(key));
    const std::string generation = lease.generation();
    if (merge_ != nullptr && !merging) merge_->release(key);
    if (options.mode == ActivationMode::kMerged) TRY(merge_->merge(key, lease));
    if (options.mode == ActivationMode::kAuto) TRY(merge_->consider(key, lease));
    const Result<AdapterInfo> committed = commit(key, [&](Catalogue& next) -> Status {
        TRY(next.find(key));
        Alias& alias = next.aliases.find(key)->second;
        if (alias.target.generation() != generation) {
            return make_error(ErrorCode::kGenerationConflict,
                              format("{} was replaced by another call", json_quote(key)), "lora_name");
        }
        alias.mode = options.mode;
        alias.pinned = options.pin;
        return ok_status();
    });
    if (!committed.ok()) {
        if (merging) merge_->release(key);
        return committed.error();
    }
    pool_->events.add(EventKind::kActivated, key, generation, std::string(name_of(options.mode)));
    return committed;
}

Result<AdapterInfo> Registry::deactivate(std::string_view name) {
    const std::string key(name);
    std::string generation;
    std::vector<Part> parts;
    const Result<AdapterInfo> committed = commit(key, [&](Catalogue& next) -> Status {
        TRY(next.find(key));
        Alias& alias = next.aliases.find(key)->second;
        alias.mode = ActivationMode::kNone;
        alias.pinned = false;
        generation = alias.target.generation();
        parts = alias.target.parts;
        return ok_status();
    });
    if (!committed.ok()) return committed.error();
    if (merge_ != nullptr) merge_->release(key);
    for (const Part& part : parts) {
        GenerationPtr idle;
        {
            const MutexLock lock(pool_->mutex);
            const auto found = pool_->generations.find(part.generation);
            if (found != pool_->generations.end()) idle = found->second;
        }
        if (idle) pool_->evict_idle(idle);
    }
    pool_->events.add(EventKind::kDeactivated, key, generation);
    return committed;
}

// After a name has got new content: what was asked for before holds for that, too. May wait for a place, so the caller
// holds none.
void Registry::keep_active(const std::string& name) {
    const std::shared_ptr<const Catalogue> names = catalogue();
    const auto alias = names->aliases.find(name);
    if (alias == names->aliases.end()) return;
    const ActivationMode mode = alias->second.mode;
    if (mode == ActivationMode::kNone && !alias->second.pinned) return;
    auto lease = acquire(name);
    Status kept = lease.ok() ? ok_status() : Status(lease.error());
    if (kept.ok() && merge_ != nullptr && mode == ActivationMode::kMerged) kept = merge_->merge(name, *lease);
    if (kept.ok() && merge_ != nullptr && mode == ActivationMode::kAuto) kept = merge_->consider(name, *lease);
    if (!kept.ok()) log_warn("adapter {} is not active: {}", json_quote(name), kept.error().message);
}

void Registry::restore_active() {
    for (const auto& [name, alias] : catalogue()->aliases) keep_active(name);
}

// ----------------------------------------------------------------------------------------------------------------
// leases

// Under Pool::mutex.
Result<std::vector<Part>> Registry::parts_of(std::span<const AdapterTerm> terms, std::vector<UsedName>* names) const {
    std::vector<Part> parts;
    for (const AdapterTerm& term : terms) {
        TRY_ASSIGN(const Alias* alias, catalogue_->find(term.name));
        if (term.scale == 0.0f) continue;
        if (names != nullptr) names->push_back({term.name, alias->target.generation()});
        for (Part part : alias->target.parts) {
            part.name = alias->target.is_mix() ? part.name : term.name;
            part.scale *= term.scale;
            parts.push_back(std::move(part));
        }
    }
    parts = simplified(std::move(parts));
    if (parts.size() > kMixTermsMax) {
        return make_error(ErrorCode::kInvalidRequest,
                          format("adapters: {} with the parts of mixes, at most {}", parts.size(), kMixTermsMax),
                          "adapters");
    }
    if (parts.size() == 1 && parts.front().scale == 1.0f) return parts;
    for (const Part& part : parts) {
        const GenerationRecord& record = catalogue_->generations.at(part.generation);
        const bool begins_later = parts.size() > 1 && !record.invocation_tokens.empty();
        if (!record.replaces_parts && !begins_later) continue;
        return make_error(
            ErrorCode::kAdapterUnsupported,
            format("{} {}", json_quote(part.name),
                   begins_later ? "acts from its invocation tokens on (aLoRA); it cannot be mixed with others"
                                : "replaces parts of the base model; it cannot be mixed or scaled"),
            "adapters");
    }
    return parts;
}

Result<std::shared_ptr<LeaseState>> Registry::resolve(std::span<const AdapterTerm> terms) const {
    auto lease = std::make_shared<LeaseState>(pool_);
    const MutexLock lock(pool_->mutex);
    TRY_ASSIGN(const std::vector<Part> parts, parts_of(terms, &lease->names));
    if (parts.empty()) return std::shared_ptr<LeaseState>();
    for (const Part& part : parts) {
        lease->generations.push_back(pool_->generations.at(part.generation));
        lease->uses.push_back({kNoAdapterSlot, part.scale});
        lease->content.push_back({part.generation, part.scale});
    }
    for (const UsedName& used : lease->names) lease->name += (lease->name.empty() ? "" : "+") + used.name;
    lease->generation = mix_generation(parts);
    pool_->take(*lease);
    return lease;
}

Status Registry::grant(LeaseState& lease, const AcquireOptions& options) {
    const auto timeout = options.timeout.count() < 0 ? options_.wait_timeout : options.timeout;
    return pool_->grant(lease, [this](const GenerationRecord& record) { return load_image(record); },
                        {timeout, options.cancelled});
}

Result<MixLease> Registry::acquire(std::span<const AdapterTerm> terms, const AcquireOptions& options) {
    if (terms.empty()) return MixLease();
    TRY(check_terms(terms));
    TRY_ASSIGN(std::shared_ptr<LeaseState> lease, resolve(terms));
    if (!lease) return MixLease();
    TRY(grant(*lease, options));
    return MixLease(std::move(lease));
}

Result<MixLease> Registry::acquire(std::string_view name, const AcquireOptions& options) {
    const AdapterTerm term{std::string(name), 1.0f};
    return acquire(std::span(&term, 1), options);
}

}  // namespace lorad::adapters
