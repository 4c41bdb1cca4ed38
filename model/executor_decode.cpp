// The trials of programs whose workgroups wait for each other before the first request, and what happens when they wait in vain later.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>

#include "gpu/kernels/self_test.h"
#include "gpu/upload.h"
#include "model/executor_impl.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::model {
namespace {

// Of the trials: both ways round the inputs of products to the weights' type, but add in another order.
constexpr uint32_t kTrialTokens = 3;
constexpr double kTrialToleranceF16 = 1e-2, kTrialToleranceBf16 = 5e-2;

// The trials' adapters: one A and one B for all modules of all layers, of a rank that fills no word of 16 bytes.
constexpr uint32_t kTrialSlot = 0, kTrialRank = 20, kTrialGatedRank = 12;
static_assert(kTrialRank <= gpu::kDecodeRankMax && kTrialGatedRank <= gpu::kGatedLoraRanks);

}  // namespace

// Some step's workgroups waited for each other in vain: the steps in flight are computed again by separate dispatches, and all that follow, whichever program it was:
// the device no longer runs workgroups side by side. Writing K and V again does
// no harm; what was fed back to the first of them on the device is the answer of the step before, which the ring still holds.
Status Executor::Impl::redo_in_flight() {
    const char* which = gated_works && gated_lora->given_up() ? "matmul_warpgroup_gated_lora" : rows_work && (!decode_works || decode_rows->given_up()) ? "decode_rows" : "decode_layers";
    log_warn("kernels: {} gave up waiting on {}; all steps use separate dispatches from now on", which, device.capabilities().name);
    decode_works = rows_work = gated_works = false;
    for (const InFlight& step : in_flight) TRY(device.compute_queue().wait(step.value));
    for (InFlight& step : in_flight) {
        const gpu::Buffer& before = ring[(step.slot + kRingSlots - 1) % kRingSlots].results;
        const auto* results = reinterpret_cast<const gpu::SampleResult*>(before.mapped().data());
        std::vector<int32_t> tokens(options.n_outputs_max);
        for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = results[i].token;
        TRY(device.uploader().upload(scratch.sampled, 0, std::as_bytes(std::span(tokens))));
        TRY(device.uploader().finish());
        step.is_one_recording = false;
        step.shape.schedule = LayerSchedule::kSeparate;
        if (step.shape.method == AdapterMethod::kGatedProduct) step.shape.method = AdapterMethod::kConsumers;
        step.shape.lora_type = gpu::kAnyLoraType;
        step.shape.attention_splits = std::min(step.shape.attention_splits, planner->splits_for(1, options.n_positions_max));
        // On the merged weights that it was submitted with, which need not be those of the next steps any more.
        TRY_ASSIGN(const gpu::CommandBuffer recording, record_step(step.shape, false, step.merged.get()));
        ++n_recordings;
        TRY(replay(step, recording));
        if (step.n_masks > 0 && step.is_drawn) TRY(replay_draw(step));
        TRY(device.compute_queue().wait(step.value));
    }
    return ok_status();
}

// In kTrialSlot, for which the matrices must live.
Result<gpu::Buffer> Executor::Impl::put_trial_adapter(uint32_t rank) {
    const uint32_t rank8 = round_up(rank, 8);
    const gpu::ScalarType type = weights.layers.front().qkv.type;
    const uint32_t k_max = std::max({gpu::padded(config.hidden_size), gpu::padded(config.q_size()), gpu::padded(config.intermediate_size)});
    const uint32_t n_max = std::max({config.hidden_size, config.q_size(), config.kv_size(), config.intermediate_size});
    const uint32_t element = gpu::bytes_of(type), a_bytes = round_up(rank * k_max * element, 256), b_row_bytes = rank8 * element;
    std::vector<std::byte> both(a_bytes + size_t{n_max} * b_row_bytes);
    std::mt19937 random(25);
    gpu::self_test::fill_random(both, type, random);
    for (size_t end = a_bytes + b_row_bytes; end <= both.size(); end += b_row_bytes) {
        const size_t n_padding = (rank8 - rank) * element;
        std::fill_n(both.begin() + static_cast<ptrdiff_t>(end - n_padding), n_padding, std::byte{0});
    }
    TRY_ASSIGN(gpu::Buffer matrices, device.create_buffer(both.size(), gpu::MemoryKind::kDeviceLocal, "adapter of a trial"));
    TRY(device.uploader().upload(matrices, 0, both));
    // B A x is some 4 sqrt(hidden) times an element of x, and so a tenth of it.
    const float scale = 0.025f / std::sqrt(static_cast<float>(config.hidden_size));
    const LoraModuleView module{.a = matrices.address(), .b = matrices.address() + a_bytes, .rank = rank, .scale = scale, .weight_type = static_cast<uint32_t>(type)};
    TRY(lora_table->set(kTrialSlot, {.modules = std::vector(size_t{config.n_layers} * config.lora_stride(), module)}));
    return matrices;
}

Status Executor::Impl::take_trial_adapter() {
    TRY(lora_table->set(kTrialSlot, {.modules = std::vector<LoraModuleView>(size_t{config.n_layers} * config.lora_stride())}));
    return device.uploader().finish();
}

// A token in the first block of the cache.
Status Executor::Impl::trial_step(uint32_t position, const Trial& trial) {
    StepBatch batch;
    const BlockId block{0};
    const auto token = static_cast<TokenId>((position + 1) % config.vocab_size);
    batch.add_output(batch.add_rows({&token, 1}, position, {&block, 1}, trial.adapter_slot), true);
    StepShape shape = shape_of(batch);
    shape.schedule = trial.way;
    shape.lora_type = trial.lora_type;
    if (trial.way == LayerSchedule::kApart) shape.attention_splits = planner->splits_for(1, options.n_positions_max);  // as behind a long context
    shape.lone_rows = shape.lone_rows && trial.way != LayerSchedule::kOneDispatch;
    TRY_ASSIGN(const uint64_t value, run(batch, shape));
    return device.compute_queue().wait(value);
}

Result<std::vector<float>> Executor::Impl::trial_logits(const Trial& trial) {
    for (uint32_t position = 0; position < kTrialTokens; ++position) TRY(trial_step(position, trial));
    const auto* logits = reinterpret_cast<const float*>(host_logits.mapped().data());
    return std::vector<float>(logits, logits + config.vocab_size);
}

// The middle one of a few steps each, in turns, again until they get no faster: a device that was idle takes seconds to come back to its clock,
// and what is faster at a low one need not be at full clock.
Result<Executor::Impl::TrialTimes> Executor::Impl::trial_times(const std::function<Status()>& separate, const std::function<Status()>& one) {
    constexpr uint32_t kSteps = 9, kRoundsAlike = 3;
    constexpr double kFaster = 0.98;
    constexpr std::chrono::seconds kLongest{2};
    const auto ms_of = [](const std::function<Status()>& step) -> Result<double> {
        const auto start = std::chrono::steady_clock::now();
        TRY(step());
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    };
    const auto begin = std::chrono::steady_clock::now();
    TrialTimes times;
    double best_ms = INFINITY;
    for (uint32_t alike = 0; alike < kRoundsAlike && std::chrono::steady_clock::now() - begin < kLongest;) {
        std::array<double, kSteps> separate_ms, one_ms;
        for (uint32_t i = 0; i < kSteps; ++i) {
            TRY_ASSIGN(separate_ms[i], ms_of(separate));
            TRY_ASSIGN(one_ms[i], ms_of(one));
        }
        std::ranges::sort(separate_ms);
        std::ranges::sort(one_ms);
        times = {separate_ms[kSteps / 2], one_ms[kSteps / 2]};
        const double both_ms = times.separate_ms + times.one_ms;
        alike = both_ms < best_ms * kFaster ? 0 : alike + 1;
        best_ms = std::min(best_ms, both_ms);
    }
    return times;
}

// How logits differ from those that are right; empty where they are alike.
std::string Executor::Impl::difference(std::span<const float> got, std::span<const float> want) const {
    double error = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        error = std::max(error, static_cast<double>(std::abs(got[i] - want[i])));
        largest = std::max(largest, static_cast<double>(std::abs(want[i])));
        if (!std::isfinite(got[i])) error = INFINITY;
    }
    const bool is_bf16 = weight_type() == gpu::ScalarType::kBf16;
    if (error <= (is_bf16 ? kTrialToleranceBf16 : kTrialToleranceF16) * largest) return {};
    return format("relative error {:.1e}", error / largest);
}

// What is wrong with the logits of a step computed this way; empty where nothing is.
Result<std::string> Executor::Impl::trial_fault(const Trial& trial, std::span<const float> want) {
    Result<std::vector<float>> got_or_error = trial_logits(trial);
    if (!got_or_error.ok() && got_or_error.error().code == ErrorCode::kKernelRefused) return got_or_error.error().message;
    TRY_ASSIGN(const std::vector<float> got, std::move(got_or_error));
    std::string what = trial.way == LayerSchedule::kApart ? "what lies between attentions in one" : "all layers in one dispatch";
    if (trial.adapter_slot != kNoAdapterSlot) what += format(", with an adapter, by the program for {}", trial.lora_type == gpu::kAnyLoraType ? "any types" : "the weights' type");
    if (decode_layers->given_up()) return format("{}: its workgroups do not run side by side", what);
    const std::string how = difference(got, want);
    return how.empty() ? how : format("{}: {}", what, how);
}

// The same with an adapter of the weights' type, by the program for such and by the one for any types. As adapters differ, so may their kernels' faults:
// this shows those of a device or driver alone.
Result<std::string> Executor::Impl::trial_fault_with_adapter() {
    std::string why = decode_adapter_refusal;
    if (!why.empty()) return why;
    TRY_ASSIGN(const gpu::Buffer matrices, put_trial_adapter(kTrialRank));
    TRY_ASSIGN(const std::vector<float> want, trial_logits({.adapter_slot = kTrialSlot}));
    for (const uint32_t program : {planner->decode_lora_type(), gpu::kAnyLoraType}) {
        if (!why.empty()) break;
        TRY_ASSIGN(why, trial_fault({LayerSchedule::kOneDispatch, kTrialSlot, program}, want));
    }
    TRY(take_trial_adapter());
    return why;
}

// Before the first request, with the model's own weights: right, and faster than the separate dispatches? With attention apart no time is taken: it
// has the same products in fewer dispatches than they.
Status Executor::Impl::try_decode_layers() {
    if (!decode_layers) return ok_status();
    std::string why = decode_refusal;
    TRY_ASSIGN(const std::vector<float> want, trial_logits({}));
    if (why.empty()) {
        TRY_ASSIGN(why, trial_fault({.way = LayerSchedule::kOneDispatch}, want));
    }
    if (why.empty() && options.n_positions_max > options.one_dispatch_context_max) {
        TRY_ASSIGN(why, trial_fault({.way = LayerSchedule::kApart}, want));
    }
    decode_works = why.empty();
    if (decode_works && decodes_adapters) {
        TRY_ASSIGN(why, trial_fault_with_adapter());
        decodes_adapters = why.empty();
        if (!decodes_adapters) log_warn("kernels: decode_layers on {} fails its trial ({}); rows with adapters use separate dispatches", device.capabilities().name, why);
        decode_works = !decode_layers->given_up();
    }
    if (decode_works && options.decode == gpu::PersistentDecode::kAuto) {
        const auto step = [&](LayerSchedule way) { return [this, way] { return trial_step(kTrialTokens - 1, {.way = way}); }; };
        TRY_ASSIGN(const TrialTimes times, trial_times(step(LayerSchedule::kSeparate), step(LayerSchedule::kOneDispatch)));
        decode_works = !decode_layers->given_up() && times.one_ms < times.separate_ms;
        log_info("kernels: a step of one row takes {:.3f} ms in one dispatch, {:.3f} in separate ones", times.one_ms, times.separate_ms);
        return ok_status();
    }
    if (decode_works) return ok_status();
    if (options.decode == gpu::PersistentDecode::kOn) {
        return make_error(ErrorCode::kInvalidConfig, format("persistent decode on: not possible on {}: {}", device.capabilities().name, why));
    }
    log_warn("kernels: decode_layers on {} fails its trial ({}); it is not used", device.capabilities().name, why);
    return ok_status();
}

// A sequence's first token in each row.
Status Executor::Impl::trial_rows_step(bool between, bool wants_logits) {
    StepBatch batch;
    for (uint32_t i = 0; i < n_trial_rows(); ++i) {
        const BlockId block{i};
        const auto token = static_cast<TokenId>((i + 1) % config.vocab_size);
        batch.add_output(batch.add_rows({&token, 1}, 0, {&block, 1}, kNoAdapterSlot), wants_logits);
    }
    StepShape shape = shape_of(batch);
    shape.schedule = between ? LayerSchedule::kBetween : LayerSchedule::kSeparate;
    TRY_ASSIGN(const uint64_t value, run(batch, shape));
    return device.compute_queue().wait(value);
}

Result<std::vector<float>> Executor::Impl::trial_rows_logits(bool between) {
    TRY(trial_rows_step(between, true));
    const auto* logits = reinterpret_cast<const float*>(host_logits.mapped().data());
    return std::vector<float>(logits, logits + size_t{n_trial_rows()} * config.vocab_size);
}

// What is wrong with the logits of a step whose workgroups meet; empty where nothing is.
Result<std::string> Executor::Impl::fault_of(Result<std::vector<float>> got_or_error, const Meeting& meeting, std::span<const float> want) const {
    if (!got_or_error.ok() && got_or_error.error().code == ErrorCode::kKernelRefused) return got_or_error.error().message;
    TRY_ASSIGN(const std::vector<float> got, std::move(got_or_error));
    if (meeting.given_up()) return std::string("its workgroups do not run side by side");
    return difference(got, want);
}

Result<std::string> Executor::Impl::trial_rows_fault() {
    TRY_ASSIGN(const std::vector<float> want, trial_rows_logits(false));
    return fault_of(trial_rows_logits(true), *decode_rows, want);
}

// As try_decode_layers(). Where there is no such program nobody asked for it by name, so that is no error.
Status Executor::Impl::try_decode_rows() {
    if (!decode_rows || n_trial_rows() < 2) return ok_status();
    std::string why = rows_refusal;
    if (why.empty()) {
        TRY_ASSIGN(why, trial_rows_fault());
    }
    rows_work = why.empty();
    if (!rows_work) {
        log_warn("kernels: decode_rows on {} fails its trial ({}); it is not used", device.capabilities().name, why);
        return ok_status();
    }
    if (options.decode != gpu::PersistentDecode::kAuto) return ok_status();
    TRY_ASSIGN(const TrialTimes times, trial_times([this] { return trial_rows_step(false, false); }, [this] { return trial_rows_step(true, false); }));
    rows_work = !decode_rows->given_up() && times.one_ms < times.separate_ms;
    log_info("kernels: a step of {} rows takes {:.3f} ms with one dispatch between two layers' attentions, {:.3f} with separate ones", n_trial_rows(), times.one_ms, times.separate_ms);
    return ok_status();
}

// Of the last token of a prompt in the first block of the cache, with the trial's adapter.
Result<std::vector<float>> Executor::Impl::trial_prompt_logits(uint32_t n_tokens, bool gated) {
    std::vector<TokenId> tokens(n_tokens);
    for (uint32_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>((i + 1) % config.vocab_size);
    StepBatch batch;
    const BlockId block{0};
    batch.add_output(batch.add_rows(tokens, 0, {&block, 1}, kTrialSlot) + static_cast<uint32_t>(tokens.size()) - 1, true);
    StepShape shape = shape_of(batch);
    if (gated) shape.method = AdapterMethod::kGatedProduct;
    TRY_ASSIGN(const uint64_t value, run(batch, shape));
    TRY(device.compute_queue().wait(value));
    const auto* logits = reinterpret_cast<const float*>(host_logits.mapped().data());
    return std::vector<float>(logits, logits + config.vocab_size);
}

// Each number of rows has a program of its own.
Result<std::string> Executor::Impl::trial_gated_fault() {
    std::string why;
    for (const uint32_t n_rows : planner->gated_buckets()) {
        const uint32_t n_tokens = std::min(n_rows, options.n_rows_max);
        TRY_ASSIGN(const std::vector<float> want, trial_prompt_logits(n_tokens, false));
        TRY_ASSIGN(why, fault_of(trial_prompt_logits(n_tokens, true), *gated_lora, want));
        if (!why.empty()) return format("{} rows: {}", n_tokens, why);
    }
    return why;
}

// As try_decode_rows(), but for the time: shapes that were not measured have no such program (ProductPlanner::gates_lora()).
Status Executor::Impl::try_gated_lora() {
    static_assert(gpu::kGatedLoraRows <= kBlockTokens);
    if (!gated_lora || options.n_adapter_slots == 0) return ok_status();
    std::string why = gated_refusal;
    if (why.empty() && options.n_positions_max < planner->gated_buckets().back()) why = "sequences are too short for a trial";
    if (why.empty()) {
        TRY_ASSIGN(const gpu::Buffer matrices, put_trial_adapter(kTrialGatedRank));
        TRY_ASSIGN(why, trial_gated_fault());
        TRY(take_trial_adapter());
    }
    gated_works = why.empty();
    if (!gated_works) log_warn("kernels: matmul_warpgroup_gated_lora on {} fails its trial ({}); it is not used", device.capabilities().name, why);
    return ok_status();
}

}  // namespace lorad::model
