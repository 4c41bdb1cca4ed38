// Where a trained adapter comes from, as files beside it: lorad_training.json for programs, README.md for people.
#pragma once

#include <optional>
#include <string>

#include "adapters/plan/trainable.h"
#include "proto/training/training_write.h"
#include "server/training/checkpoint_file.h"
#include "server/training/dataset.h"
#include "server/training/run_plan.h"
#include "server/training/training_run.h"

namespace lorad::server::training {

struct Provenance {
    std::string base_name;
    std::string base_formats;  // from model::describe_formats(); empty: unknown
    RunIdentity identity;
    proto::TrainingRecipe recipe;  // with all choices made
    RunState state;
    uint64_t used_step = 0;  // whose adapter it is
    uint64_t n_steps = 0, n_parameters = 0;
    DataReport data;
    std::string device, init_from;  // the latter may be empty
    double seconds = 0.0;
};

inline constexpr std::string_view kProvenanceFile = "lorad_training.json";
inline constexpr std::string_view kCardFile = "README.md";

std::string provenance_json(const Provenance& provenance);
// A model card as hubs show it: metadata, what it was trained on in numbers, losses.
std::string model_card(const Provenance& provenance);

}  // namespace lorad::server::training
