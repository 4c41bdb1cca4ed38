// Lists what is registered, with its state.
#include <algorithm>
#include <iterator>
#include <map>

#include "adapters/pool/registry.h"
#include "proto/base/mutex.h"

namespace lorad::adapters {

// Leases by what they were asked for and what that was then.
struct Registry::Counts {
    struct Count {
        uint32_t n_granted = 0, n_waiting = 0;
        GenerationPtr generation;  // the first part's
    };
    std::map<std::pair<std::string, std::string>, Count> by_name_and_generation;
};

Registry::Counts Registry::count_leases() const {
    Counts counts;
    for (const LeaseState* lease : pool_->leases) {
        for (const UsedName& used : lease->names) {
            Counts::Count& count = counts.by_name_and_generation[{used.name, used.generation}];
            ++(lease->granted ? count.n_granted : count.n_waiting);
            if (!count.generation) count.generation = lease->generations.front();
        }
    }
    return counts;
}

AdapterInfo Registry::info_of(const std::string& name, const Alias& alias, const Counts& counts) const {
    AdapterInfo info;
    info.name = name;
    info.generation = alias.target.generation();
    info.path = alias.target.path;
    info.mode = alias.mode;
    info.pinned = alias.pinned;
    info.loaded_at_s = alias.target.since_s;
    const auto mix_of = [](const Target& target) {
        std::vector<AdapterTerm> terms;
        if (!target.is_mix()) return terms;
        for (const Part& part : target.parts) terms.push_back({part.name, part.scale});
        return terms;
    };
    info.mix = mix_of(alias.target);
    info.state = AdapterState::kResident;
    info.tier = Tier::kGpu;
    for (const Part& part : alias.target.parts) {
        const Generation& generation = *pool_->generations.at(part.generation);
        info.rank = std::max(info.rank, generation.record.rank);
        info.n_modules += generation.record.n_modules;
        info.device_bytes += generation.record.device_bytes;
        info.stored_bytes += generation.record.stored_bytes();
        info.tier = std::min(info.tier, generation.tier());
        if (alias.target.parts.size() == 1) info.slot = generation.slot;
        // The worst one's: damaged, then stored, then loading.
        const auto order = [](AdapterState state) {
            return state == AdapterState::kResident  ? 3
                   : state == AdapterState::kLoading ? 2
                   : state == AdapterState::kStored  ? 1
                                                     : 0;
        };
        if (order(generation.state) < order(info.state)) info.state = generation.state;
        if (generation.state == AdapterState::kDamaged && generation.load_error)
            info.problem = generation.load_error->message;
    }
    const auto count = counts.by_name_and_generation.find({name, info.generation});
    if (count != counts.by_name_and_generation.end()) {
        info.n_leases = count->second.n_granted;
        info.n_waiting = count->second.n_waiting;
    }
    int64_t until_s = info.loaded_at_s;
    for (const Target& past : alias.history) {
        info.history.push_back({past.generation(), mix_of(past), past.since_s, until_s});
        until_s = past.since_s;
    }
    return info;
}

std::vector<AdapterInfo> Registry::list() const {
    constexpr size_t kPage = 500;
    Page all = page({}, kPage);
    while (all.more) {
        Page next = page(all.adapters.back().name, kPage);
        std::ranges::move(next.adapters, std::back_inserter(all.adapters));
        all.more = next.more;
    }
    return std::move(all.adapters);
}

Registry::Page Registry::page(std::string_view after, size_t n_max) const {
    CHECK(n_max > 0);
    Page page;
    std::vector<AdapterInfo>& infos = page.adapters;
    const MutexLock lock(pool_->mutex);
    const Counts counts = count_leases();
    // No name is empty.
    for (auto alias = catalogue_->aliases.upper_bound(after); alias != catalogue_->aliases.end(); ++alias) {
        page.more = infos.size() == n_max;
        if (page.more) return page;
        infos.push_back(info_of(alias->first, alias->second, counts));
    }
    for (const auto& [key, count] : counts.by_name_and_generation) {
        const auto alias = catalogue_->aliases.find(key.first);
        if (alias != catalogue_->aliases.end() && alias->second.target.generation() == key.second) continue;
        AdapterInfo info;
        info.name = key.first;
        info.generation = key.second;
        info.draining = true;
        info.state = count.generation->state;
        info.tier = count.generation->tier();
        info.slot = count.generation->slot;
        info.rank = count.generation->record.rank;
        info.n_modules = count.generation->record.n_modules;
        info.device_bytes = count.generation->record.device_bytes;
        info.stored_bytes = count.generation->record.stored_bytes();
        info.n_leases = count.n_granted;
        info.n_waiting = count.n_waiting;
        infos.push_back(std::move(info));
    }
    return page;
}

std::optional<AdapterInfo> Registry::find(std::string_view name) const {
    const MutexLock lock(pool_->mutex);
    const auto alias = catalogue_->aliases.find(name);
    if (alias == catalogue_->aliases.end()) return std::nullopt;
    return info_of(alias->first, alias->second, count_leases());
}

uint64_t Registry::device_bytes() const {
    const MutexLock lock(pool_->mutex);
    return pool_->device_bytes;
}

RegistryStats Registry::stats() const {
    RegistryStats stats;
    const auto seconds = [](const std::atomic<uint64_t>& us) { return static_cast<double>(us.load()) * 1e-6; };
    const PoolCounters& counters = pool_->counters;
    stats.n_loads = counters.n_loads;
    stats.n_loads_from_ram = counters.n_loads_from_ram;
    stats.n_load_failures = counters.n_load_failures;
    stats.n_evictions = counters.n_evictions;
    stats.n_waits = counters.n_waits;
    stats.n_wait_timeouts = counters.n_wait_timeouts;
    stats.bytes_loaded = counters.bytes_loaded;
    stats.bytes_evicted = counters.bytes_evicted;
    stats.load_s = seconds(counters.load_us);
    stats.wait_s = seconds(counters.wait_us);
    stats.stored_bytes = files_->bytes();
    const MutexLock lock(pool_->mutex);
    stats.n_names = catalogue_->aliases.size();
    stats.n_generations = pool_->generations.size();
    stats.device_bytes = pool_->device_bytes;
    stats.device_bytes_max = pool_->options.device_bytes_max;
    stats.ram_bytes = pool_->ram_bytes();
    stats.n_pinned = pool_->n_pinned;
    for (const auto& [id, generation] : pool_->generations) {
        stats.n_on_device += generation->state == AdapterState::kResident;
        stats.n_in_ram += generation->image != nullptr;
    }
    for (const LeaseState* lease : pool_->leases) ++(lease->granted ? stats.n_leases : stats.n_waiting);
    return stats;
}

ChatFiles Registry::chat_files(std::string_view name_or_generation) const {
    const std::shared_ptr<const Catalogue> now = catalogue();
    std::string_view generation = name_or_generation;
    if (const auto alias = now->aliases.find(name_or_generation); alias != now->aliases.end()) {
        const std::vector<Part>& parts = alias->second.target.parts;
        if (parts.size() != 1) return {};
        generation = parts.front().generation;
    }
    const auto record = now->generations.find(generation);
    return record == now->generations.end() ? ChatFiles() : chat_files_of(record->second);
}

Result<std::vector<model::NamedTemplate>> Registry::templates(const ChatFiles& chat) const {
    std::vector<FileBytes> contents;
    std::vector<std::pair<std::string_view, std::string_view>> files;
    contents.reserve(chat.templates.size());
    for (const FileRecord& file : chat.templates) {
        TRY_ASSIGN(FileBytes bytes, files_->read(file.sha256));
        contents.push_back(std::move(bytes));
        files.emplace_back(file.name, contents.back().text());
    }
    return chat_templates(files);
}

}  // namespace lorad::adapters
