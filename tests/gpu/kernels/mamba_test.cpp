// Mamba 2: convolution, recurrence and gated norm of several sequences in one step, against the recurrence token by
// token.
#include <algorithm>
#include <cmath>

#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/reference/mixers.h"

namespace lorad::gpu::testing::mamba_test {
namespace {

struct MambaCase {
    MambaShape shape;
    bool has_bias;
    float dt_min, dt_max;
    Type act;
};

// Tokens that one step computes of each sequence; a sequence may have none in it.
using Cut = std::vector<std::vector<uint32_t>>;  // [step][sequence]

class MambaKernels : public KernelTest, public ::testing::WithParamInterface<MambaCase> {
  protected:
    static constexpr uint32_t kSequences = 3;
    static constexpr uint32_t kLengths[kSequences] = {70, 9, 2};
    bool in_blocks_ = false;  // rows as in a recording of prompts

    void SetUp() override {
        KernelTest::SetUp();
        shape_ = GetParam().shape;
        const auto random = [&](size_t n, float magnitude = 1.0f) {
            return reference::random_values(n, Type::kF32, random_, magnitude);
        };
        conv_weights_ = random(size_t{shape_.channels()} * shape_.taps);
        conv_bias_ = random(shape_.channels());
        a_log_ = random(shape_.heads, 2.0f);
        dt_bias_ = random(shape_.heads, 4.0f);
        skip_ = random(shape_.heads, 2.0f);
        gamma_ = random(shape_.inner());
        for (const uint32_t length : kLengths) inputs_.push_back(random(size_t{length} * shape_.inputs(), 2.0f));
        conv_state_ = poisoned(uint64_t{2} * kSequences * shape_.conv_floats() * 4);
        state_ = poisoned(uint64_t{2} * kSequences * shape_.state_floats() * 4);
    }

    // Rows of all steps by sequence. Sequence i has slot i and, if it moves, behind the first half of the steps another
    // one.
    struct Results {
        std::vector<std::vector<float>> scanned, output;
    };

    // The rows of one step, and whose they are.
    struct Step {
        std::vector<StepRow> rows;
        std::vector<StateRun> runs;
        std::vector<float> m;
    };

    Results run(const Cut& cut, bool moves = false) {
        Results results{std::vector<std::vector<float>>(kSequences), std::vector<std::vector<float>>(kSequences)};
        std::vector<uint32_t> n_done(kSequences, 0), slots = {0, 1, 2};
        for (size_t number = 0; number < cut.size(); number++) {
            Step step;
            for (uint32_t s = 0; s < kSequences; s++) {
                const uint32_t n = cut[number][s];
                if (n == 0) continue;
                const uint32_t from = n_done[s] == 0 ? kNoState : slots[s];
                if (moves && (number + 1) * 2 > cut.size()) slots[s] = kSequences + s;
                step.runs.push_back({static_cast<uint32_t>(step.rows.size()), n, from, slots[s]});
                for (uint32_t i = 0; i < n; i++, n_done[s]++) {
                    StepRow row{};
                    row.position = n_done[s];
                    row.state_run = static_cast<uint32_t>(step.runs.size() - 1);
                    step.rows.push_back(row);
                    const float* from_row = &inputs_[s][size_t{n_done[s]} * shape_.inputs()];
                    step.m.insert(step.m.end(), from_row, from_row + shape_.inputs());
                    step.m.insert(step.m.end(), in_stride() - shape_.inputs(), NAN);
                }
            }
            compute(std::move(step), cut[number], results);
        }
        return results;
    }

    void compute(Step of, const std::vector<uint32_t>& n_of_sequence, Results& results) {
        const uint32_t c_stride = shape_.outputs() + 2, y_stride = padded(shape_.inner());
        const auto n_rows = static_cast<uint32_t>(of.rows.size()), bucket = n_rows + 2;
        of.rows.resize(bucket);
        Buffer step = step_state(of.rows, n_rows);
        StepHeader header{};
        header.n_rows = n_rows;
        header.n_state_runs = static_cast<uint32_t>(of.runs.size());
        std::memcpy(step.mapped().data(), &header, sizeof(header));
        of.runs.push_back({0, 0xffffffu, 0, 0});  // not one of them
        const Buffer weights = input(conv_weights_), bias = input(conv_bias_), a_log = input(a_log_),
                     dt_bias = input(dt_bias_), skip = input(skip_), gamma = input(gamma_);
        const Buffer runs = input(of.runs), m = input(of.m);
        const Buffer c = poisoned(uint64_t{bucket} * c_stride * 4),
                     scanned = poisoned(uint64_t{bucket} * shape_.inner() * 4),
                     y = poisoned(uint64_t{bucket} * y_stride * 4);
        execute([&](Recorder& recorder) {
            MixerKernels& mixers = kernels_->mixers;
            mixers.mamba_conv(recorder,
                              {.step = step.address(),
                               .runs = runs.address(),
                               .m = m.address(),
                               .weights = weights.address(),
                               .bias = GetParam().has_bias ? bias.address() : 0,
                               .a_log = a_log.address(),
                               .dt_bias = dt_bias.address(),
                               .state = conv_state_.address(),
                               .to = c.address(),
                               .m_stride = in_stride(),
                               .to_stride = c_stride,
                               .slot_stride = shape_.conv_floats(),
                               .dt_min = GetParam().dt_min,
                               .dt_max = GetParam().dt_max,
                               .pad = 0},
                              shape_, bucket);
            recorder.barrier();
            mixers.conv_state(recorder,
                              {.step = step.address(),
                               .runs = runs.address(),
                               .m = m.address() + shape_.inner() * 4,
                               .state = conv_state_.address(),
                               .m_stride = in_stride(),
                               .slot_stride = shape_.conv_floats(),
                               .channels = shape_.channels(),
                               .factor = 0},
                              shape_.taps, kSequences + 1);
            mixers.mamba_step(recorder,
                              {.step = step.address(),
                               .runs = runs.address(),
                               .c = c.address(),
                               .state = state_.address(),
                               .to = scanned.address(),
                               .c_stride = c_stride,
                               .slot_stride = shape_.state_floats(),
                               .to_stride = shape_.inner(),
                               .pad = 0},
                              shape_, kSequences + 1, in_blocks_ ? bucket : kSequences + 1);
            recorder.barrier();
            mixers.mamba_norm(recorder,
                              {.step = step.address(),
                               .x = scanned.address(),
                               .gate = m.address(),
                               .skip_x = c.address() + 2 * shape_.keys() * 4,
                               .skip = skip.address(),
                               .gamma = gamma.address(),
                               .slot_norms = 0,
                               .y = y.address(),
                               .x_stride = shape_.inner(),
                               .gate_stride = in_stride(),
                               .skip_stride = c_stride,
                               .y_stride = y_stride,
                               .eps = 1e-6f,
                               .pad = 0},
                              shape_, scalar(GetParam().act), bucket);
        });
        const auto got_scanned = content(scanned, size_t{bucket} * shape_.inner(), Type::kF32),
                   got = content(y, size_t{bucket} * y_stride, GetParam().act);
        for (size_t i = size_t{n_rows} * shape_.inner(); i < got_scanned.size(); i++)
            EXPECT_TRUE(is_poison(got_scanned[i])) << "a row beyond the last was written";
        for (size_t i = size_t{n_rows} * y_stride; i < got.size(); i++)
            EXPECT_TRUE(is_poison(got[i])) << "a row beyond the last was written";
        uint32_t row = 0;
        for (uint32_t s = 0; s < kSequences; s++) {
            for (uint32_t i = 0; i < n_of_sequence[s]; i++, row++) {
                const float* line = &got[size_t{row} * y_stride];
                results.output[s].insert(results.output[s].end(), line, line + shape_.inner());
                for (uint32_t d = shape_.inner(); d < y_stride; d++) EXPECT_EQ(line[d], 0.0f) << "padding";
                const float* o = &got_scanned[size_t{row} * shape_.inner()];
                results.scanned[s].insert(results.scanned[s].end(), o, o + shape_.inner());
            }
        }
    }

    void expect_reference(const Results& results) const {
        const reference::Mamba mamba{
            .heads = shape_.heads,
            .head_size = shape_.head_size,
            .groups = shape_.groups,
            .state_size = shape_.state_size,
            .taps = shape_.taps,
            .conv_weights = conv_weights_,
            .conv_bias = GetParam().has_bias ? std::span<const float>(conv_bias_) : std::span<const float>(),
            .a_log = a_log_,
            .dt_bias = dt_bias_,
            .skip = skip_,
            .gamma = gamma_,
            .dt_min = GetParam().dt_min,
            .dt_max = std::min(double{GetParam().dt_max}, 1e300)};
        for (uint32_t s = 0; s < kSequences; s++) {
            reference::MambaMemory memory(mamba);
            for (uint32_t t = 0; t < kLengths[s]; t++) {
                const reference::MambaToken want = reference::mamba_token(
                    mamba, reference::to_doubles({&inputs_[s][size_t{t} * shape_.inputs()], shape_.inputs()}), memory);
                const std::string where = "sequence " + std::to_string(s) + ", token " + std::to_string(t);
                // A state is a sum over all tokens before it, each term of some roundings of 2^-24, weighed by decays;
                // a result is a sum over the state's elements.
                double largest = 0, squares = 0;
                for (const auto& head : memory.state) {
                    for (const auto& line : head) {
                        double sum = 0;
                        for (const double h : line) sum += std::abs(h);
                        largest = std::max(largest, sum);
                    }
                }
                expect_near(want.scanned, &results.scanned[s][size_t{t} * shape_.inner()], 4e-6, std::max(largest, 1.0),
                            where + ", recurrence");
                for (const double v : want.scanned) squares += v * v;
                const double size = std::sqrt(squares / shape_.inner()) + 1e-3;
                expect_near(want.output, &results.output[s][size_t{t} * shape_.inner()],
                            unit_roundoff(GetParam().act) * 1.01 + 8e-6 * std::max(largest, 1.0) / std::min(size, 1.0),
                            4.0, where + ", output");
            }
        }
    }

    uint32_t in_stride() const { return shape_.inputs() + 3; }

    MambaShape shape_;
    std::vector<float> conv_weights_, conv_bias_, a_log_, dt_bias_, skip_, gamma_;
    std::vector<std::vector<float>> inputs_;
    Buffer conv_state_, state_;
};

const Cut kWhole = {{70, 9, 2}};
// Shorter than the convolution's memory, one row, borders anywhere, sequences that begin later and end earlier.
const Cut kPieces = {{1, 0, 0}, {1, 2, 0}, {1, 1, 1}, {30, 0, 1}, {31, 5, 0}, {6, 1, 0}};

TEST_P(MambaKernels, MatchTheRecurrenceTokenByToken) {
    const Results whole = run(kWhole);
    ASSERT_EQ(whole.output.front().size(), size_t{kLengths[0]} * shape_.inner());
    expect_reference(whole);
    in_blocks_ = true;
    for (const Cut& cut : {kWhole, kPieces}) expect_reference(run(cut));
}

TEST_P(MambaKernels, ARowsBitsDoNotDependOnHowItsSequenceIsCutNorOnItsSlot) {
    const Results whole = run(kWhole);
    for (const bool moves : {false, true}) {
        const Results pieces = run(kPieces, moves);
        EXPECT_EQ(pieces.scanned, whole.scanned);
        EXPECT_EQ(pieces.output, whole.output);
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, MambaKernels,
                         ::testing::Values(MambaCase{{8, 16, 1, 16, 4}, true, 0.0f, INFINITY, Type::kF32},
                                           MambaCase{{6, 10, 3, 20, 3}, false, 0.01f, 0.5f, Type::kF16},
                                           MambaCase{{2, 6, 1, 5, 2}, true, 0.0f, INFINITY, Type::kBf16},
                                           MambaCase{{3, 64, 1, 128, 4}, true, 0.0f, INFINITY, Type::kF32}));

}  // namespace
}  // namespace lorad::gpu::testing::mamba_test
