// lorad train: from a file of chats to an adapter, without a server.
#pragma once

#include <string>

#include "proto/base/result.h"
#include "proto/training/fine_tuning_request.h"
#include "server/loaded_model.h"

namespace lorad::server {

struct TrainArguments {
    std::string model, data, out;            // out may be empty where nothing is trained
    std::string eval_data;                   // empty: none
    std::string init_adapter;                // empty: a new adapter
    std::string report;                      // file of one JSON object a step; empty: none
    std::string dtype = "auto";              // of the base's matrices
    std::string quantize = "none";           // quantizes plain matrices while they are read
    std::string quantized_weights = "auto";  // keeps packed matrices so on the device: auto, keep, decode
    std::string save_dtype = "float32";
    std::string base_name;  // the base's name in the adapter's files; empty: the model's folder
    DeviceArguments device;
    proto::TrainingRecipe recipe;
    bool resume = false;
    bool check = false;       // says what the data is and what training would take, and trains nothing
    uint32_t n_shown = 0;     // lines that are shown with what of them is trained
    uint32_t n_rows = 0;      // tokens of a micro-batch; 0: by the model's shape and the kind of device
    uint64_t memory_mib = 0;  // for training, without the weights; 0: all free memory
};

// The status that the program ends with: 130 where a signal ended it, with a checkpoint to go on from.
Result<int> run_train(const TrainArguments& arguments);

}  // namespace lorad::server
