// Merges for the registry when an adapter is activated as merged or auto; the engine's MergeControl does the work.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "adapters/pool/registry.h"
#include "model/exec/executor.h"
#include "server/engine/merge_control.h"

namespace lorad::server {

// Any thread. Outlived by registry, engine and executor; nobody may activate adapters while it is made or destroyed.
class RegistryMerge final : public adapters::MergeControl {
  public:
    RegistryMerge(adapters::Registry& registry, Engine& engine, model::Executor& executor, MergeControlOptions options)
        : registry_(registry),
          control_(
              engine, [&executor](std::span<const LoraUse> uses) { return executor.merge(uses); }, std::move(options)) {
        registry_.set_merge_control(this);
    }
    ~RegistryMerge() override { registry_.set_merge_control(nullptr); }

    Status merge(const std::string& name, adapters::MixLease lease) override {
        TRY(control_.merge(mix_of(name, std::move(lease))));
        return ok_status();
    }
    Status consider(const std::string& name, adapters::MixLease lease) override {
        return control_.set_auto(mix_of(name, std::move(lease)));
    }
    void release(const std::string& name) override { control_.clear(name); }

  private:
    static MergeMix mix_of(const std::string& name, adapters::MixLease lease) {
        auto kept = std::make_shared<const adapters::MixLease>(std::move(lease));
        return {name, kept->uses(), kept};
    }

    adapters::Registry& registry_;
    server::MergeControl control_;
};

}  // namespace lorad::server
