// The gated delta net: convolution, gates, recurrence and gated norm of several sequences in one step, against the
// recurrence token by token.
#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/reference/mixers.h"

namespace lorad::gpu::testing::delta_test {
namespace {

struct DeltaCase {
    DeltaShape shape;
    Type act;
};

// Tokens that one step computes of each sequence; a sequence may have none in it.
using Cut = std::vector<std::vector<uint32_t>>;  // [step][sequence]

class Delta : public KernelTest, public ::testing::WithParamInterface<DeltaCase> {
  protected:
    static constexpr uint32_t kSequences = 3;
    static constexpr uint32_t kLengths[kSequences] = {203, 65, 2};
    bool in_blocks_ = false;  // rows as in a recording of prompts

    void SetUp() override {
        KernelTest::SetUp();
        shape_ = GetParam().shape;
        conv_weights_ = reference::random_values(size_t{shape_.channels()} * shape_.taps, Type::kF32, random_);
        a_log_ = reference::random_values(shape_.value_heads, Type::kF32, random_, 2.0f);
        dt_bias_ = reference::random_values(shape_.value_heads, Type::kF32, random_, 4.0f);
        gamma_ = reference::random_values(shape_.value_size, Type::kF32, random_);
        for (const uint32_t length : kLengths)
            inputs_.push_back(reference::random_values(size_t{length} * shape_.inputs(), Type::kF32, random_, 2.0f));
        conv_state_ = poisoned(uint64_t{3} * kSequences * shape_.conv_floats() * 4);
        state_ = poisoned(uint64_t{3} * kSequences * shape_.state_floats() * 4);
    }

    // Rows of all steps by sequence: the recurrence's results and the layer's output. Sequence i has slot i and, if it
    // moves, behind the first half of the steps another one.
    struct Results {
        std::vector<std::vector<float>> attended, output;
    };
    // Saves are made once, by the step in which the sequence comes to that many tokens, in slots kSequences * (1 +
    // save) + i.
    Results run(const Cut& cut, bool moves = false) { return run_from({0, 0, 0}, {0, 1, 2}, cut, moves, Cut()); }
    // Sequences that have been computed to `n_done` tokens go on from these slots, which they leave as they are, in
    // their own.
    Results run_from(std::vector<uint32_t> n_done, std::vector<uint32_t> slots, const Cut& cut, bool moves,
                     const Cut& saves) {
        Results results{std::vector<std::vector<float>>(kSequences), std::vector<std::vector<float>>(kSequences)};
        const uint32_t in_stride = shape_.inputs() + 3,
                       c_stride = in_blocks_ ? round_up(shape_.outputs(), 4) + 4 : shape_.outputs() + 2,
                       y_stride = padded(shape_.values());
        const Buffer weights = input(conv_weights_), a_log = input(a_log_), dt_bias = input(dt_bias_),
                     gamma = input(gamma_);
        for (size_t step = 0; step < cut.size(); step++) {
            std::vector<StepRow> rows;
            std::vector<StateRun> runs;
            std::vector<float> m;
            for (uint32_t s = 0; s < kSequences; s++) {
                const uint32_t n = cut[step][s];
                if (n == 0) continue;
                const uint32_t from = n_done[s] == 0 ? kNoState : slots[s];
                slots[s] = moves && (step + 1) * 2 > cut.size() ? kSequences + s : s;
                runs.push_back({static_cast<uint32_t>(rows.size()), n, from, slots[s], {}});
                for (uint32_t save = 0; save < saves.size(); save++) {
                    const uint32_t at = saves[save][s];
                    if (at > n_done[s] && at <= n_done[s] + n)
                        runs.back().saves[save] = {at - n_done[s], kSequences * (1 + save) + s};
                }
                for (uint32_t i = 0; i < n; i++, n_done[s]++) {
                    StepRow row{};
                    row.position = n_done[s];
                    row.state_run = static_cast<uint32_t>(runs.size() - 1);
                    rows.push_back(row);
                    const float* from_row = &inputs_[s][size_t{n_done[s]} * shape_.inputs()];
                    m.insert(m.end(), from_row, from_row + shape_.inputs());
                    m.insert(m.end(), in_stride - shape_.inputs(), NAN);
                }
            }
            const auto n_rows = static_cast<uint32_t>(rows.size()), bucket = n_rows + 2;
            rows.resize(bucket);
            Buffer state = step_state(rows, n_rows);
            StepHeader header{};
            header.n_rows = n_rows;
            header.n_state_runs = static_cast<uint32_t>(runs.size());
            std::memcpy(state.mapped().data(), &header, sizeof(header));
            runs.push_back({0, 0xffffffu, 0, 0, {}});  // not one of them
            const Buffer runs_buffer = input(runs), m_buffer = input(m);
            const Buffer c = poisoned(uint64_t{bucket} * c_stride * 4),
                         attended = poisoned(uint64_t{bucket} * shape_.values() * 4),
                         y = poisoned(uint64_t{bucket} * y_stride * 4);
            execute([&](Recorder& recorder) {
                MixerKernels& mixers = kernels_->mixers;
                mixers.delta_conv(recorder,
                                  {.step = state.address(),
                                   .runs = runs_buffer.address(),
                                   .m = m_buffer.address(),
                                   .weights = weights.address(),
                                   .bias = 0,
                                   .a_log = a_log.address(),
                                   .dt_bias = dt_bias.address(),
                                   .state = conv_state_.address(),
                                   .to = c.address(),
                                   .m_stride = in_stride,
                                   .to_stride = c_stride,
                                   .slot_stride = shape_.conv_floats(),
                                   .dt_min = 0,
                                   .dt_max = 0,
                                   .pad = 0},
                                  shape_, bucket);
                recorder.barrier();
                mixers.conv_state(recorder,
                                  {.step = state.address(),
                                   .runs = runs_buffer.address(),
                                   .m = m_buffer.address(),
                                   .state = conv_state_.address(),
                                   .m_stride = in_stride,
                                   .slot_stride = shape_.conv_floats(),
                                   .channels = shape_.channels(),
                                   .factor = 0},
                                  shape_.taps, kSequences + 1);
                mixers.delta_step(recorder,
                                  {.step = state.address(),
                                   .runs = runs_buffer.address(),
                                   .c = c.address(),
                                   .state = state_.address(),
                                   .to = attended.address(),
                                   .c_stride = c_stride,
                                   .slot_stride = shape_.state_floats(),
                                   .to_stride = shape_.values(),
                                   .pad = 0},
                                  shape_, kSequences + 1, in_blocks_ ? bucket : kSequences + 1);
                recorder.barrier();
                mixers.gated_norm(recorder,
                                  {.step = state.address(),
                                   .x = attended.address(),
                                   .gate = m_buffer.address() + shape_.channels() * 4,
                                   .skip_x = 0,
                                   .skip = 0,
                                   .gamma = gamma.address(),
                                   .slot_norms = 0,
                                   .y = y.address(),
                                   .x_stride = shape_.values(),
                                   .gate_stride = in_stride,
                                   .skip_stride = 0,
                                   .y_stride = y_stride,
                                   .eps = 1e-6f,
                                   .pad = 0},
                                  shape_.value_heads, shape_.value_size, scalar(GetParam().act), bucket);
            });
            const auto got_attended = content(attended, size_t{bucket} * shape_.values(), Type::kF32),
                       got = content(y, size_t{bucket} * y_stride, GetParam().act);
            for (size_t i = size_t{n_rows} * shape_.values(); i < got_attended.size(); i++)
                EXPECT_TRUE(is_poison(got_attended[i])) << "a row beyond the last was written";
            for (size_t i = size_t{n_rows} * y_stride; i < got.size(); i++)
                EXPECT_TRUE(is_poison(got[i])) << "a row beyond the last was written";
            uint32_t row = 0;
            for (uint32_t s = 0; s < kSequences; s++) {
                for (uint32_t i = 0; i < cut[step][s]; i++, row++) {
                    const float* line = &got[size_t{row} * y_stride];
                    results.output[s].insert(results.output[s].end(), line, line + shape_.values());
                    for (uint32_t d = shape_.values(); d < y_stride; d++) EXPECT_EQ(line[d], 0.0f) << "padding";
                    const float* o = &got_attended[size_t{row} * shape_.values()];
                    results.attended[s].insert(results.attended[s].end(), o, o + shape_.values());
                }
            }
        }
        return results;
    }

    void expect_reference(const Results& results) const {
        const reference::DeltaNet net{
            shape_.key_heads, shape_.value_heads, shape_.key_size, shape_.value_size, shape_.taps, conv_weights_,
            a_log_,           dt_bias_,           gamma_};
        for (uint32_t s = 0; s < kSequences; s++) {
            reference::DeltaMemory memory(net);
            for (uint32_t t = 0; t < kLengths[s]; t++) {
                const reference::DeltaToken want = reference::delta_token(
                    net, reference::to_doubles({&inputs_[s][size_t{t} * shape_.inputs()], shape_.inputs()}), memory);
                const std::string where = "sequence " + std::to_string(s) + ", token " + std::to_string(t);
                // Keys have length 1, so the state's elements are about as large as values; errors of some 2^-23 for
                // each token fade as the state does.
                expect_near(want.attended, &results.attended[s][size_t{t} * shape_.values()], 4e-6, 4.0,
                            where + ", recurrence");
                // The norm makes small rows large, and their errors with them.
                double squares = 0;
                for (const double v : want.attended) squares += v * v;
                const double size = std::sqrt(squares / shape_.values()) + 1e-3;
                expect_near(want.output, &results.output[s][size_t{t} * shape_.values()],
                            unit_roundoff(GetParam().act) * 1.01 + 4e-6 * 4.0 / std::min(size, 1.0), 4.0,
                            where + ", output");
            }
        }
    }

    DeltaShape shape_;
    std::vector<float> conv_weights_, a_log_, dt_bias_, gamma_;
    std::vector<std::vector<float>> inputs_;
    Buffer conv_state_, state_;
};

const Cut kWhole = {{203, 65, 2}};
// Shorter than the convolution's memory, one row, borders anywhere, sequences that begin later and end earlier.
const Cut kPieces = {{1, 0, 0}, {1, 2, 0}, {1, 1, 1}, {30, 0, 1}, {164, 61, 0}, {6, 1, 0}};
const Cut kSaves = {{64, 4, 1}, {198, 8, 0}};

TEST_P(Delta, MatchesTheRecurrenceTokenByToken) {
    const Results whole = run(kWhole);
    ASSERT_EQ(whole.attended.front().size(), size_t{kLengths[0]} * shape_.values());
    expect_reference(whole);
    in_blocks_ = true;
    for (const Cut& cut : {kWhole, kPieces, Cut{{63, 64, 2}, {1, 1, 0}, {139, 0, 0}}}) expect_reference(run(cut));
}

TEST_P(Delta, SavedStatesAreOfTheirTokenAlsoWithinABlock) {
    in_blocks_ = true;
    for (const Cut& cut : {kWhole, kPieces}) {
        Results results = run_from({0, 0, 0}, {0, 1, 2}, cut, false, kSaves);
        expect_reference(results);
        for (uint32_t save = 0; save < kSaves.size(); save++) {
            std::vector<uint32_t> slots(kSequences), rest(kSequences);
            for (uint32_t s = 0; s < kSequences; s++) {
                slots[s] = kSequences * (1 + save) + s;
                rest[s] = kSaves[save][s] == 0 ? 0 : kLengths[s] - kSaves[save][s];
            }
            const Results got = run_from(kSaves[save], slots, {rest}, false, Cut());
            for (uint32_t s = 0; s < kSequences; s++) {
                std::ranges::copy(got.attended[s],
                                  results.attended[s].end() - static_cast<ptrdiff_t>(got.attended[s].size()));
                std::ranges::copy(got.output[s],
                                  results.output[s].end() - static_cast<ptrdiff_t>(got.output[s].size()));
            }
            expect_reference(results);
        }
    }
}

TEST_P(Delta, ARowsBitsDoNotDependOnHowItsSequenceIsCutNorOnItsSlot) {
    const Results whole = run(kWhole);
    for (const bool moves : {false, true}) {
        const Results pieces = run(kPieces, moves);
        EXPECT_EQ(pieces.attended, whole.attended);
        EXPECT_EQ(pieces.output, whole.output);
    }
}

TEST_P(Delta, SavedStatesGoOnAsTheSequenceDid) {
    const Cut& saves = kSaves;
    const Results whole = run(kWhole);
    for (const Cut& cut : {kWhole, kPieces}) {
        EXPECT_EQ(run_from({0, 0, 0}, {0, 1, 2}, cut, false, saves).attended, whole.attended);
        for (uint32_t save = 0; save < saves.size(); save++) {
            std::vector<uint32_t> slots(kSequences), rest(kSequences);
            for (uint32_t s = 0; s < kSequences; s++) {
                slots[s] = kSequences * (1 + save) + s;
                rest[s] = saves[save][s] == 0 ? 0 : kLengths[s] - saves[save][s];
            }
            for (uint32_t again = 0; again < 2; again++) {  // whoever goes on from a saved state leaves it as it is
                const Results got = run_from(saves[save], slots, {rest}, false, Cut());
                for (uint32_t s = 0; s < kSequences; s++) {
                    const size_t n = size_t{rest[s]} * shape_.values();
                    EXPECT_TRUE(std::equal(got.attended[s].begin(), got.attended[s].end(),
                                           whole.attended[s].end() - static_cast<ptrdiff_t>(n),
                                           whole.attended[s].end()))
                        << s;
                }
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Delta,
                         ::testing::Values(DeltaCase{{2, 2, 16, 16, 4}, Type::kF32},
                                           DeltaCase{{1, 3, 12, 20, 4}, Type::kF16},
                                           DeltaCase{{2, 4, 32, 40, 3}, Type::kBf16},
                                           DeltaCase{{1, 2, 128, 128, 4}, Type::kF32}));

// Strong and weak decays over many tokens: the state neither grows nor loses what it should keep.
TEST(DeltaNumbers, SoftplusAndDecayKeepTheirDigitsAtBothEnds) {
    // Through delta_conv itself: one head, inputs of the decay from -30 to 30.
    Buffer step = step_state(std::vector<StepRow>(61), 61);
    const DeltaShape shape{1, 1, 4, 4, 2};
    std::vector<float> m(size_t{61} * shape.inputs(), 0.5f);
    for (uint32_t t = 0; t < 61; t++)
        m[size_t{t} * shape.inputs() + shape.inputs() - 1] = static_cast<float>(t) - 30.0f;
    const Buffer m_buffer = input(m), runs = input(std::vector<StateRun>{{0, 61, kNoState, 0, {}}}),
                 weights = input(std::vector<float>(shape.channels() * 2, 1.0f));
    const Buffer zero = input(std::vector<float>(4, 0.0f)), to = poisoned(uint64_t{61} * shape.outputs() * 4);
    const auto kernels = must(KernelSet::create(shared_device(), {.path = KernelPath::kPortable}));
    auto recorder = must(Recorder::begin(shared_device()));
    kernels->mixers.delta_conv(recorder,
                               {.step = step.address(),
                                .runs = runs.address(),
                                .m = m_buffer.address(),
                                .weights = weights.address(),
                                .bias = 0,
                                .a_log = zero.address(),
                                .dt_bias = zero.address(),
                                .state = zero.address(),
                                .to = to.address(),
                                .m_stride = shape.inputs(),
                                .to_stride = shape.outputs(),
                                .slot_stride = 12,
                                .dt_min = 0,
                                .dt_max = 0,
                                .pad = 0},
                               shape, 61);
    run(must(std::move(recorder).end()));
    const auto got = content(to, size_t{61} * shape.outputs(), Type::kF32);
    for (uint32_t t = 0; t < 61; t++) {
        const double x = static_cast<double>(t) - 30.0, want = -(std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))));
        // exp() of a device may be off by (3 + 2 |x|) units in the last place.
        EXPECT_NEAR(got[size_t{t} * shape.outputs() + shape.channels()], want, std::abs(want) * 4e-6) << x;
    }
}

struct ConvCase {
    uint32_t channels, taps;
    bool has_bias;
    Type act;
};
class ShortConv : public KernelTest, public ::testing::WithParamInterface<ConvCase> {};

TEST_P(ShortConv, MatchesTheReferenceHoweverTheSequenceIsCut) {
    const auto [channels, taps, has_bias, act] = GetParam();
    constexpr uint32_t kTokens = 17;
    const uint32_t stride = 3 * channels + 1, y_stride = padded(channels), slot_stride = (taps - 1) * channels;
    const auto in = reference::random_values(size_t{kTokens} * 3 * channels, Type::kF32, random_, 2.0f);
    const auto weights = reference::random_values(size_t{channels} * taps, Type::kF32, random_),
               bias = reference::random_values(channels, Type::kF32, random_);
    const Buffer weight_buffer = input(weights), bias_buffer = input(bias),
                 memory = poisoned(uint64_t{3} * slot_stride * 4);
    std::vector<std::vector<float>> outputs;
    // The last takes up what the others have saved.
    const std::vector<std::vector<uint32_t>> cuts = {{17}, {1, 1, 1, 2, 12}, {5, 12}, {7, 10}};
    for (const std::vector<uint32_t>& cut : cuts) {
        const bool is_resumed = &cut == &cuts.back();
        std::vector<float> all;
        uint32_t done = 0;
        constexpr uint32_t kSaved = 7;  // tokens, in slot 2
        for (const uint32_t n : cut) {
            std::vector<float> m;
            for (uint32_t i = 0; i < n; i++) {
                m.insert(m.end(), &in[size_t{done + i} * 3 * channels],
                         &in[size_t{done + i} * 3 * channels] + 3 * channels);
                m.push_back(NAN);
            }
            const Buffer step = step_state(std::vector<StepRow>(n + 1), n), m_buffer = input(m),
                         y = poisoned(uint64_t{n + 1} * y_stride * 4);
            StateRun run{0, n, done == 0 ? kNoState : 1, 1, {}};
            if (kSaved > done && kSaved <= done + n) run.saves[1] = {kSaved - done, 2};
            if (is_resumed && done == kSaved) run.from = 2;
            const Buffer runs = input(std::vector<StateRun>{run});
            StepHeader header{};
            header.n_rows = n;
            header.n_state_runs = 1;
            std::memcpy(step.mapped().data(), &header, sizeof(header));
            execute([&](Recorder& recorder) {
                kernels_->mixers.short_conv(recorder,
                                            {.step = step.address(),
                                             .runs = runs.address(),
                                             .m = m_buffer.address(),
                                             .weights = weight_buffer.address(),
                                             .bias = has_bias ? bias_buffer.address() : 0,
                                             .state = memory.address(),
                                             .y = y.address(),
                                             .m_stride = stride,
                                             .slot_stride = slot_stride,
                                             .channels = channels,
                                             .y_stride = y_stride},
                                            taps, scalar(act), n + 1);
                recorder.barrier();
                kernels_->mixers.conv_state(recorder,
                                            {.step = step.address(),
                                             .runs = runs.address(),
                                             .m = m_buffer.address(),
                                             .state = memory.address(),
                                             .m_stride = stride,
                                             .slot_stride = slot_stride,
                                             .channels = channels,
                                             .factor = 2 * channels},
                                            taps, 1);
            });
            const auto got = content(y, size_t{n} * y_stride, act);
            for (uint32_t t = 0; t < n; t++) {
                all.insert(all.end(), &got[size_t{t} * y_stride], &got[size_t{t} * y_stride] + channels);
                for (uint32_t d = channels; d < y_stride; d++) EXPECT_EQ(got[size_t{t} * y_stride + d], 0.0f);
            }
            done += n;
        }
        outputs.push_back(all);
    }
    for (size_t i = 1; i < outputs.size(); i++) EXPECT_EQ(outputs[i], outputs[0]);
    reference::ConvMemory past;
    for (uint32_t t = 0; t < kTokens; t++) {
        const float* row = &in[size_t{t} * 3 * channels];
        Vector product(channels);
        for (uint32_t c = 0; c < channels; c++) product[c] = static_cast<double>(row[c]) * row[2 * channels + c];
        Vector want = reference::causal_conv(product, weights, taps, past);
        for (uint32_t c = 0; c < channels; c++) want[c] = (want[c] + (has_bias ? bias[c] : 0.0f)) * row[channels + c];
        expect_near(want, &outputs[0][size_t{t} * channels], unit_roundoff(act) + 1e-6, 8.0 * taps,
                    "token " + std::to_string(t));
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ShortConv,
                         ::testing::Values(ConvCase{48, 3, false, Type::kF32}, ConvCase{70, 4, true, Type::kF16},
                                           ConvCase{130, 2, true, Type::kBf16}));

TEST_F(KernelTest, GateRowsMultipliesEachHeadWithItsOwnGate) {
    constexpr uint32_t kHeads = 3, kSize = 20, kRows = 3, kStride = 64, kGateStride = kHeads * 2 * kSize + 5;
    for (const Type act : reference::kTypes) {
        const auto y = reference::random_values(size_t{kRows + 1} * kHeads * kSize, act, random_);
        const auto gate = reference::random_values(size_t{kRows + 1} * kGateStride, Type::kF32, random_, 5.0f);
        const Buffer y_buffer = input(reference::encode(y, kHeads * kSize, kStride, act)), gate_buffer = input(gate),
                     step = step_state(std::vector<StepRow>(kRows + 1), kRows);
        execute([&](Recorder& recorder) {
            kernels_->mixers.gate_rows(recorder,
                                       {.step = step.address(),
                                        .gate = gate_buffer.address() + kSize * 4,
                                        .y = y_buffer.address(),
                                        .gate_stride = kGateStride,
                                        .gate_head = 2 * kSize,
                                        .y_stride = kStride,
                                        .width = kHeads * kSize},
                                       kSize, scalar(act), kRows + 1);
        });
        const auto got = content(y_buffer, size_t{kRows + 1} * kStride, act);
        for (uint32_t t = 0; t <= kRows; t++) {
            Vector want;
            for (uint32_t i = 0; i < kHeads * kSize; i++) {
                const double g = gate[size_t{t} * kGateStride + i / kSize * 2 * kSize + kSize + i % kSize];
                want.push_back(y[size_t{t} * kHeads * kSize + i] * (t < kRows ? reference::sigmoid(g) : 1.0));
            }
            expect_near(want, &got[size_t{t} * kStride], t < kRows ? unit_roundoff(act) + 1e-6 : 0.0, 1.0,
                        "row " + std::to_string(t));
        }
    }
}

// The layout alone: each query head's rows are followed by those of its gate.
TEST_F(KernelTest, QkvPostOfGatedHeadsIsThatOfTheQueriesAlone) {
    constexpr uint32_t kHeads = 3, kKvHeads = 1, kSize = 32, kRotary = 8, kRows = 3;
    constexpr uint32_t kPlain = (kHeads + 2 * kKvHeads) * kSize, kGated = kPlain + kHeads * kSize,
                       kCacheBytes = 2 * kKvHeads * kBlockTokens * kSize * 2;
    const auto gated = reference::random_values(size_t{kRows} * kGated, Type::kF32, random_);
    std::vector<float> plain;
    for (uint32_t t = 0; t < kRows; t++) {
        const float* row = &gated[size_t{t} * kGated];
        for (uint32_t h = 0; h < kHeads; h++) plain.insert(plain.end(), row + 2 * h * kSize, row + (2 * h + 1) * kSize);
        plain.insert(plain.end(), row + 2 * kHeads * kSize, row + kGated);
    }
    const auto gamma = reference::random_values(kSize, Type::kF32, random_),
               turns = reference::random_values(size_t{kRows} * kRotary, Type::kF32, random_);
    std::vector<StepRow> rows(kRows);
    for (uint32_t t = 0; t < kRows; t++) rows[t].position = rows[t].kv_slot = t;
    const Buffer step = step_state(rows, kRows), gamma_buffer = input(gamma), rope = input(turns);
    std::vector<float> queries[2];
    std::vector<uint16_t> caches[2];
    for (const bool is_gated : {false, true}) {
        const Buffer y = input(reference::encode(is_gated ? gated : plain, is_gated ? kGated : kPlain, padded(kGated),
                                                 Type::kF32)),
                     q = poisoned(uint64_t{kRows} * 128 * 4), kv = poisoned(kCacheBytes);
        QkvPostParams params{};
        params.step = step.address();
        params.y = y.address();
        params.rope = rope.address();
        params.q_gamma = params.k_gamma = gamma_buffer.address();
        params.q = q.address();
        params.kv = kv.address();
        params.y_stride = padded(kGated);
        params.q_stride = 128;
        params.eps = 1e-6f;
        execute([&](Recorder& recorder) {
            kernels_->attention.qkv_post(recorder, params,
                                         {.base = {.rows = kRows},
                                          .n_q_heads = kHeads,
                                          .n_kv_heads = kKvHeads,
                                          .head_dim = kSize,
                                          .rotary_dim = kRotary,
                                          .output_gate = is_gated});
        });
        for (uint32_t t = 0; t < kRows; t++) {
            const auto row = content<float>(q, size_t{kRows} * 128);
            queries[is_gated].insert(queries[is_gated].end(), row.begin() + t * 128,
                                     row.begin() + t * 128 + kHeads * kSize);
        }
        caches[is_gated] = content<uint16_t>(kv, kCacheBytes / 2);
    }
    EXPECT_EQ(queries[1], queries[0]);
    EXPECT_FALSE(is_poison(queries[0].back()));
    EXPECT_EQ(caches[1], caches[0]);
}

}  // namespace
}  // namespace lorad::gpu::testing::delta_test
