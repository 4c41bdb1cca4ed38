// Runs of PEFT and torch that a trainer has to repeat: tests/goldens/training.
#pragma once

#include <cmath>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "adapters/plan/check.h"
#include "adapters/plan/trainable.h"
#include "model/train/base_weights.h"
#include "model/train/schedule.h"
#include "model/train/trainer.h"
#include "tests/support/goldens.h"
#include "tests/support/test_device.h"

namespace lorad::testing {

struct TrainingGolden {
    std::string name;
    std::filesystem::path folder, model;
    nlohmann::json expected, data;
    std::unique_ptr<adapters::BaseModel> base;
    std::unique_ptr<const model::ModelWeights> weights;
    model::TrainableAdapter initial;

    static std::unique_ptr<TrainingGolden> load(const std::string& name,
                                                const model::BaseWeightOptions& weight_options = {}) {
        auto golden = std::make_unique<TrainingGolden>();
        golden->name = name;
        golden->folder = goldens_dir() / "training" / name;
        const auto json = [&](const char* file) {
            std::ifstream in(golden->folder / file);
            EXPECT_TRUE(in.good()) << golden->folder / file;
            return nlohmann::json::parse(in);
        };
        golden->expected = json("expected.json");
        golden->data = json("data.json");
        golden->model = goldens_dir() / "models" / golden->expected.at("model").get<std::string>();
        auto base = adapters::BaseModel::load(golden->model);
        EXPECT_TRUE(base.ok()) << base.error().message;
        golden->base = std::make_unique<adapters::BaseModel>(std::move(base).value());
        auto weights = model::load_base_weights(test_device(), golden->model, golden->base->config, weight_options);
        EXPECT_TRUE(weights.ok()) << weights.error().message;
        golden->weights = std::move(weights).value();
        golden->initial = golden->read_adapter(golden->tensors() / "initial");
        return golden;
    }

    // Where its tensors are: one run is another's in smaller micro-batches, with the same numbers.
    std::filesystem::path tensors() const {
        return name == "llama-tied-accumulated" ? folder.parent_path() / "llama-tied-plain" : folder;
    }

    model::TrainableAdapter read_adapter(const std::filesystem::path& from) const {
        const auto checked = adapters::check_adapter(adapters::AdapterLocation(from), *base);
        EXPECT_TRUE(checked.ok()) << (checked.ok() ? "" : checked.error().message);
        auto trainable = adapters::to_trainable(**checked, *base);
        EXPECT_TRUE(trainable.ok()) << (trainable.ok() ? "" : trainable.error().message);
        return std::move(trainable).value();
    }

    static model::TrainExample example_of(const nlohmann::json& sequence) {
        model::TrainExample example{sequence.at("ids"), {}};
        for (const int label : sequence.at("labels")) example.weights.push_back(label == -100 ? 0.0f : 1.0f);
        return example;
    }
    // Of the step with this index, all micro-batches together.
    std::vector<model::TrainExample> examples(size_t step) const {
        std::vector<model::TrainExample> made;
        for (const auto& batch : expected.at("steps").at(step).at("micro_batches")) {
            for (const size_t index : batch) made.push_back(example_of(data.at("sequences").at(index)));
        }
        return made;
    }
    model::TrainExample held_out() const { return example_of(data.at("held_out")); }

    size_t n_steps() const { return expected.at("steps").size(); }

    model::ScheduleSettings schedule() const {
        const auto& recipe = expected.at("recipe");
        return {.schedule = *model::schedule_named(recipe.at("schedule").get<std::string>()),
                .learning_rate = recipe.at("lr"),
                .n_steps = recipe.at("steps"),
                .n_warmup_steps = recipe.at("warmup_steps")};
    }

    model::TrainerOptions options(uint32_t n_rows) const {
        const auto& recipe = expected.at("recipe");
        model::TrainerOptions made{.n_rows = n_rows, .n_positions_max = 64};
        made.optimizer = {.beta1 = recipe.at("betas").at(0),
                          .beta2 = recipe.at("betas").at(1),
                          .eps = recipe.at("eps"),
                          .weight_decay = recipe.at("weight_decay")};
        if (!recipe.at("max_grad_norm").is_null()) made.optimizer.max_grad_norm = recipe.at("max_grad_norm");
        return made;
    }

    std::unique_ptr<model::Trainer> trainer(const model::TrainerOptions& trainer_options) const {
        auto made = model::Trainer::create(test_device(), base->config, *weights, initial, trainer_options);
        EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
        return made.ok() ? std::move(made).value() : nullptr;
    }
};

// Norm of the difference over norm of `to`, over all numbers.
inline double difference(const std::vector<model::TrainedTensor>& of, const std::vector<model::TrainedTensor>& to) {
    double apart = 0, norm = 0;
    for (size_t i = 0; i < of.size(); ++i) {
        for (size_t j = 0; j < of[i].values.size(); ++j) {
            apart += std::pow(double{of[i].values[j]} - to[i].values[j], 2);
            norm += std::pow(double{to[i].values[j]}, 2);
        }
    }
    return std::sqrt(apart / norm);
}

// Norm of the difference over norm of the reference, over all numbers of a file by its tensors' names.
inline double difference_to(const std::filesystem::path& file,
                            const std::vector<const model::TrainedTensor*>& tensors) {
    const auto files = model::TensorFiles::map(file, ErrorCode::kIo);
    EXPECT_TRUE(files.ok()) << file;
    EXPECT_EQ(files->tensors().size(), tensors.size()) << file;
    double difference = 0, norm = 0;
    for (const model::TrainedTensor* tensor : tensors) {
        const std::vector<float> want = golden_floats(*files, tensor->name);
        if (want.size() != tensor->values.size()) {
            ADD_FAILURE() << tensor->name << ": " << tensor->values.size() << " numbers, expected " << want.size();
            return INFINITY;
        }
        for (size_t i = 0; i < want.size(); ++i) {
            difference += std::pow(double{tensor->values[i]} - want[i], 2);
            norm += std::pow(double{want[i]}, 2);
        }
    }
    return std::sqrt(difference / norm);
}

}  // namespace lorad::testing
