// lorad check --memory-gib: what a model takes of cards of these sizes, and which flags it needs to fit.
#include <cstdio>
#include <string>
#include <vector>

#include "model/exec/kv_cache.h"
#include "model/exec/memory_fit.h"
#include "model/files/model_files.h"
#include "proto/base/format.h"
#include "proto/json/json.h"
#include "server/cli/cli.h"
#include "server/kernel_survey.h"

namespace lorad::server {
namespace {

// A GPU as most people have: cooperative matrices of f16 in subgroups of 32, and allocations of up to 4 GiB.
gpu::DeviceCapabilities usual_gpu(uint64_t memory_bytes) {
    constexpr uint64_t kLargestAllocation = (uint64_t{4} << 30) - 256;
    gpu::DeviceCapabilities caps;
    caps.name = format("a GPU with {} GiB", memory_bytes >> 30);
    caps.device_local_bytes = caps.device_local_free_bytes = memory_bytes;
    caps.max_allocation_bytes = kLargestAllocation;
    caps.subgroup_size = caps.subgroup_size_min = caps.subgroup_size_max = 32;
    caps.shared_memory_bytes = 48 << 10;
    caps.max_workgroup_invocations = 1024;
    caps.max_workgroup_subgroups = 32;
    caps.max_push_constant_bytes = 256;
    caps.subgroup_vote = caps.subgroup_ballot = caps.float16 = caps.int16 = caps.coopmat_f16 = true;
    return caps;
}

struct CardFit {
    uint32_t gib = 0;
    std::string flags;  // needed to fit
    std::string refusal;
    std::optional<model::Fit> fit;
};

Result<CardFit> fit_card(uint32_t gib, const LoadArguments& load, const model::ModelConfig& config,
                         const model::TensorFiles& files) {
    CardFit card{.gib = gib, .flags = {}, .refusal = {}, .fit = {}};
    const gpu::DeviceCapabilities caps = usual_gpu(uint64_t{gib} << 30);
    const model::FitQuestion question{caps, caps.device_local_free_bytes, config, files};
    TRY_ASSIGN(model::ExecutorOptions options, executor_options(load, caps));
    Result<model::Fit> fitted = model::fit(question, options);
    if (!fitted.ok()) {
        if (fitted.error().code != ErrorCode::kOutOfMemory) return fitted.error();
        card.refusal = fitted.error().message;
        const std::optional<model::Savings> savings = model::savings_that_fit(question, options);
        if (!savings) return card;
        card.flags = savings->flags;
        TRY_ASSIGN(fitted, model::fit(question, savings->options));
    }
    card.fit = std::move(fitted).value();
    return card;
}

std::string gib_text(uint64_t bytes) { return format("{:.2f}", static_cast<double>(bytes) / (1 << 30)); }

std::string row_text(const CardFit& card) {
    if (!card.fit) return format("| {} GiB | does not fit: {} | | | | | |\n", card.gib, card.refusal);
    const model::MemoryPlan& plan = card.fit->plan;
    return format("| {} GiB | {} | {} ({}) | {} | {} | {} | {} tokens, {} of one sequence |\n", card.gib,
                  card.flags.empty() ? "as it is" : "`" + card.flags + "`", gib_text(plan.weight_bytes),
                  plan.weight_formats, gib_text(plan.scratch_bytes), gib_text(plan.adapter_bytes),
                  gib_text(plan.kv_bytes), uint64_t{plan.n_kv_blocks} * model::kBlockTokens, card.fit->n_positions_max);
}

void write_json(JsonWriter& writer, const CardFit& card) {
    writer.begin_object().field("memory_gib", card.gib).field("fits", card.fit.has_value()).field("flags", card.flags);
    if (!card.refusal.empty()) writer.field("refusal_without_flags", card.refusal);
    if (card.fit) {
        const model::MemoryPlan& plan = card.fit->plan;
        writer.field("weight_bytes", plan.weight_bytes)
            .field("weight_formats", plan.weight_formats)
            .field("scratch_bytes", plan.scratch_bytes)
            .field("adapter_bytes", plan.adapter_bytes);
        writer.field("kv_bytes", plan.kv_bytes)
            .field("kv_tokens", uint64_t{plan.n_kv_blocks} * model::kBlockTokens)
            .field("n_positions_max", card.fit->n_positions_max);
    }
    writer.end_object();
}

}  // namespace

Result<bool> check_memory(const Config& config, const std::vector<uint32_t>& sizes_gib, bool as_json) {
    TRY_ASSIGN(const auto files, model::ModelFiles::open(config.model));
    TRY_ASSIGN(const model::ModelConfig model_config, files->config());
    TRY_ASSIGN(const ModelTensors tensors, tensors_of(*files, config.model, model_config));
    const LoadArguments load = load_arguments(config, model::served_name_of(config.model));
    JsonWriter writer;
    writer.begin_array();
    std::string text =
        "| card | flags | weights, GiB | scratch | adapters | KV cache | room |\n|---|---|---|---:|---:|---:|---|\n";
    bool all_fit = true;
    for (const uint32_t gib : sizes_gib) {
        TRY_ASSIGN(const CardFit card, fit_card(gib, load, model_config, tensors.files));
        all_fit = all_fit && card.fit;
        text += row_text(card);
        write_json(writer, card);
    }
    writer.end_array();
    std::printf("%s", as_json ? (writer.take() + "\n").c_str() : text.c_str());
    return all_fit;
}

}  // namespace lorad::server
