// At start-up, of models with recurrences: rows of delta_step in blocks, against the same rows one after the other, by
// the model's own kernels.
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/format.h"

namespace lorad::gpu {

using namespace self_test;

namespace recurrence_test {

// A run that goes on from a state, over more than one stage, with a state saved within a block; and one that begins.
// Both end within a block.
constexpr StateRun kRuns[] = {{0, 19, 0, 1, {{5, 2}, {0, 0}}}, {19, 7, kNoState, 3, {{0, 0}, {0, 0}}}};
constexpr uint32_t kRows = 26, kSlots = 4, kRunCount = 2;
// The same numbers in f32, added in another order: differences of 1e-7 to 1e-6.
constexpr double kTolerance = 2e-5;

class DeltaTest {
  public:
    // corrects: of a delta net, not Mamba 2's.
    static Result<DeltaTest> create(Device& device, const DeltaShape& shape, bool corrects) {
        DeltaTest test;
        test.shape_ = shape;
        test.corrects_ = corrects;
        TRY(make(device, test.step_, sizeof(StepHeader), MemoryKind::kHostUpload));
        TRY(make(device, test.runs_, sizeof(kRuns), MemoryKind::kHostUpload));
        TRY(make(device, test.c_, uint64_t{kRows} * shape.outputs() * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.state_, uint64_t{kSlots} * shape.state_floats() * 4, MemoryKind::kHostReadback));
        TRY(make(device, test.to_, uint64_t{kRows} * shape.values() * 4, MemoryKind::kHostReadback));
        StepHeader header{};
        header.n_rows = kRows;
        header.n_state_runs = kRunCount;
        std::memcpy(test.step_.mapped().data(), &header, sizeof(header));
        std::memcpy(test.runs_.mapped().data(), kRuns, sizeof(kRuns));
        test.fill();
        return test;
    }

    // Another number in a row in the middle of a block.
    void spoil() { c()[size_t{11} * shape_.outputs() + shape_.outputs() - 1] += 0.25f; }

    // What it gives to each row, and the states behind the runs and the saved one.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, bool in_blocks) {
        const size_t n_state = shape_.state_floats(), n_to = to_.size() / 4;
        auto* states = reinterpret_cast<float*>(state_.mapped().data());
        std::memset(states + n_state, 0xff, (kSlots - 1) * n_state * 4);
        std::memset(to_.mapped().data(), 0xff, to_.size());
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        kernels.mixers.recur(recorder,
                             {.step = step_.address(),
                              .runs = runs_.address(),
                              .c = c_.address(),
                              .state = state_.address(),
                              .to = to_.address(),
                              .c_stride = shape_.outputs(),
                              .slot_stride = shape_.state_floats(),
                              .to_stride = shape_.values(),
                              .pad = 0},
                             shape_, corrects_, kRunCount, in_blocks ? kRows : kRunCount);
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        const auto* rows = reinterpret_cast<const float*>(to_.mapped().data());
        std::vector<float> result(rows, rows + n_to);
        result.insert(result.end(), states + n_state, states + kSlots * n_state);
        return result;
    }

  private:
    float* c() { return reinterpret_cast<float*>(c_.mapped().data()); }

    // Keys have lengths below 1, so that what is corrected does not grow; decays are of e^-1 to 1.
    void fill() {
        std::mt19937 random(91);
        const auto number = [&](float low, float high) {
            return low + (high - low) * static_cast<float>(random() >> 8) * 0x1p-24f;
        };
        const float of_key = 1.0f / std::sqrt(static_cast<float>(shape_.key_size));
        for (uint32_t row = 0; row < kRows; ++row) {
            float* at = c() + size_t{row} * shape_.outputs();
            for (uint32_t i = 0; i < 2 * shape_.keys(); ++i) *at++ = number(-of_key, of_key);
            for (uint32_t i = 0; i < shape_.values(); ++i) *at++ = number(-1.0f, 1.0f);
            for (uint32_t i = 0; i < shape_.value_heads; ++i) *at++ = number(-1.0f, 0.0f);
            for (uint32_t i = 0; i < shape_.value_heads; ++i) *at++ = number(0.0f, 1.0f);
        }
        // Elements behind key_size are zero in states that kernels have written.
        const uint32_t column = round_up(shape_.key_size, 16);
        auto* state = reinterpret_cast<float*>(state_.mapped().data());
        for (uint32_t i = 0; i < shape_.state_floats(); ++i)
            state[i] = i % column < shape_.key_size ? number(-1.0f, 1.0f) : 0.0f;
    }

    DeltaShape shape_;
    bool corrects_ = false;
    Buffer step_, runs_, c_, state_, to_;
};

}  // namespace recurrence_test

// Blocks that are wrong with one shape are not used for any.
Status test_recurrences(LadderTests& tests, ScalarType type) {
    using namespace recurrence_test;
    const KernelSetOptions& options = tests.options();
    if (options.batch_invariant) return ok_status();
    const size_t n_delta = options.delta_shapes.size(), n_mamba = options.mamba_shapes.size();
    for (size_t i = 0; i < n_delta + n_mamba && tests.ladder().has(RungId::kDeltaBlocks); ++i) {
        const bool corrects = i < n_delta;
        const DeltaShape shape = corrects ? options.delta_shapes[i] : options.mamba_shapes[i - n_delta].recurrence();
        TRY_ASSIGN(DeltaTest test, DeltaTest::create(tests.device(), shape, corrects));
        TRY_ASSIGN(const std::vector<float> want, test.run(tests.device(), tests.kernels(), false));
        if (options.spoil_delta_blocks) test.spoil();
        const Result<std::vector<float>> got = test.run(tests.device(), tests.kernels(), true);
        if (!got.ok() && got.error().code == ErrorCode::kDeviceLost) return got.error();
        Deviation deviation;
        deviation.add(got, want);
        if (deviation.error <= kTolerance) continue;
        tests.leave_out(RungId::kDeltaBlocks, type,
                        corrects ? "delta_step in blocks of rows" : "mamba_step in blocks of rows", deviation);
    }
    return ok_status();
}

}  // namespace lorad::gpu
