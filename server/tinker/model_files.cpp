// The part of ModelSessions that the disk's thread has: weights become adapters, and states files.
#include <utility>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "server/tinker/model_sessions.h"

namespace lorad::server::tinker {

CallResult ModelSessions::save_for_sampler(Model& model, const CallContent& content,
                                           const model::TrainableAdapter& adapter) {
    const std::string name = adapter_name(model.id, content.name);
    const adapters::PeftFiles files = host_.files_of(adapter, model.plan);
    const bool is_temporary = !content.sampler_id.empty();
    const Status recorded = weights_.add(name, {model.tenant, files.tensors.size(), is_temporary},
                                         [&](const std::string& one) { return !host_.generation_of(one).empty(); });
    if (!recorded.ok()) return {.error = recorded.error()};
    // It stays in the store until somebody samples: then there is a place on the device, or that request waits for it.
    const Result<std::string> generation = host_.publish(name, files, true, std::string(), false);
    if (!generation.ok()) return {.error = generation.error()};
    const std::string path =
        proto::TinkerPath{model.id, std::string(proto::kTinkerSamplerWeights), content.name}.text();
    JsonWriter json;
    json.begin_object().field("type", "save_weights_for_sampler");
    if (!is_temporary) {
        json.field("path", path);
        return {.body = json.end_object().take()};
    }
    json.field("sampling_session_id", content.sampler_id);
    std::vector<std::string> old;
    {
        MutexLock lock(mutex_);
        if (model.is_gone) {
            old.push_back(name);
        } else {
            add_sampler({.id = content.sampler_id, .tenant = model.tenant, .adapter = name, .model_path = path});
            std::erase(model.snapshots, name);
            model.snapshots.push_back(name);
        }
        while (model.snapshots.size() > limits_.n_snapshots_max) {
            old.push_back(std::move(model.snapshots.front()));
            model.snapshots.erase(model.snapshots.begin());
        }
    }
    for (const std::string& one : old) remove_weights(one);
    return {.body = json.end_object().take()};
}

CallResult ModelSessions::save_state(const Model& model, const CallContent& content, const SavedState& state) const {
    const Status saved = states_.save(model.tenant, content.path, state, content.overwrites);
    if (!saved.ok()) return {.error = saved.error()};
    return {
        .body =
            JsonWriter().begin_object().field("type", "save_weights").field("path", content.path).end_object().take()};
}

void ModelSessions::remove_weights(const std::string& name) {
    host_.remove(name);
    weights_.remove(name);
}

}  // namespace lorad::server::tinker
