#include "model/weights/weight_transform.h"

#include <algorithm>
#include <deque>

#include "gpu/profiler.h"
#include "gpu/queue.h"
#include "gpu/upload.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

constexpr size_t kPiecesInFlight = 2;  // the next is there when one ends, and a step waits for no more

// Rows of a model's matrix from `row` on, as far as they are of one module.
struct PristineRows {
    gpu::DeviceAddress from;
    uint32_t first_row = 0;  // of a packed part
    gpu::WeightKind kind;

    PristineRows(const Matrix& w, uint32_t row) : from(w.buffer.address() + row * w.row_bytes()), kind(w.type) {
        if (!w.is_packed()) return;
        const MatrixPart& part = w.part_of(row);
        from = w.address_of(part);
        first_row = row - part.row_begin;
        kind = {part.format, w.type};
    }
};

}  // namespace

gpu::DeviceAddress MergedWeights::address_of(const Matrix& pristine) const {
    const auto copy = copies_.find(&pristine);
    return copy != copies_.end() ? copy->second.address() : pristine.buffer.address();
}

gpu::DeviceAddress MergedWeights::address_of(const Vector& pristine) const {
    const auto copy = copies_.find(&pristine);
    return copy != copies_.end() ? copy->second.address() : pristine.address();
}

// A matrix of a layer, its bias, and the modules whose rows it holds, in order.
struct WeightTransform::Group {
    uint32_t layer;
    const Matrix& matrix;
    const Vector& bias;
    ModuleGroup modules;
    uint32_t stride;  // ModelConfig::lora_stride()

    size_t index(uint32_t m) const { return size_t{layer} * stride + static_cast<uint32_t>(modules.first) + m; }
};

std::vector<WeightTransform::Group> WeightTransform::groups(uint32_t layer) const {
    const LayerWeights& w = weights_.layers[layer];
    std::vector<Group> groups;
    const auto add = [&](LoraGroup group, const Matrix& matrix, const Vector& bias) {
        if (matrix.n != 0) groups.push_back({layer, matrix, bias, kModuleRanges[group], config_.lora_stride()});
    };
    const Mixer mixer = config_.layer(layer).mixer;
    add(input_group_of(mixer), w.qkv, w.qkv_bias);
    add(output_group_of(mixer), w.o, w.o_bias);
    add(kGateUp, w.gate_up, w.gate_up_bias);
    add(kDown, w.down, w.down_bias);
    add(kRouterGroup, w.router, w.router_bias);
    add(kSharedGateGroup, w.shared_gate, no_bias_);
    add(kPleGateGroup, w.ple_gate, no_bias_);
    add(kPleProjectionGroup, w.ple_projection, no_bias_);
    if (layer == 0) add(kPleModelGroup, weights_.ple_model, no_bias_);
    return groups;
}

// All terms' parts for every module, and the device's table of them.
class WeightTransform::Parts {
  public:
    // Terms with a scale of 0 and modules without any change are left out.
    Parts(std::span<const MergeTerm> terms, size_t n_modules) : modules_(n_modules) {
        for (size_t i = 0; i < n_modules; ++i) {
            Module& to = modules_[i];
            to.begin = static_cast<uint32_t>(entries_.size());
            for (const MergeTerm& term : terms) {
                const LoraModuleView& from = term.adapter->modules[i];
                const bool changes_matrix = from.rank != 0 || from.gain != 0;
                if (term.scale == 0.0f || (!changes_matrix && from.bias == 0)) continue;
                entries_.push_back(
                    {from.a, from.b, from.gain, from.bias, from.rank, from.weight_type, from.scale, term.scale});
                ++to.n;
                to.changes_matrix = to.changes_matrix || changes_matrix;
                to.changes_bias = to.changes_bias || from.bias != 0;
            }
        }
    }

    // Returns the uploader's value to wait for.
    Result<uint64_t> upload(gpu::Device& device) {
        if (!entries_.empty()) {
            const auto bytes = std::as_bytes(std::span(entries_));
            TRY_ASSIGN(table_, device.create_buffer(bytes.size(), gpu::MemoryKind::kDeviceLocal, "merge parts"));
            TRY(device.uploader().upload(table_, 0, bytes));
        }
        return device.uploader().flush();
    }

    uint32_t n(size_t module) const { return modules_[module].n; }
    gpu::DeviceAddress address(size_t module) const {
        return table_ ? table_.address() + modules_[module].begin * sizeof(gpu::MergePart) : 0;
    }
    bool change_matrix_of(const Group& group) const { return any(group, &Module::changes_matrix); }
    bool change_bias_of(const Group& group) const { return any(group, &Module::changes_bias); }

  private:
    struct Module {
        uint32_t begin = 0, n = 0;
        bool changes_matrix = false, changes_bias = false;
    };
    bool any(const Group& group, bool Module::* what) const {
        for (uint32_t m = 0; m < group.modules.n_modules; ++m) {
            if (modules_[group.index(m)].*what) return true;
        }
        return false;
    }

    std::vector<gpu::MergePart> entries_;
    std::vector<Module> modules_;
    gpu::Buffer table_;
};

WeightTransform::WeightTransform(gpu::Device& device, gpu::KernelSet& kernels, const ModelConfig& config,
                                 const ModelWeights& weights, uint64_t bytes_max)
    : device_(device), kernels_(kernels), config_(config), weights_(weights), bytes_max_(bytes_max) {}

Result<double> WeightTransform::run_pieces(uint32_t n_pieces, uint64_t upload_value,
                                           const std::function<void(gpu::Recorder&, uint32_t piece)>& record) {
    struct Pending {
        gpu::CommandBuffer recording;
        uint64_t value;
    };
    gpu::Queue& queue = device_.compute_queue();
    std::deque<Pending> pending;
    double us = 0.0;
    const auto finish_oldest = [&]() -> Status {
        TRY(queue.wait(pending.front().value));
        TRY_ASSIGN(const auto times, gpu::read_dispatch_times(device_, pending.front().recording));
        for (const gpu::DispatchTime& time : times) us += time.us;
        pending.pop_front();
        return ok_status();
    };
    const auto submit = [&](uint32_t piece) -> Status {
        TRY_ASSIGN(gpu::Recorder recorder, gpu::Recorder::begin(device_, {.span_timestamps = true}));
        record(recorder, piece);
        TRY(kernels_.status());
        TRY_ASSIGN(gpu::CommandBuffer recording, std::move(recorder).end());
        const gpu::CommandBuffer* recordings[] = {&recording};
        TRY_ASSIGN(const uint64_t value, queue.submit_after_upload(recordings, upload_value));
        pending.push_back({std::move(recording), value});
        return ok_status();
    };
    Status done = ok_status();
    for (uint32_t piece = 0; piece < n_pieces && done.ok(); ++piece) {
        if (pending.size() == kPiecesInFlight) done = finish_oldest();
        if (done.ok()) done = submit(piece);
    }
    while (done.ok() && !pending.empty()) done = finish_oldest();
    if (!done.ok()) {
        device_.wait_idle();  // what was submitted may still use memory that the caller gives up
        return std::move(done).error();
    }
    return us / 1000.0;
}

Status WeightTransform::finish_gains(const AdapterView& adapter) {
    std::vector<uint32_t> layers;  // that have any
    for (uint32_t i = 0; i < adapter.modules.size(); ++i) {
        const uint32_t layer = i / config_.lora_stride();
        if (adapter.modules[i].gain != 0 && (layers.empty() || layers.back() != layer)) layers.push_back(layer);
    }
    if (layers.empty()) return ok_status();
    const std::lock_guard lock(mutex_);
    TRY_ASSIGN(const uint64_t upload_value, device_.uploader().flush());
    const auto record = [&](gpu::Recorder& recorder, uint32_t piece) {
        for (const Group& group : groups(layers[piece])) {
            const Matrix& w = group.matrix;
            uint32_t row = 0;
            for (uint32_t m = 0; m < group.modules.n_modules; ++m) {
                const LoraModuleView& view = adapter.modules[group.index(m)];
                const uint32_t n = n_outputs(group, m);
                const PristineRows rows(w, row);
                if (view.gain != 0) {
                    kernels_.lora.weight_norm(recorder,
                                              {.from = rows.from,
                                               .a = view.a,
                                               .b = view.b,
                                               .gain = view.gain,
                                               .rank = view.rank,
                                               .type = view.weight_type,
                                               .scale = view.scale,
                                               .n = n,
                                               .stride = w.k_stride,
                                               .first_row = rows.first_row},
                                              rows.kind);
                }
                row += n;
            }
        }
    };
    TRY(run_pieces(static_cast<uint32_t>(layers.size()), upload_value, record));
    return ok_status();
}

uint32_t WeightTransform::n_outputs(const Group& group, uint32_t m) const {
    return config_.shape(group.layer, static_cast<LinearModule>(static_cast<uint32_t>(group.modules.first) + m)).n;
}

// Lists what merge() copies, by matrix and bias.
std::vector<WeightTransform::Copy> WeightTransform::copies(const Parts& parts) const {
    std::vector<Copy> copies;
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
        for (const Group& group : groups(layer)) {
            const uint64_t n_rows = group.matrix.n_padded;
            if (parts.change_matrix_of(group)) copies.push_back({&group.matrix, group.matrix.plain_bytes()});
            if (parts.change_bias_of(group)) copies.push_back({&group.bias, n_rows * sizeof(float)});
        }
    }
    return copies;
}

uint64_t WeightTransform::merged_bytes(std::span<const MergeTerm> terms) const {
    uint64_t sum = 0;
    for (const Copy& copy : copies(Parts(terms, size_t{config_.n_layers} * config_.lora_stride()))) sum += copy.n_bytes;
    return sum;
}

void WeightTransform::record_merge(gpu::Recorder& recorder, const Group& group, const MergedWeights& merged,
                                   const Parts& parts) const {
    const Matrix& w = group.matrix;
    const bool has_matrix = parts.change_matrix_of(group), has_bias = parts.change_bias_of(group);
    const gpu::DeviceAddress bias_from = group.bias.address();
    uint32_t row = 0;
    for (uint32_t m = 0; m < group.modules.n_modules; ++m) {
        const uint32_t n = n_outputs(group, m);
        const bool is_last = m + 1 == group.modules.n_modules;
        const size_t module = group.index(m);
        // The last one brings the padding with it.
        const PristineRows rows(w, row);
        gpu::MergeWeightsParams params{.from = rows.from,
                                       .to = merged.address_of(w) + row * w.row_bytes(),
                                       .parts = parts.address(module),
                                       .n_parts = parts.n(module),
                                       .n_rows = is_last ? w.n_padded - row : n,
                                       .n_changed = n,
                                       .stride = w.k_stride,
                                       .first_row = rows.first_row,
                                       .pad = 0};
        if (has_matrix) kernels_.lora.merge_weights(recorder, params, rows.kind);
        params.from = bias_from != 0 ? bias_from + row * sizeof(float) : 0;
        params.to = merged.address_of(group.bias) + row * sizeof(float);
        if (has_bias) kernels_.lora.merge_bias(recorder, params);
        row += n;
    }
}

bool WeightTransform::changes_experts(const AdapterView& adapter) const {
    const uint32_t stride = config_.lora_stride();
    for (uint32_t i = 0; i < adapter.modules.size(); ++i) {
        const auto module = static_cast<LinearModule>(i % stride);
        if ((module == LinearModule::kExpertGateUp || module == LinearModule::kExpertDown) &&
            adapter.modules[i].rank != 0)
            return true;
    }
    return false;
}

Result<std::unique_ptr<MergedWeights>> WeightTransform::merge(std::span<const MergeTerm> terms) {
    CHECK(terms.size() <= gpu::kMergeParts);
    for (const MergeTerm& term : terms) {
        if (changes_experts(*term.adapter))
            return make_error(ErrorCode::kAdapterUnsupported,
                              "adapters that change experts are not merged: they are served unmerged");
    }
    const std::lock_guard lock(mutex_);
    Parts parts(terms, size_t{config_.n_layers} * config_.lora_stride());
    const std::vector<Copy> wanted = copies(parts);
    auto merged = std::make_unique<MergedWeights>();
    for (const Copy& copy : wanted) merged->device_bytes_ += copy.n_bytes;
    const uint64_t free_bytes = device_.free_bytes_estimate();
    const uint64_t bytes_max = bytes_max_ != 0 ? std::min(bytes_max_, free_bytes) : free_bytes;
    const auto out_of_memory = [&] {
        return make_error(
            ErrorCode::kOutOfMemory,
            format("the merged weights need {} bytes of device memory beside the pristine ones, {} are free for them",
                   merged->device_bytes_, bytes_max));
    };
    if (merged->device_bytes_ > bytes_max) return out_of_memory();
    for (const Copy& copy : wanted) {
        auto buffer = device_.create_buffer(copy.n_bytes, gpu::MemoryKind::kDeviceLocal, "merged weights");
        if (!buffer.ok())
            return buffer.error().code == ErrorCode::kOutOfMemory ? out_of_memory() : std::move(buffer).error();
        merged->copies_.emplace(copy.pristine, std::move(buffer).value());
    }
    TRY_ASSIGN(const uint64_t upload_value, parts.upload(device_));
    std::vector<uint32_t> layers;  // that change
    for (uint32_t layer = 0; layer < config_.n_layers; ++layer) {
        const auto changes = [&](const Group& group) {
            return parts.change_matrix_of(group) || parts.change_bias_of(group);
        };
        if (std::ranges::any_of(groups(layer), changes)) layers.push_back(layer);
    }
    const auto record = [&](gpu::Recorder& recorder, uint32_t piece) {
        for (const Group& group : groups(layers[piece])) record_merge(recorder, group, *merged, parts);
    };
    TRY_ASSIGN(merged->gpu_ms_, run_pieces(static_cast<uint32_t>(layers.size()), upload_value, record));
    return merged;
}

}  // namespace lorad::model
