// Tries the programs with grid barriers before the first request, and recovers when a grid barrier times out later.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <random>
#include <ranges>
#include <span>
#include <string_view>

#include "gpu/facts/start_record.h"
#include "gpu/kernels/self_test.h"
#include "gpu/upload.h"
#include "model/exec/executor_impl.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::model {
namespace {

// Both ways of a trial round the inputs of products to the weights' type, but add in another order.
constexpr uint32_t kTrialTokens = 3;
constexpr double kTrialToleranceF16 = 1e-2, kTrialToleranceBf16 = 5e-2;

// What the StartRecord has of a trial.
constexpr std::string_view kTrialWorks = "works", kTrialSlower = "slower", kTrialAgain = "again";

// The trials' adapters: one A and one B for all modules of all layers, of a rank that fills no word of 16 bytes.
constexpr uint32_t kTrialSlot = 0, kTrialRank = 20, kTrialGatedRank = 12;
static_assert(kTrialRank <= gpu::kDecodeRankMax && kTrialGatedRank <= gpu::kGatedLoraRanks);

}  // namespace

// The next start tries all of them again, however this process ends.
void Executor::Impl::forget_trials() {
    using enum PersistentProgram;
    for (const PersistentProgram program : {kDecodeLayers, kDecodeLayersAdapter, kDecodeRows, kGatedLora}) {
        if (programs[program].given_up != nullptr)
            device.start_record().put(trial_key(program), std::string(kTrialAgain));
    }
    device.start_record().save();
}

// A grid barrier of some step timed out, so the device does not run workgroups side by side. The steps in flight are
// computed again by separate dispatches, as are all that follow, whichever program it was. Writing K and V again does
// no harm. The token that was fed back to the first step on the device is the answer of the step before, which the ring
// still holds.
Status Executor::Impl::redo_in_flight() {
    const char* which = programs.waited_in_vain();
    log_warn("kernels: {} gave up waiting on {}; all steps use separate dispatches from now on",
             which != nullptr ? which : "a program (a planted fault)", device.capabilities().name);
    forget_trials();
    programs.give_up();
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
        step.shape.attention_splits =
            std::min(step.shape.attention_splits, planner->splits_for(1, options.n_positions_max));
        // It runs on the merged weights that it was submitted with, which need not be those of the next steps.
        TRY_ASSIGN(const gpu::CommandBuffer recording, record_step(step.shape, false, step.merged.get()));
        ++n_recordings;
        TRY(replay(step, recording));
        if (step.n_masks > 0 && step.is_drawn) TRY(replay_draw(step));
        TRY(device.compute_queue().wait(step.value));
    }
    return ok_status();
}

// Puts the trials' adapter into kTrialSlot; its matrices have to live as long.
Result<gpu::Buffer> Executor::Impl::put_trial_adapter(uint32_t rank) {
    const uint32_t rank8 = round_up(rank, 8);
    const gpu::ScalarType type = weights.layers.front().qkv.type;
    const uint32_t k_max = std::max(
        {gpu::padded(config.hidden_size), gpu::padded(config.q_size()), gpu::padded(config.intermediate_size)});
    const uint32_t n_max = std::max({config.hidden_size, config.q_size(), config.kv_size(), config.intermediate_size});
    const uint32_t element = gpu::bytes_of(type), a_bytes = round_up(rank * k_max * element, 256),
                   b_row_bytes = rank8 * element;
    std::vector<std::byte> both(a_bytes + size_t{n_max} * b_row_bytes);
    std::mt19937 random(25);
    gpu::self_test::fill_random(both, type, random);
    for (size_t end = a_bytes + b_row_bytes; end <= both.size(); end += b_row_bytes) {
        const size_t n_padding = (rank8 - rank) * element;
        std::fill_n(both.begin() + static_cast<ptrdiff_t>(end - n_padding), n_padding, std::byte{0});
    }
    TRY_ASSIGN(gpu::Buffer matrices,
               device.create_buffer(both.size(), gpu::MemoryKind::kDeviceLocal, "adapter of a trial"));
    TRY(device.uploader().upload(matrices, 0, both));
    // B A x is some 4 sqrt(hidden) times an element of x, and so a tenth of it.
    const float scale = 0.025f / std::sqrt(static_cast<float>(config.hidden_size));
    const LoraModuleView module{.a = matrices.address(),
                                .b = matrices.address() + a_bytes,
                                .rank = rank,
                                .scale = scale,
                                .weight_type = static_cast<uint32_t>(type)};
    TRY(lora_table->set(kTrialSlot, {.modules = std::vector(size_t{config.n_layers} * config.lora_stride(), module)}));
    return matrices;
}

Status Executor::Impl::take_trial_adapter() {
    TRY(lora_table->set(kTrialSlot,
                        {.modules = std::vector<LoraModuleView>(size_t{config.n_layers} * config.lora_stride())}));
    return device.uploader().finish();
}

Executor::Impl::ProgramTrials Executor::Impl::trials_of(PersistentProgram program) const {
    switch (program) {
        case PersistentProgram::kDecodeLayers: {
            Trial trial{{.n_steps = kTrialTokens},
                        {{.name = "all layers in one dispatch", .schedule = LayerSchedule::kOneDispatch}}};
            if (options.n_positions_max > options.one_dispatch_context_max)
                trial.ways.push_back(
                    {.name = "what lies between attentions in one", .schedule = LayerSchedule::kApart});
            return {.trials = {trial}, .must_be_faster = true};
        }
        case PersistentProgram::kDecodeLayersAdapter:
            // Adapters of the weights' type have a program of their own.
            return {.trials = {{{.n_steps = kTrialTokens, .has_adapter = true},
                                {{.name = "for adapters of the weights' type",
                                  .schedule = LayerSchedule::kOneDispatch,
                                  .lora_type = planner->decode_lora_type()},
                                 {.name = "for adapters of any types", .schedule = LayerSchedule::kOneDispatch}}}},
                    .adapter_rank = kTrialRank};
        case PersistentProgram::kDecodeRows: {
            const uint32_t n_rows = std::min({gpu::kDecodeRowsMax, options.n_rows_max, options.n_outputs_max,
                                              options.n_sequences_max, plan.n_kv_blocks});
            if (!weights.layers.front().qkv.is_packed()) {
                if (n_rows < 2) return {.obstacle = "steps have one row"};
                return {.trials = {{{.n_sequences = n_rows}, {{.schedule = LayerSchedule::kBetween}}}},
                        .must_be_faster = true};
            }
            // A step of one row, then the most rows of each program: they are made for 2, 4 and 8.
            ProgramTrials all{.must_be_faster = true};
            uint32_t last = 0;
            for (const uint32_t most : {1u, 2u, 4u, gpu::kDecodeRowsMax}) {
                const uint32_t n = std::min(most, n_rows);
                if (n == last) break;
                all.trials.push_back({{.n_sequences = n, .n_steps = kTrialTokens},
                                      {{.name = format("{} rows", n), .schedule = LayerSchedule::kBetween}}});
                last = n;
            }
            return all;
        }
        case PersistentProgram::kGatedLora: {
            // Shapes that were not measured have no such program (matmul_gated_lora.cpp), so no time is taken.
            // Each number of rows has one of its own.
            static_assert(gpu::kGatedLoraRows <= kBlockTokens);
            if (options.n_positions_max < planner->gated_buckets().back())
                return {.obstacle = "sequences are too short for a trial"};
            ProgramTrials all{.adapter_rank = kTrialGatedRank};
            for (const uint32_t n_rows : planner->gated_buckets()) {
                const uint32_t n_tokens = std::min(n_rows, options.n_rows_max);
                all.trials.push_back({{.n_tokens = n_tokens, .has_adapter = true},
                                      {{.name = format("{} rows", n_tokens), .method = AdapterMethod::kGatedProduct}}});
            }
            return all;
        }
    }
    return {};
}

Status Executor::Impl::trial_step(const TrialStep& step, const TrialWay& way, uint32_t position, bool wants_logits) {
    StepBatch batch;
    for (uint32_t sequence = 0; sequence < step.n_sequences; ++sequence) {
        std::vector<TokenId> tokens(step.n_tokens);
        for (uint32_t i = 0; i < step.n_tokens; ++i)
            tokens[i] = static_cast<TokenId>((sequence + position + i + 1) % config.vocab_size);
        const BlockId block{sequence};
        batch.add_output(batch.add_rows(tokens, position, {&block, 1}, step.has_adapter ? kTrialSlot : kNoAdapterSlot) +
                             step.n_tokens - 1,
                         wants_logits);
    }
    StepShape shape = shape_of(batch);
    shape.schedule = way.schedule;
    shape.method = way.method.value_or(shape.method);
    shape.lora_type = way.lora_type;
    // as behind a long context
    if (way.schedule == LayerSchedule::kApart) shape.attention_splits = planner->splits_for(1, options.n_positions_max);
    shape.lone_rows = shape.lone_rows && way.schedule != LayerSchedule::kOneDispatch;
    TRY_ASSIGN(const uint64_t value, run(batch, shape));
    return device.compute_queue().wait(value);
}

Result<std::vector<float>> Executor::Impl::trial_logits(const TrialStep& step, const TrialWay& way) {
    for (uint32_t position = 0; position < step.n_steps; ++position) TRY(trial_step(step, way, position, true));
    const auto* logits = reinterpret_cast<const float*>(host_logits.mapped().data());
    return std::vector<float>(logits, logits + size_t{step.n_sequences} * config.vocab_size);
}

// Says how logits differ from those that are right; empty where they are alike.
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

// Empty where each way gives the logits of separate dispatches.
Result<std::string> Executor::Impl::fault_of(const Trial& trial, const GivenUp& given_up) {
    TRY_ASSIGN(const std::vector<float> want, trial_logits(trial.step, {}));
    for (const TrialWay& way : trial.ways) {
        const std::string which = way.name.empty() ? way.name : way.name + ": ";
        Result<std::vector<float>> got_or_error = trial_logits(trial.step, way);
        if (!got_or_error.ok() && got_or_error.error().code == ErrorCode::kKernelRefused)
            return got_or_error.error().message;
        TRY_ASSIGN(const std::vector<float> got, std::move(got_or_error));
        if (given_up.is_set()) return which + "its workgroups do not run side by side";
        if (const std::string how = difference(got, want); !how.empty()) return which + how;
    }
    return std::string();
}

Result<std::string> Executor::Impl::fault_of(const ProgramTrials& trials, const ProgramState& state) {
    if (!state.refusal.empty()) return state.refusal;
    if (!trials.obstacle.empty()) return trials.obstacle;
    gpu::Buffer matrices;
    if (trials.adapter_rank != 0) {
        TRY_ASSIGN(matrices, put_trial_adapter(trials.adapter_rank));
    }
    std::string why;
    for (const Trial& trial : trials.trials) {
        if (!why.empty()) break;
        TRY_ASSIGN(why, fault_of(trial, *state.given_up));
    }
    // Faults of an adapter's kernels may depend on the adapter: this shows those of a device or driver alone.
    if (trials.adapter_rank != 0) TRY(take_trial_adapter());
    return why;
}

// The middle one of a few steps each, in turns, again until they get no faster: a device that was idle takes seconds to
// come back to its clock, and what is faster at a low one need not be at full clock.
Result<Executor::Impl::TrialTimes> Executor::Impl::trial_times(const Trial& trial) {
    constexpr uint32_t kSteps = 9, kRoundsAlike = 3;
    constexpr double kFaster = 0.98;
    constexpr std::chrono::seconds kLongest{2};
    const auto ms_of = [&](const TrialWay& way) -> Result<double> {
        const auto start = std::chrono::steady_clock::now();
        TRY(trial_step(trial.step, way, trial.step.n_steps - 1, false));
        return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    };
    const auto begin = std::chrono::steady_clock::now();
    TrialTimes times;
    double best_ms = INFINITY;
    for (uint32_t alike = 0; alike < kRoundsAlike && std::chrono::steady_clock::now() - begin < kLongest;) {
        std::array<double, kSteps> separate_ms, one_ms;
        for (uint32_t i = 0; i < kSteps; ++i) {
            TRY_ASSIGN(separate_ms[i], ms_of({}));
            TRY_ASSIGN(one_ms[i], ms_of(trial.ways.front()));
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

// Of what the trial and its times depend on beside device, driver and build, which the StartRecord knows.
std::string Executor::Impl::trial_key(PersistentProgram program) const {
    const std::string text = format(
        "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", model_identity, describe_formats(weights),
        static_cast<uint32_t>(options.kernel_path), options.batch_invariant, static_cast<uint32_t>(options.decode),
        options.decode_workgroups, options.one_dispatch_context_max, options.n_rows_max, options.n_sequences_max,
        options.n_outputs_max, options.n_positions_max, plan.n_kv_blocks, options.n_adapter_slots > 0,
        static_cast<uint32_t>(options.kv_type), fmt::join(options.left_out_kernels, ","));
    return format("trial-{}-{}", static_cast<uint32_t>(program),
                  sha256_hex(std::as_bytes(std::span(text))).substr(0, 16));
}

// Takes the result of an earlier start. One that was not right is tried again, as is one that has given up since.
bool Executor::Impl::remembers_trial(PersistentProgram program) {
    ProgramState& state = programs[program];
    if (device.repeats_tests() || model_identity.empty() || !state.refusal.empty()) return false;
    const auto known = device.start_record().find(trial_key(program));
    if (!known || (*known != kTrialWorks && *known != kTrialSlower)) return false;
    state.works = *known == kTrialWorks;
    log_debug("kernels: {} on {}: {} at an earlier start", state.kernel, device.capabilities().name, *known);
    return true;
}

// A program works if it is right, and faster than separate dispatches where that is asked, with the model's own
// weights.
Status Executor::Impl::try_program(PersistentProgram program) {
    ProgramState& state = programs[program];
    if (state.given_up == nullptr || remembers_trial(program)) return ok_status();
    const ProgramTrials trials = trials_of(program);
    TRY_ASSIGN(const std::string why, fault_of(trials, state));
    state.works = why.empty();
    if (!state.works && program == PersistentProgram::kDecodeLayers && options.decode == gpu::PersistentDecode::kOn) {
        return make_error(ErrorCode::kInvalidConfig,
                          format("persistent decode on: not possible on {}: {}", device.capabilities().name, why));
    }
    if (!state.works) {
        log_warn("kernels: {} on {} fails its trial ({}); it is not used", state.kernel, device.capabilities().name,
                 why);
        return ok_status();
    }
    device.start_record().put(trial_key(program), std::string(kTrialWorks));
    if (!trials.must_be_faster || options.decode != gpu::PersistentDecode::kAuto) return ok_status();
    // The least and the most work.
    const size_t n_timed = trials.trials.size() > 1 ? 2 : 1;
    for (const Trial* trial : std::array{&trials.trials.front(), &trials.trials.back()} | std::views::take(n_timed)) {
        TRY_ASSIGN(const TrialTimes times, trial_times(*trial));
        state.works = state.works && !state.given_up->is_set() && times.one_ms < times.separate_ms;
        log_info("kernels: a step of {} rows takes {:.3f} ms by {}, {:.3f} in separate dispatches",
                 trial->step.n_sequences, times.one_ms, state.kernel, times.separate_ms);
    }
    if (!state.works) device.start_record().put(trial_key(program), std::string(kTrialSlower));
    return ok_status();
}

// Called before the first request.
Status Executor::Impl::try_programs() {
    using enum PersistentProgram;
    TRY(try_program(kDecodeLayers));
    if (programs[kDecodeLayers].works && options.n_adapter_slots > 0) TRY(try_program(kDecodeLayersAdapter));
    TRY(try_program(kDecodeRows));
    if (options.n_adapter_slots > 0) TRY(try_program(kGatedLora));
    if (programs.waited_in_vain() != nullptr) {
        forget_trials();
        programs.give_up();
    }
    return ok_status();
}

}  // namespace lorad::model
