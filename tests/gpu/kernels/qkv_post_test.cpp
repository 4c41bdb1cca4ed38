#include "tests/gpu/kernels/kernel_fixture.h"
#include "tests/gpu/kernels/kv8_planes.h"

namespace lorad::gpu::testing::qkv_post_test {
namespace {

struct QkvCase {
    uint32_t n_q_heads, n_kv_heads, head_dim, rotary_dim, n_rows, bucket;
    uint32_t n_splits = 1;
    bool with_bias = false, with_norm = false, with_lora = false, with_slot_norms = false;
    KvType kv_type = KvType::kF16;
    uint32_t whole_rows = 0;
};

class QkvPost : public KernelTest {
  protected:
    // Tokens that no row has are as they were.
    static void check_unwritten(const Kv8Planes& eights, const std::vector<StepRow>& rows, const QkvCase& c) {
        const size_t n_planes = eights.bytes.size() / eights.plane_bytes;
        for (size_t plane = 0; plane < n_planes; plane++) {
            for (uint32_t token = 0; token < kBlockTokens; token++) {
                const size_t slot = plane / 2 / c.n_kv_heads * kBlockTokens + token;
                const auto writes = [&](const StepRow& row) { return row.kv_slot == slot; };
                if (std::any_of(rows.begin(), rows.begin() + c.n_rows, writes)) continue;
                const uint8_t* values = &eights.bytes[plane * eights.plane_bytes + token * c.head_dim];
                const uint8_t* tops =
                    &eights.bytes[plane * eights.plane_bytes + kBlockTokens * c.head_dim + token * eights.top_bytes];
                ASSERT_EQ(std::count(values, values + c.head_dim, 0xff), c.head_dim)
                    << "plane " << plane << " token " << token;
                ASSERT_EQ(std::count(tops, tops + eights.top_bytes, 0xff), eights.top_bytes)
                    << "plane " << plane << " token " << token;
            }
        }
    }

    void check(const QkvCase& c) {
        SCOPED_TRACE(::testing::Message() << "heads " << c.n_q_heads << "/" << c.n_kv_heads << " dim " << c.head_dim
                                          << " rotary " << c.rotary_dim << " rows " << c.n_rows << "/" << c.bucket);
        if (kernels_->options().kv_type != c.kv_type)
            kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kPortable, .kv_type = c.kv_type}));
        constexpr uint32_t kSlots = 3, kMaxPos = 300, kBlocks = 8;
        const uint32_t heads[3] = {c.n_q_heads, c.n_kv_heads, c.n_kv_heads};
        const uint32_t first_head[3] = {0, c.n_q_heads, c.n_q_heads + c.n_kv_heads};
        uint32_t q_width = c.n_q_heads * c.head_dim;
        uint32_t width = q_width + 2 * c.n_kv_heads * c.head_dim;
        uint32_t stride = padded(width);
        uint32_t capacity = c.bucket + kSlackRows;

        std::vector<LoraModule> table(kSlots * kLoraModules);
        std::vector<TestModule> modules;
        const size_t ranks[kSlots][3] = {{16, 16, 16}, {3, 0, 12}, {0, 24, 1}};
        for (uint32_t s = 0; s < kSlots; s++) {
            for (uint32_t m = 0; m < 3; m++) {
                modules.push_back(
                    TestModule::make(heads[m] * c.head_dim, 8, ranks[s][m], reference::kTypes[s], 0.3, random_));
                table[s * kLoraModules + m] = modules.back().entry();
            }
        }
        std::vector<StepRow> rows(c.bucket);
        std::vector<uint32_t> kv_slots(kBlocks * kBlockTokens);
        for (uint32_t i = 0; i < kv_slots.size(); i++) kv_slots[i] = i;
        std::shuffle(kv_slots.begin(), kv_slots.end(), random_);
        for (uint32_t t = 0; t < c.bucket; t++) {
            rows[t].position = (t * 37 + 61) % kMaxPos;
            rows[t].kv_slot = kv_slots[t];
            rows[t].adapter_slot = t % 4 == 3 ? kNoSlot : t / 2 % kSlots;
            rows[t].extras_slot = t % 3 == 2 ? kNoSlot : t % 3;
        }
        auto low = reference::random_values(size_t{c.bucket} * 3 * kMaxRank, Type::kF32, random_);
        auto y = reference::random_values(size_t{c.n_splits} * capacity * width, Type::kF32, random_);
        poison_other_splits(y, c.n_splits, c.whole_rows, capacity, width);
        auto bias = reference::random_values(width, Type::kF32, random_);
        auto q_gamma = reference::random_values(c.head_dim, Type::kF32, random_);
        auto k_gamma = reference::random_values(c.head_dim, Type::kF32, random_);
        std::vector<float> turns;
        for (uint32_t i = 0; i < kMaxPos * c.rotary_dim / 2; i++) {
            turns.push_back(std::cos(0.01f * i));
            turns.push_back(std::sin(0.01f * i));
        }
        Buffer step = step_state(rows, c.n_rows);
        Buffer y_buffer = input(reference::encode(y, width, stride, Type::kF32));
        Buffer bias_buffer = input(bias), low_buffer = input(low), table_buffer = input(table),
               rope_buffer = input(turns);
        Buffer q_gamma_buffer = input(q_gamma), k_gamma_buffer = input(k_gamma);
        // Slot 0 has a norm for q alone, slot 1 one for k alone.
        auto own_q_gamma = reference::random_values(c.head_dim, Type::kF32, random_);
        auto own_k_gamma = reference::random_values(c.head_dim, Type::kF32, random_);
        Buffer own_q_buffer = input(own_q_gamma), own_k_buffer = input(own_k_gamma);
        std::vector<uint64_t> addresses(2 * kSlots);
        addresses[0] = own_q_buffer.address();
        addresses[kSlots + 1] = own_k_buffer.address();
        Buffer slot_norms = input(addresses);
        auto gamma_of = [&](uint32_t t, uint32_t part) {
            bool is_own = c.with_slot_norms && rows[t].extras_slot == part;
            return part == 0 ? (is_own ? own_q_gamma : q_gamma) : (is_own ? own_k_gamma : k_gamma);
        };
        Buffer q = poisoned(uint64_t{c.bucket} * q_width * 4);
        size_t n_halves = size_t{kBlocks} * 2 * c.n_kv_heads * kBlockTokens * c.head_dim;
        Buffer kv = poisoned(n_halves * 2);
        QkvPostParams params{};
        params.step = step.address();
        params.y = y_buffer.address();
        params.bias = c.with_bias ? bias_buffer.address() : 0;
        params.low = low_buffer.address();
        params.lora_layer = table_buffer.address();
        params.rope = rope_buffer.address();
        params.q_gamma = c.with_norm ? q_gamma_buffer.address() : 0;
        params.k_gamma = c.with_norm ? k_gamma_buffer.address() : 0;
        params.q_slot_norms = c.with_slot_norms ? slot_norms.address() : 0;
        params.n_slots = kSlots;
        params.q = q.address();
        params.kv = kv.address();
        params.lora_slot_stride = kLoraModules;
        params.y_stride = stride;
        params.split_stride = capacity * stride;
        params.q_stride = q_width;
        params.eps = 1e-6f;
        QkvShape shape{{c.bucket, c.n_splits, level(c.with_lora), false, c.whole_rows},
                       c.n_q_heads,
                       c.n_kv_heads,
                       c.head_dim,
                       c.rotary_dim,
                       c.kv_type == KvType::kInt8Values};
        execute([&](Recorder& recorder) { kernels_->attention.qkv_post(recorder, params, shape); });

        auto got_q = content<float>(q, size_t{c.bucket} * q_width);
        auto got_kv = content(kv, n_halves, Type::kF16);
        Kv8Planes eights(size_t{kBlocks} * 2 * c.n_kv_heads, c.head_dim);
        if (c.kv_type == KvType::kInt8) {
            ASSERT_LE(eights.bytes.size(), kv.size());
            eights.bytes = content<uint8_t>(kv, eights.bytes.size());
            check_unwritten(eights, rows, c);
        } else if (c.kv_type == KvType::kInt8Values) {
            std::vector<uint16_t> halves(n_halves, 0xffff);
            std::vector<uint8_t> mixed = content<uint8_t>(kv, mixed_planes(halves, eights, c.n_kv_heads).size());
            exchange_mixed(mixed, halves, eights, c.n_kv_heads, false);
            for (size_t i = 0; i < n_halves; i++) got_kv[i] = reference::from_f16(halves[i]);
        } else {
            size_t n_written = 0;
            for (float v : got_kv) n_written += is_poison(v) ? 0 : 1;
            EXPECT_EQ(n_written, size_t{c.n_rows} * 2 * c.n_kv_heads * c.head_dim) << "cache elements written";
        }
        for (uint32_t t = 0; t < c.n_rows; t++) {
            for (uint32_t m = 0; m < 3; m++) {
                uint32_t n = heads[m] * c.head_dim;
                uint32_t from = first_head[m] * c.head_dim;
                Vector all(n);
                for (uint32_t i = 0; i < n; i++) {
                    for (uint32_t s = 0; s < (t < c.whole_rows ? 1 : c.n_splits); s++)
                        all[i] += y[(size_t{s} * capacity + t) * width + from + i];
                    if (c.with_bias) all[i] += bias[from + i];
                }
                uint32_t slot = rows[t].adapter_slot;
                if (c.with_lora && slot != kNoSlot) {
                    add_expand(all, modules[slot * 3 + m].pair,
                               reference::to_doubles({&low[(t * 3 + m) * kMaxRank], kMaxRank}));
                }
                for (uint32_t h = 0; h < heads[m]; h++) {
                    Vector head(all.begin() + h * c.head_dim, all.begin() + (h + 1) * c.head_dim);
                    if (c.with_norm && m < 2) head = reference::rms_norm(head, gamma_of(t, m), 1e-6);
                    if (m < 2) {
                        reference::rope(head, c.rotary_dim, {&turns[rows[t].position * c.rotary_dim], c.rotary_dim});
                    }
                    std::string what =
                        "row " + std::to_string(t) + " part " + std::to_string(m) + " head " + std::to_string(h);
                    if (m == 0) {
                        expect_near(head, &got_q[t * q_width + h * c.head_dim], 4e-6, 8.0, what);
                    } else if (c.kv_type == KvType::kInt8 || (c.kv_type == KvType::kInt8Values && m == 2)) {
                        size_t plane = (rows[t].kv_slot / kBlockTokens * 2 + m - 1) * c.n_kv_heads + h;
                        for (uint32_t d = 0; d < c.head_dim; d++) {
                            uint32_t token = rows[t].kv_slot % kBlockTokens;
                            // Half a step of 1 / 127, and the scale's own rounding.
                            double step_size = double{eights.top(plane, token, d)} * (0.5 / 127 + std::ldexp(1.0, -11));
                            ASSERT_NEAR(eights.load(plane, token, d), head[d], step_size + 4e-6 * 8)
                                << what << " [" << d << "]";
                        }
                    } else {
                        uint32_t block = rows[t].kv_slot / kBlockTokens, token = rows[t].kv_slot % kBlockTokens;
                        size_t line = ((size_t{block} * 2 + m - 1) * c.n_kv_heads + h) * kBlockTokens + token;
                        expect_near(head, &got_kv[line * c.head_dim], unit_roundoff(Type::kF16) + 4e-6, 8.0, what);
                    }
                }
            }
        }
        for (size_t i = size_t{c.n_rows} * q_width; i < got_q.size(); i++)
            ASSERT_TRUE(is_poison(got_q[i])) << "q was written";
    }
};

TEST_F(QkvPost, QuantizesKeysAndValuesWithAScaleForEachGroup) {
    for (const KvType kv_type : {KvType::kInt8, KvType::kInt8Values}) {
        QkvCase c{3, 1, 64, 64, 3, 4};
        c.kv_type = kv_type;
        for (uint32_t dim : {16u, 24u, 32u, 48u, 64u, 80u, 96u, 128u, 256u}) {
            c.head_dim = c.rotary_dim = dim;
            check(c);
        }
        c = {5, 5, 64, 32, 33, 48, 3, true, true, true, true, kv_type};
        check(c);
        c = {6, 2, 128, 128, 1, 1, 1, true, false, true, false, kv_type};
        check(c);
    }
}

TEST_F(QkvPost, MatchesTheReferenceForEveryHeadShape) {
    for (uint32_t dim : {16u, 24u, 32u, 48u, 80u, 96u, 128u, 256u}) check({3, 1, dim, dim, 3, 4});
    check({6, 2, 32, 32, 1, 1});
    check({5, 5, 64, 64, 33, 48});
    check({2, 1, 32, 32, 130, 192});
}

TEST_F(QkvPost, TurnsOnlyTheRotaryPart) {
    check({2, 1, 96, 72, 2, 2});
    check({2, 1, 24, 6, 2, 2});
    check({2, 2, 80, 32, 2, 2, 1, true});
}

TEST_F(QkvPost, NormalisesHeadsBeforeTurningThem) {
    check({4, 2, 128, 128, 5, 6, 2, false, true});
    check({2, 1, 32, 16, 1, 1, 1, true, true, true});
}

TEST_F(QkvPost, NormalisesWithTheAdaptersOwnWeights) {
    check({4, 2, 128, 128, 5, 6, 2, false, true, false, true});
    check({2, 1, 32, 16, 7, 8, 1, true, true, true, true});
}

TEST_F(QkvPost, TakesTheSumsOfWholeRowsFromTheFirstSplitAlone) {
    check({6, 2, 64, 64, 40, 48, 3, true, false, true, false, KvType::kF16, 32});
    check({6, 2, 64, 64, 20, 48, 2, false, true, false, false, KvType::kInt8, 32});
}

TEST_F(QkvPost, AddsTheRowsOwnAdapterToEachPart) {
    check({6, 2, 32, 32, 7, 8, 3, true, false, true});
    check({2, 2, 48, 48, 30, 32, 1, false, false, true});
}

}  // namespace
}  // namespace lorad::gpu::testing::qkv_post_test
