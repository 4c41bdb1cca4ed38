// At start-up: shrinks, and the activation with adapters, on cooperative matrices against the portable kernels.
#include <array>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/ladder_tests.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"

namespace lorad::gpu {

using namespace self_test;

namespace {

// One segment and the three modules of one group, their matrices in all three types.
struct ShrinkTest {
    static constexpr uint32_t kRows = 11, kRank = 21, kK = 640, kModules = 3, kManyRows = 4096;

    Buffer step, segments, table, a, x, low, parts;

    static Result<ShrinkTest> create(Device& device, ScalarType type) {
        ShrinkTest test;
        const ShrinkDispatch dispatch = shrink_dispatch(kRank, 1, kModules);
        TRY(make(device, test.step, sizeof(dispatch), MemoryKind::kHostUpload));
        TRY(make(device, test.segments, sizeof(LoraSegment), MemoryKind::kHostUpload));
        TRY(make(device, test.table, kLoraModules * sizeof(LoraModule), MemoryKind::kHostUpload));
        TRY(make(device, test.a, kModules * kRank * kK * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.x, kRows * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.low, LoraPlanner::lora_low_bytes(kRows), MemoryKind::kHostReadback));
        TRY(make(device, test.parts, LoraPlanner::kShrinkPartBytes, MemoryKind::kHostUpload));
        std::memset(test.parts.mapped().data(), 0, test.parts.size());
        std::memcpy(test.step.mapped().data(), &dispatch, sizeof(dispatch));
        const LoraSegment segment{0, kRows, 0, 0};
        std::memcpy(test.segments.mapped().data(), &segment, sizeof(segment));
        std::mt19937 random(21);
        LoraModule entries[kLoraModules] = {};
        for (uint32_t m = 0; m < kModules; ++m) {
            const uint64_t offset = uint64_t{m} * kRank * kK * 4;
            const auto a_type = static_cast<ScalarType>(m);
            entries[m].a = entries[m].b = test.a.address() + offset;
            entries[m].rank = kRank;
            entries[m].type = m;
            fill_random(test.a.mapped().subspan(offset, kRank * kK * bytes_of(a_type)), a_type, random);
        }
        std::memcpy(test.table.mapped().data(), entries, sizeof(entries));
        fill_random(test.x.mapped(), type, random);
        return test;
    }

    // All ranks of all rows and modules. `rows` says which kernel.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, ScalarType type, uint32_t rows) {
        std::memset(low.mapped().data(), 0xff, low.size());
        LoraShrinkParams params{};
        params.lora_layer = table.address();
        params.segments = segments.address();
        params.x = x.address();
        params.low = low.address();
        params.parts = parts.address();
        params.lora_slot_stride = kLoraModules;
        params.first_module = kLoraQ;
        params.n_modules = kModules;
        params.k = params.x_stride = kK;
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        kernels.lora.lora_shrink(recorder, params, type, rows, ShrinkPlace::kBehindProduct, step, 0);
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        std::vector<float> all;
        const auto* values = reinterpret_cast<const float*>(low.mapped().data());
        for (uint32_t i = 0; i < kRows * kModules; ++i) {
            all.insert(all.end(), values + i * kMaxRank, values + i * kMaxRank + round_up(kRank, 8));
        }
        return all;
    }
};

// Rows of three adapters, whose B have the given types, and of none.
struct GatedActTest {
    static constexpr uint32_t kRows = kAdapterTileRows, kFfn = 128, kRank = 24, kSlots = 3;

    Buffer step, table, b, low, y, act;

    static Result<GatedActTest> create(Device& device, const std::array<ScalarType, kSlots>& types) {
        GatedActTest test;
        TRY(make(device, test.step, sizeof(StepHeader) + kRows * sizeof(StepRow), MemoryKind::kHostUpload));
        TRY(make(device, test.table, kSlots * kLoraModules * sizeof(LoraModule), MemoryKind::kHostUpload));
        TRY(make(device, test.b, kSlots * 2 * kFfn * kRank * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.low, LoraPlanner::lora_low_bytes(kRows), MemoryKind::kHostUpload));
        TRY(make(device, test.y, kRows * 2 * kFfn * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.act, kRows * kFfn * 2, MemoryKind::kHostReadback));
        StepHeader header{};
        header.n_rows = kRows - 1;
        std::memcpy(test.step.mapped().data(), &header, sizeof(header));
        for (uint32_t t = 0; t < kRows; ++t) {
            StepRow row{};
            row.adapter_slot = t / 8 < kSlots ? t / 8 : kNoSlot;
            std::memcpy(test.step.mapped().data() + sizeof(header) + t * sizeof(row), &row, sizeof(row));
        }
        std::mt19937 random(22);
        std::vector<LoraModule> entries(kSlots * kLoraModules);
        for (uint32_t i = 0; i < kSlots * 2; ++i) {
            const uint64_t offset = uint64_t{i} * kFfn * kRank * 4;
            const uint32_t slot = i / 2;
            LoraModule& entry = entries[slot * kLoraModules + (i % 2 == 0 ? kLoraGate : kLoraUp)];
            entry.b = test.b.address() + offset;
            entry.rank = kRank;
            entry.scale = 0.5f;
            entry.type = static_cast<uint32_t>(types[slot]);
            fill_random(test.b.mapped().subspan(offset, kFfn * kRank * bytes_of(types[slot])), types[slot], random);
        }
        std::memcpy(test.table.mapped().data(), entries.data(), entries.size() * sizeof(LoraModule));
        fill_random(test.low.mapped(), ScalarType::kF32, random);
        fill_random(test.y.mapped(), ScalarType::kF32, random);
        return test;
    }

    // All rows that there are. few_runs says which kernel.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, ScalarType type, bool few_runs) {
        std::memset(act.mapped().data(), 0xff, act.size());
        GatedActParams params{};
        params.step = step.address();
        params.y = y.address();
        params.low = low.address();
        params.lora_layer = table.address();
        params.act = act.address();
        params.lora_slot_stride = kLoraModules;
        params.ffn = params.act_stride = kFfn;
        params.y_stride = 2 * kFfn;
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        kernels.rows.gated_act(recorder, params, {.rows = kRows, .lora = LoraLevel::kPlain, .few_runs = few_runs},
                               Activation::kSilu, type);
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        std::vector<float> all(size_t{kRows - 1} * kFfn);
        const auto* values = reinterpret_cast<const uint16_t*>(act.mapped().data());
        for (size_t i = 0; i < all.size(); ++i) all[i] = decode16(values[i], type);
        return all;
    }
};

// Two parts of bf16 hold 16 bits of f32.
constexpr double kShrinkTolerance = 3e-5;
// Results are rounded to 8 bits (bf16) or more.
constexpr double kActTolerance = 4e-3;

}  // namespace

// The adapter's matrices in both 16-bit types and in f32 against the portable kernel.
Status test_shrink(LadderTests& tests, ScalarType type) {
    TRY_ASSIGN(ShrinkTest test, ShrinkTest::create(tests.device(), type));
    TRY_ASSIGN(const std::vector<float> want, test.run(tests.device(), tests.kernels(), type, 1));
    Deviation deviation;
    deviation.add(test.run(tests.device(), tests.kernels(), type, ShrinkTest::kManyRows), want);
    if (!(deviation.error <= kShrinkTolerance))
        tests.leave_out(RungId::kShrink, type, "lora_shrink on matrices", deviation);
    return ok_status();
}

// Rows of adapters, and of none, against the portable kernel.
Status test_gated_act(LadderTests& tests, ScalarType type) {
    Deviation deviation;
    // B of the matrices' own type goes another way than others.
    for (const auto& types :
         {std::array{type, type, type}, std::array{ScalarType::kF32, ScalarType::kF16, ScalarType::kBf16}}) {
        TRY_ASSIGN(GatedActTest test, GatedActTest::create(tests.device(), types));
        TRY_ASSIGN(const std::vector<float> want, test.run(tests.device(), tests.kernels(), type, false));
        deviation.add(test.run(tests.device(), tests.kernels(), type, true), want);
    }
    if (!(deviation.error <= kActTolerance))
        tests.leave_out(RungId::kGatedAct, type, "gated_act on matrices", deviation);
    return ok_status();
}

}  // namespace lorad::gpu
