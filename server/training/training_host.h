// The interface of jobs to the server: a trainer on its device, turns beside served requests, and a place among its
// adapters. Tests of jobs implement it without a device.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/plan/trainable.h"
#include "model/train/trainable.h"
#include "proto/base/result.h"
#include "server/training/run_plan.h"
#include "server/training/step_trainer.h"
#include "server/training/training_text.h"

namespace lorad::server::training {

// The base that this server's adapters belong to, and the server itself.
struct HostFacts {
    std::string base_name, base_fingerprint, device_name, version;
    uint32_t vocab_size = 0;
    uint32_t n_positions_max = 0;
};

struct MadeTrainer {
    std::unique_ptr<StepTrainer> trainer;
    uint64_t n_parameters = 0;
};

struct NamedBytes {
    std::string name;
    std::string content;
};

class TrainingHost {
  public:
    virtual ~TrainingHost() = default;
    virtual const HostFacts& facts() const = 0;
    virtual const TrainingText& text() const = 0;

    // kInvalidConfig: the base has a part that is not trained, by name.
    virtual Status check_trains() const { return ok_status(); }
    // What is known of a new adapter before it is made. kInvalidRequest with the field; kOutOfMemory with the
    // arithmetic where it could not even be trained alone.
    virtual Status check_recipe(const proto::TrainingRecipe&) const { return ok_status(); }
    // An adapter that a job begins with, by its name or generation, as files that the job may keep. kAdapterNotFound;
    // kAdapterUnsupported for what is not trained on; kInvalidRequest and kOutOfMemory as check_recipe().
    virtual Result<adapters::PeftFiles> start_files(const std::string& init_from) const = 0;
    // kInvalidRequest, kOutOfMemory with the arithmetic. start: the folder of start_files(); empty: a new adapter.
    // beside: one to be trained with in the same steps, or null; then kInvalidConfig and kOutOfMemory may be errors of
    // this alone.
    virtual Result<MadeTrainer> make_trainer(const RunPlan& plan, const std::filesystem::path& start,
                                             StepTrainer* beside) = 0;
    // Runs pieces of what the trainers have begun, at their turns, until one is done: true. False once `stop` says so,
    // which is asked every 50 ms or so.
    virtual Result<bool> run_pieces(std::span<StepTrainer* const> trainers, const std::function<bool()>& stop) = 0;

    virtual adapters::PeftFiles files_of(const model::TrainableAdapter& adapter, const RunPlan& plan) const = 0;
    // The name's generation; empty: it stands for nothing.
    virtual std::string generation_of(std::string_view name) const = 0;
    // Returns the generation that these files would have.
    virtual std::string generation_of(const adapters::PeftFiles& files) const = 0;
    // Registers a PEFT folder's files. The generation. `expected`: only if the name stands for that now; empty:
    // whatever it is.
    virtual Result<std::string> publish(const std::string& name, const adapters::PeftFiles& files, bool replace,
                                        const std::string& expected, bool activate) = 0;
    // Takes a name away again; running requests go on. Nothing where there is no such name.
    virtual void remove(const std::string& name) = 0;
};

}  // namespace lorad::server::training
