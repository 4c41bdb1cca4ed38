// The serving process as jobs see it.
#pragma once

#include <functional>
#include <string>

#include "adapters/pool/registry.h"
#include "gpu/device.h"
#include "model/train/train_model.h"
#include "model/weights/weights.h"
#include "server/training/piece_queue.h"
#include "server/training/training_host.h"

namespace lorad::server::training {

// All outlive the host.
struct ServerParts {
    gpu::Device& device;
    const model::ModelConfig& config;
    const model::ModelWeights& weights;
    adapters::Registry& registry;  // its base is what adapters are trained for
    PieceQueue& pieces;
};

// The training thread; check_trains(), check_recipe(), start_files(), files_of(), generation_of(), publish() and
// remove(): any.
class ServerHost final : public TrainingHost {
  public:
    struct Options {
        HostFacts facts;
        uint64_t memory_bytes = 0;       // limit for trainers; 0: all free memory
        uint32_t n_together = 1;         // trainers beside each other, at most
        std::function<void()> wake;      // the engine
        std::function<bool()> is_alive;  // true while the engine runs pieces; false: it never will again
    };
    ServerHost(const ServerParts& parts, std::unique_ptr<const TrainingText> text, Options options);

    const HostFacts& facts() const override { return options_.facts; }
    const TrainingText& text() const override { return *text_; }
    Status check_trains() const override { return model::check_trains(parts_.config); }
    Status check_recipe(const proto::TrainingRecipe& recipe) const override;
    Result<adapters::PeftFiles> start_files(const std::string& init_from) const override;
    Result<MadeTrainer> make_trainer(const RunPlan& plan, const std::filesystem::path& start,
                                     StepTrainer* beside) override;
    Result<bool> run_pieces(std::span<StepTrainer* const> trainers, const std::function<bool()>& stop) override;
    adapters::PeftFiles files_of(const model::TrainableAdapter& adapter, const RunPlan& plan) const override;
    std::string generation_of(std::string_view name) const override;
    std::string generation_of(const adapters::PeftFiles& files) const override;
    Result<std::string> publish(const std::string& name, const adapters::PeftFiles& files, bool replace,
                                const std::string& expected, bool activate) override;
    void remove(const std::string& name) override;

  private:
    // kInvalidRequest, kOutOfMemory, as check_recipe().
    Status check_fits(const model::TrainableAdapter& adapter) const;

    const ServerParts parts_;
    const std::unique_ptr<const TrainingText> text_;
    const Options options_;
};

}  // namespace lorad::server::training
