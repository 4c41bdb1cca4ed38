// Training in the serving process: its host, its jobs and where they are kept.
#pragma once

#include <memory>
#include <string>

#include "proto/base/result.h"
#include "server/config.h"
#include "server/engine/engine.h"
#include "server/loaded_model.h"
#include "server/model_text.h"
#include "server/tinker/model_sessions.h"
#include "server/training/piece_queue.h"
#include "server/training/server_host.h"
#include "server/training/training_service.h"

namespace lorad::server {

// The service is null where nothing is trained: by the settings, or without a state folder; the models as well where
// none are trained by calls.
struct TrainingSetup {
    std::unique_ptr<training::ServerHost> host;
    std::unique_ptr<tinker::ModelSessions> models;
    std::unique_ptr<training::TrainingService> service;
};

// The references outlive what is returned.
Result<TrainingSetup> open_training(const Config& config, const std::string& base_name, LoadedModel& loaded,
                                    const ModelText& text, Engine& engine, training::PieceQueue& pieces);

}  // namespace lorad::server
