// Parts of layers that are more than Llama's: norms of what is added, norms over all heads, pairs, values that are
// keys, embeddings per layer, capped logits.
#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing::family_parts_test {
namespace {

class FamilyParts : public KernelTest {
  protected:
    std::vector<float> random_floats(size_t n, float magnitude = 1.0f) {
        return reference::random_values(n, Type::kF32, random_, magnitude);
    }
};

struct ClosingCase {
    uint32_t hidden, n_rows, bucket, n_splits;
    bool after, norm, raw, own_after;
    float multiplier, stream_scale;
};

// x = (x + multiplier * norm(sums)) * scale, then the next norm, or x as it is. Slot 1 has weights of its own for the
// norm of the sums.
TEST_F(FamilyParts, AddNormNormsAndScalesWhatItAdds) {
    for (const ClosingCase& c : {ClosingCase{96, 3, 4, 1, true, true, false, false, 1.0f, 1.0f},
                                 ClosingCase{250, 5, 8, 3, true, true, false, true, 0.5f, 1.25f},
                                 ClosingCase{112, 2, 2, 2, false, true, false, false, 0.25f, 1.0f},
                                 ClosingCase{2050, 2, 3, 1, true, false, true, false, 1.0f, 0.75f},
                                 ClosingCase{64, 4, 4, 1, false, false, true, false, 1.0f, 1.0f},
                                 ClosingCase{192, 3, 4, 2, true, false, false, true, 1.0f, 2.0f}}) {
        SCOPED_TRACE(::testing::Message() << "hidden " << c.hidden << ", splits " << c.n_splits);
        constexpr uint32_t kSlots = 2;
        const uint32_t stride = padded(c.hidden), capacity = c.bucket + kSlackRows;
        const std::vector<float> y = random_floats(size_t{c.n_splits} * capacity * c.hidden),
                                 x = random_floats(size_t{capacity} * c.hidden), gamma = random_floats(c.hidden),
                                 after = random_floats(c.hidden), own = random_floats(c.hidden);
        std::vector<StepRow> rows(c.bucket);
        for (uint32_t t = 0; t < c.bucket; t++) rows[t].extras_slot = t % 2 == 0 ? kNoSlot : 1;
        const Buffer step = step_state(rows, c.n_rows),
                     y_buffer = input(reference::encode(y, c.hidden, stride, Type::kF32)), own_buffer = input(own);
        const Buffer gamma_buffer = input(reference::encode(gamma, c.hidden, stride, Type::kF32)),
                     after_buffer = input(reference::encode(after, c.hidden, stride, Type::kF32));
        // Addresses [norm behind, next norm][slot].
        const Buffer addresses = input(std::vector<uint64_t>{0, own_buffer.address(), 0, 0});
        const auto x_bytes = reference::encode(x, c.hidden, stride, Type::kF32);
        Buffer x_buffer = poisoned(x_bytes.size());
        std::memcpy(x_buffer.mapped().data(), x_bytes.data(), x_bytes.size());
        const Buffer xn = poisoned(uint64_t{capacity} * stride * 4);
        AddNormParams params{};
        params.step = step.address();
        params.y = y_buffer.address();
        params.x = x_buffer.address();
        params.gamma = c.norm ? gamma_buffer.address() : 0;
        params.slot_norms = c.own_after ? addresses.address() + kSlots * 8 : 0;
        params.xn = xn.address();
        params.hidden = c.hidden;
        params.y_stride = params.x_stride = params.xn_stride = stride;
        params.split_stride = capacity * stride;
        params.eps = 1e-5f;
        params.after_gamma = c.after ? after_buffer.address() : 0;
        const Closing closing{.multiplier = c.multiplier,
                              .stream_scale = c.stream_scale,
                              .n_after_slots = c.own_after ? kSlots : 0,
                              .raw = c.raw};
        execute([&](Recorder& recorder) {
            kernels_->rows.add_norm(recorder, params, {.rows = c.bucket, .n_splits = c.n_splits}, ScalarType::kF32,
                                    kFragmentsByColumns, closing);
        });
        const auto got_x = content<float>(x_buffer, size_t{capacity} * stride),
                   got_xn = content<float>(xn, size_t{capacity} * stride);
        for (uint32_t t = 0; t < c.n_rows; t++) {
            Vector sum(c.hidden), want(c.hidden);
            for (uint32_t s = 0; s < c.n_splits; s++) {
                for (uint32_t i = 0; i < c.hidden; i++) sum[i] += y[(size_t{s} * capacity + t) * c.hidden + i];
            }
            if (c.after) sum = reference::rms_norm(sum, c.own_after && t % 2 == 1 ? own : after, 1e-5);
            for (uint32_t i = 0; i < c.hidden; i++)
                want[i] = (x[size_t{t} * c.hidden + i] + c.multiplier * sum[i]) * c.stream_scale;
            const std::string what = "row " + std::to_string(t);
            expect_near(want, &got_x[size_t{t} * stride], 4e-6, 8.0, what);
            const float* row = &got_xn[size_t{t} * stride];
            if (!c.norm && !c.raw) {
                ASSERT_TRUE(is_poison(row[0])) << what << " was written";
                continue;
            }
            expect_near(c.raw ? want : reference::rms_norm(want, gamma, 1e-5), row, 8e-6, 8.0,
                        "input of the next product, " + what);
            for (uint32_t i = c.hidden; i < stride; i++) ASSERT_EQ(row[i], 0.0f) << "padding of " << what;
        }
        for (size_t i = size_t{c.n_rows} * stride; i < got_xn.size(); i++) ASSERT_TRUE(is_poison(got_xn[i]));
    }
}

// Three modules of different widths; the first two have norms over all their columns, slot 1 has its own for the
// second.
TEST_F(FamilyParts, FinishSumsAddsAllPartsAndNormsWholeModules) {
    constexpr uint32_t kWidths[3] = {192, 48, 36}, kSlots = 2, kRows = 5, kBucket = 6;
    const uint32_t width = kWidths[0] + kWidths[1] + kWidths[2], stride = padded(width),
                   capacity = kBucket + kSlackRows;
    for (const uint32_t n_splits : {1u, 3u}) {
        for (const bool with_lora : {false, true}) {
            std::vector<LoraModule> table(kSlots * kLoraModules);
            std::vector<TestModule> modules;
            const size_t ranks[kSlots][3] = {{8, 3, 0}, {0, 16, 5}};
            for (uint32_t s = 0; s < kSlots; s++) {
                for (uint32_t m = 0; m < 3; m++) {
                    modules.push_back(TestModule::make(kWidths[m], 8, ranks[s][m], reference::kTypes[s], 0.3, random_));
                    table[s * kLoraModules + m] = modules.back().entry();
                }
            }
            std::vector<StepRow> rows(kBucket);
            for (uint32_t t = 0; t < kBucket; t++) {
                rows[t].adapter_slot = t % 3 == 2 ? kNoSlot : t % 3;
                rows[t].extras_slot = t % 2 == 0 ? kNoSlot : 1;
            }
            const std::vector<float> y = random_floats(size_t{n_splits} * capacity * width),
                                     bias = random_floats(width), low = random_floats(size_t{kBucket} * 3 * kMaxRank),
                                     gammas[2] = {random_floats(kWidths[0]), random_floats(kWidths[1])},
                                     own = random_floats(kWidths[1]);
            const Buffer step = step_state(rows, kRows), table_buffer = input(table),
                         bias_buffer = input(reference::encode(bias, width, stride, Type::kF32)),
                         low_buffer = input(low);
            const Buffer gamma_buffers[2] = {input(gammas[0]), input(gammas[1])}, own_buffer = input(own);
            const Buffer addresses = input(std::vector<uint64_t>{0, 0, 0, own_buffer.address()});
            const auto y_bytes = reference::encode(y, width, stride, Type::kF32);
            Buffer y_buffer = poisoned(y_bytes.size());
            std::memcpy(y_buffer.mapped().data(), y_bytes.data(), y_bytes.size());
            FinishSumsParams params{};
            params.step = step.address();
            params.y = y_buffer.address();
            params.bias = bias_buffer.address();
            params.low = low_buffer.address();
            params.lora_layer = table_buffer.address();
            params.gamma[0] = gamma_buffers[0].address();
            params.gamma[1] = gamma_buffers[1].address();
            params.slot_norms = addresses.address();
            params.lora_slot_stride = kLoraModules;
            params.n_modules = 3;
            params.y_stride = stride;
            params.split_stride = capacity * stride;
            params.n_slots = kSlots;
            params.eps = 1e-6f;
            params.module_end[0] = kWidths[0];
            params.module_end[1] = kWidths[0] + kWidths[1];
            params.module_end[2] = width;
            execute([&](Recorder& recorder) {
                kernels_->rows.finish_sums(recorder, params,
                                           {.rows = kBucket, .n_splits = n_splits, .lora = level(with_lora)});
            });
            const auto got = content<float>(y_buffer, size_t{capacity} * stride);
            for (uint32_t t = 0; t < capacity; t++) {
                for (uint32_t m = 0, begin = 0; m < 3; begin += kWidths[m++]) {
                    Vector want(kWidths[m]);
                    for (uint32_t i = 0; i < kWidths[m]; i++) {
                        for (uint32_t s = 0; s < (t < kRows ? n_splits : 1); s++)
                            want[i] += y[(size_t{s} * capacity + t) * width + begin + i];
                        if (t < kRows) want[i] += bias[begin + i];
                    }
                    if (t < kRows && with_lora && rows[t].adapter_slot != kNoSlot) {
                        add_expand(want, modules[rows[t].adapter_slot * 3 + m].pair,
                                   reference::to_doubles({&low[(t * 3 + m) * kMaxRank], kMaxRank}));
                    }
                    if (t < kRows && m < 2)
                        want = reference::rms_norm(want, m == 1 && t % 2 == 1 ? own : gammas[m], 1e-6);
                    expect_near(want, &got[size_t{t} * stride + begin], 8e-6, 16.0,
                                "row " + std::to_string(t) + ", module " + std::to_string(m));
                }
            }
        }
    }
}

// Two query heads and one key head; values are the key head's sums, normed without weights. Rope rotates 4 pairs of
// elements that lie half a head apart.
TEST_F(FamilyParts, QkvPostTurnsPairsHalfAHeadApartAndTakesValuesFromKeys) {
    constexpr uint32_t kHeads = 2, kDim = 32, kRotary = 8, kRows = 3, kOriginal = 4;
    constexpr float kBeta = 0.1f;
    const uint32_t width = (kHeads + 1) * kDim, stride = padded(width), q_width = kHeads * kDim;
    const std::vector<float> y = random_floats(size_t{kRows + kSlackRows} * width), q_gamma = random_floats(kDim),
                             k_gamma = random_floats(kDim);
    std::vector<float> turns;
    for (uint32_t i = 0; i < 20 * kRotary / 2; i++)
        turns.insert(turns.end(), {std::cos(0.3f * static_cast<float>(i)), std::sin(0.3f * static_cast<float>(i))});
    std::vector<StepRow> rows(kRows);
    for (uint32_t t = 0; t < kRows; t++) {
        rows[t].position = 2 + 7 * t;
        rows[t].kv_slot = 5 + t;
        rows[t].adapter_slot = rows[t].extras_slot = kNoSlot;
    }
    const Buffer step = step_state(rows, kRows), y_buffer = input(reference::encode(y, width, stride, Type::kF32)),
                 rope = input(turns), q_gammas = input(q_gamma), k_gammas = input(k_gamma);
    const Buffer q = poisoned(uint64_t{kRows} * q_width * 4), kv = poisoned(uint64_t{2} * kBlockTokens * kDim * 2);
    QkvPostParams params{};
    params.step = step.address();
    params.y = y_buffer.address();
    params.rope = rope.address();
    params.q_gamma = q_gammas.address();
    params.k_gamma = k_gammas.address();
    params.q = q.address();
    params.kv = kv.address();
    params.y_stride = stride;
    params.q_stride = q_width;
    params.eps = 1e-6f;
    QkvShape shape{
        .base = {.rows = kRows}, .n_q_heads = kHeads, .n_kv_heads = 1, .head_dim = kDim, .rotary_dim = kRotary};
    shape.pair_stride = kDim / 2;
    shape.v_norm = shape.k_is_v = true;
    shape.position_beta = kBeta;
    shape.position_original = kOriginal;
    execute([&](Recorder& recorder) { kernels_->attention.qkv_post(recorder, params, shape); });
    const auto got_q = content<float>(q, size_t{kRows} * q_width),
               got_kv = content(kv, size_t{2} * kBlockTokens * kDim, Type::kF16);
    for (uint32_t t = 0; t < kRows; t++) {
        const auto head_of = [&](uint32_t head, const std::vector<float>& gamma, bool is_turned) {
            Vector values =
                reference::rms_norm(reference::to_doubles({&y[size_t{t} * width + head * kDim], kDim}), gamma, 1e-6);
            for (uint32_t i = 0; is_turned && i < kRotary / 2; i++) {
                const double cos = turns[(rows[t].position * kRotary / 2 + i) * 2],
                             sin = turns[(rows[t].position * kRotary / 2 + i) * 2 + 1], a = values[i],
                             b = values[i + kDim / 2];
                values[i] = a * cos - b * sin;
                values[i + kDim / 2] = b * cos + a * sin;
            }
            return values;
        };
        for (uint32_t head = 0; head < kHeads; head++) {
            Vector want = head_of(head, q_gamma, true);
            for (double& value : want)
                value *= 1.0 + kBeta * std::log(1.0 + std::floor(static_cast<double>(rows[t].position) / kOriginal));
            expect_near(want, &got_q[t * q_width + head * kDim], 4e-6, 8.0, "query of row " + std::to_string(t));
        }
        expect_near(head_of(kHeads, k_gamma, true), &got_kv[size_t{rows[t].kv_slot} * kDim],
                    unit_roundoff(Type::kF16) + 4e-6, 8.0, "key of row " + std::to_string(t));
        expect_near(head_of(kHeads, std::vector<float>(kDim, 1.0f), false),
                    &got_kv[(kBlockTokens + size_t{rows[t].kv_slot}) * kDim], unit_roundoff(Type::kF16) + 4e-6, 8.0,
                    "value of row " + std::to_string(t));
    }
}

TEST_F(FamilyParts, EmbeddingsPerLayerAreProjectedNormedAndAdded) {
    constexpr uint32_t kN = 12, kLayers = 3, kVocab = 7, kRows = 3, kBucket = 4;
    const uint32_t width = kN * kLayers, stride = padded(width);
    const std::vector<float> y = random_floats(size_t{kBucket} * width), gamma = random_floats(kN);
    // of the step before, number 1; and one that is not there
    const int32_t tokens[kBucket] = {5, ~1, 40, 0}, meant[kRows] = {5, 3, 0};
    std::vector<StepRow> rows(kBucket);
    for (uint32_t t = 0; t < kBucket; t++) rows[t].token = tokens[t];
    for (const Type type : {Type::kF32, Type::kBf16}) {
        const std::vector<float> table = reference::random_values(size_t{kVocab} * width, type, random_);
        const Buffer step = step_state(rows, kRows), y_buffer = input(reference::encode(y, width, stride, Type::kF32)),
                     gammas = input(gamma), table_buffer = input(reference::encode(table, width, stride, type)),
                     sampled = input(std::vector<int32_t>{6, 3, 2});
        const Buffer ple = poisoned(uint64_t{kBucket} * stride * 4);
        constexpr float kScale = 0.125f;
        const PleRowsParams params{.step = step.address(),
                                   .y = y_buffer.address(),
                                   .gamma = gammas.address(),
                                   .table = table_buffer.address(),
                                   .sampled = sampled.address(),
                                   .ple = ple.address(),
                                   .n = kN,
                                   .y_stride = stride,
                                   .table_stride = stride,
                                   .ple_stride = stride,
                                   .vocab = kVocab,
                                   .y_scale = kScale,
                                   .eps = 1e-6f,
                                   .pad = 0};
        execute([&](Recorder& recorder) { kernels_->rows.ple_rows(recorder, params, scalar(type), kLayers, kBucket); });
        const auto got = content<float>(ple, size_t{kBucket} * stride);
        for (uint32_t t = 0; t < kRows; t++) {
            for (uint32_t layer = 0; layer < kLayers; layer++) {
                Vector projected = reference::to_doubles({&y[size_t{t} * width + layer * kN], kN});
                for (double& value : projected) value *= kScale;
                projected = reference::rms_norm(projected, gamma, 1e-6);
                for (uint32_t i = 0; i < kN; i++)
                    projected[i] = (projected[i] + std::sqrt(double{kN}) *
                                                       table[static_cast<size_t>(meant[t]) * width + layer * kN + i]) /
                                   std::sqrt(2.0);
                expect_near(projected, &got[size_t{t} * stride + layer * kN], 4e-6, 8.0,
                            "row " + std::to_string(t) + ", layer " + std::to_string(layer));
            }
        }
        ASSERT_TRUE(is_poison(got[size_t{kRows} * stride])) << "a row behind the last was written";
    }
}

TEST_F(FamilyParts, TheGateLetsItsLayersNumbersThrough) {
    constexpr uint32_t kN = 20, kRows = 3, kBucket = 4, kPleStride = 64;
    const uint32_t y_stride = padded(kN), act_stride = padded(kN), capacity = kBucket + kSlackRows;
    for (const uint32_t n_splits : {1u, 2u}) {
        const std::vector<float> y = random_floats(size_t{n_splits} * capacity * kN, 2.0f),
                                 ple = random_floats(size_t{kBucket} * kPleStride);
        const Buffer step = step_state(std::vector<StepRow>(kBucket), kRows),
                     y_buffer = input(reference::encode(y, kN, y_stride, Type::kF32)), ple_buffer = input(ple);
        const Buffer act = poisoned(uint64_t{kBucket} * act_stride * 4);
        const PleGateParams params{.step = step.address(),
                                   .y = y_buffer.address(),
                                   .ple = ple_buffer.address(),
                                   .act = act.address(),
                                   .n = kN,
                                   .y_stride = y_stride,
                                   .split_stride = capacity * y_stride,
                                   .ple_stride = kPleStride,
                                   .act_stride = act_stride,
                                   .pad = 0};
        execute([&](Recorder& recorder) {
            kernels_->rows.ple_gate(recorder, params, {.rows = kBucket, .n_splits = n_splits}, ScalarType::kF32);
        });
        const auto got = content<float>(act, size_t{kBucket} * act_stride);
        for (uint32_t t = 0; t < kRows; t++) {
            Vector want(act_stride);
            for (uint32_t i = 0; i < kN; i++) {
                double sum = 0;
                for (uint32_t s = 0; s < n_splits; s++) sum += y[(size_t{s} * capacity + t) * kN + i];
                want[i] = reference::gelu_tanh(sum) * ple[t * kPleStride + i];
            }
            expect_near(want, &got[size_t{t} * act_stride], 4e-6, 16.0, "row " + std::to_string(t));
        }
        ASSERT_TRUE(is_poison(got[size_t{kRows} * act_stride]));
    }
}

TEST_F(FamilyParts, NormPairAddsTheNormsOfBoth) {
    for (const uint32_t hidden : {48u, 75u, 1030u}) {
        constexpr uint32_t kRows = 3, kBucket = 5;
        const uint32_t b_stride = padded(hidden), a_stride = hidden + 1;
        const std::vector<float> a = random_floats(size_t{kBucket} * hidden),
                                 b = random_floats(size_t{kBucket} * hidden, 30.0f), a_gamma = random_floats(hidden),
                                 b_gamma = random_floats(hidden);
        const Buffer step = step_state(std::vector<StepRow>(kBucket), kRows),
                     a_buffer = input(reference::encode(a, hidden, a_stride, Type::kF32)), a_weights = input(a_gamma),
                     b_weights = input(b_gamma);
        const auto b_bytes = reference::encode(b, hidden, b_stride, Type::kF32);
        Buffer b_buffer = poisoned(b_bytes.size());
        std::memcpy(b_buffer.mapped().data(), b_bytes.data(), b_bytes.size());
        execute([&](Recorder& recorder) {
            kernels_->rows.norm_pair(recorder,
                                     {.step = step.address(),
                                      .a = a_buffer.address(),
                                      .b = b_buffer.address(),
                                      .a_gamma = a_weights.address(),
                                      .b_gamma = b_weights.address(),
                                      .y = b_buffer.address(),
                                      .hidden = hidden,
                                      .a_stride = a_stride,
                                      .b_stride = b_stride,
                                      .y_stride = b_stride,
                                      .eps = 1e-5f,
                                      .pad = 0},
                                     kBucket);
        });
        const auto got = content<float>(b_buffer, size_t{kBucket} * b_stride);
        for (uint32_t t = 0; t < kBucket; t++) {
            const Vector of_a =
                reference::rms_norm(reference::to_doubles({&a[size_t{t} * hidden], hidden}), a_gamma, 1e-5);
            Vector want = reference::rms_norm(reference::to_doubles({&b[size_t{t} * hidden], hidden}), b_gamma, 1e-5);
            for (uint32_t i = 0; i < hidden; i++) want[i] = t < kRows ? want[i] + of_a[i] : b[size_t{t} * hidden + i];
            expect_near(want, &got[size_t{t} * b_stride], t < kRows ? 4e-6 : 0.0, 4.0, "row " + std::to_string(t));
        }
    }
}

TEST_F(FamilyParts, LogitsAreScaledAndCapped) {
    constexpr uint32_t kVocab = 131, kRows = 2, kBucket = 3;
    const uint32_t stride = padded(kVocab);
    for (const float softcap : {0.0f, 30.0f}) {
        std::vector<float> logits = random_floats(size_t{kBucket} * kVocab, 40.0f);
        logits[3] = 1e30f;
        logits[4] = -1e30f;
        logits[5] = NAN;
        logits[6] = INFINITY;
        const auto bytes = reference::encode(logits, kVocab, stride, Type::kF32);
        Buffer buffer = poisoned(bytes.size());
        std::memcpy(buffer.mapped().data(), bytes.data(), bytes.size());
        const Buffer count = input(std::vector<uint32_t>{kRows});
        const ScaleLogitsParams params{.n_logit_rows = count.address(),
                                       .logits = buffer.address(),
                                       .vocab = kVocab,
                                       .logits_stride = stride,
                                       .scale = 0.625f,
                                       .softcap = softcap};
        execute([&](Recorder& recorder) { kernels_->sampling.scale_logits(recorder, params, kBucket); });
        const auto got = content<float>(buffer, size_t{kBucket} * stride);
        EXPECT_TRUE(std::isnan(got[5]));
        EXPECT_TRUE(std::isinf(got[6]) && got[6] > 0);
        for (uint32_t r = 0; r < kBucket; r++) {
            for (uint32_t v = 0; v < kVocab; v++) {
                const float logit = logits[size_t{r} * kVocab + v];
                if (!std::isfinite(logit)) continue;
                double want = r < kRows ? 0.625 * logit : logit;
                if (softcap != 0 && r < kRows) want = softcap * std::tanh(want / softcap);
                ASSERT_NEAR(got[size_t{r} * stride + v], want, 1e-5 * std::max(std::abs(want), 1.0))
                    << "row " << r << ", token " << v;
            }
        }
    }
}

}  // namespace
}  // namespace lorad::gpu::testing::family_parts_test
