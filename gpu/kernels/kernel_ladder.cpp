#include "gpu/kernels/kernel_ladder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "gpu/kernels/activation_blocks.h"
#include "gpu/kernels/coopmat_tiles.h"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"
#include "gpu/kernels/warpgroup_tiles.h"
#include "proto/base/format.h"

namespace lorad::gpu {

using namespace self_test;

namespace {

constexpr std::array kShortTypes = {ScalarType::kF16, ScalarType::kBf16};

const char* path_name(KernelPath path) {
    switch (path) {
        case KernelPath::kAuto: return "auto";
        case KernelPath::kPortable: return "portable";
        case KernelPath::kCoopmat: return "coopmat";
        case KernelPath::kCoopmat2: return "coopmat2";
        case KernelPath::kWarpgroup: return "warpgroup";
    }
    return "?";
}

// One small product, run by several plans over the same random data.
struct TestProduct {
    static constexpr uint32_t kN = 512, kK = 512, kRows = 20;
    static constexpr uint32_t kBufferRows = round_up(kRows, kSlackRows) + kSlackRows;

    Buffer count, w, x, x_blocks, y, y_blocks, windows;

    static Result<TestProduct> create(Device& device, ScalarType type) {
        TestProduct test;
        TRY(make(device, test.count, 16, MemoryKind::kHostUpload));
        TRY(make(device, test.w, kN * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.x, kBufferRows * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.x_blocks, kBufferRows * kK * 2, MemoryKind::kHostUpload));
        TRY(make(device, test.y, uint64_t{4} * kBufferRows * kN * 4, MemoryKind::kHostReadback));
        TRY(make(device, test.y_blocks, uint64_t{kBufferRows} * kHalf * 2, MemoryKind::kHostReadback));
        TRY(make(device, test.windows, sizeof(JoinedWindow), MemoryKind::kHostUpload));
        std::memcpy(test.windows.mapped().data(), &kWindow, sizeof(kWindow));
        std::mt19937 random(20);
        fill_random(test.w.mapped(), type, random);
        fill_random(test.x.mapped(), type, random);
        std::memcpy(test.count.mapped().data(), &kRows, 4);
        return test;
    }

    // The sum over splits, rows kRows.
    Result<std::vector<float>> run(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        MatmulParams params = params_of(kN, plan);
        params.split_stride = kBufferRows * kN;
        TRY(execute(device, kernels, [&](Recorder& recorder) { kernels.matmul(recorder, params, plan); }));
        return sum_of_splits(plan.n_splits);
    }

    // Of a joined product x and w once more stand for low and b, of which this window is taken: without more data some of k counts twice.
    static constexpr JoinedWindow kWindow{3, 4};
    // What that is worth. The plan takes x in rows, and all of k at once.
    Result<std::vector<float>> run_window(Device& device, KernelSet& kernels, MatmulPlan plan) {
        MatmulParams params = params_of(kN, plan);
        params.x += uint64_t{kWindow.begin} * kJoinedStep * 2;
        params.w += uint64_t{kWindow.begin} * kJoinedStep * 2;
        params.k = plan.k_per_split = kWindow.n * kJoinedStep;
        TRY(execute(device, kernels, [&](Recorder& recorder) { kernels.matmul(recorder, params, plan); }));
        return sum_of_splits(1);
    }
    Result<std::vector<float>> run_joined(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        MatmulJoinedParams params = joined_params_of(kN, plan);
        params.product.split_stride = kBufferRows * kN;
        TRY(execute(device, kernels, [&](Recorder& recorder) { kernels.matmul_joined(recorder, params, plan, kK / kJoinedModuleColumns); }));
        return sum_of_splits(plan.n_splits);
    }
    Result<std::vector<float>> run_gated_joined(Device& device, KernelSet& kernels, const MatmulPlan& plan) {
        MatmulJoinedParams params = joined_params_of(kHalf, plan);
        params.product.y = 0;
        params.product.y_blocks = y_blocks.address();
        TRY(execute(device, kernels, [&](Recorder& recorder) { kernels.matmul_gated_joined(recorder, params, plan, kK / kJoinedModuleColumns, kBlocksByRows); }));
        return act_of(plan, kBlocksByRows);
    }

    static constexpr uint32_t kHalf = kN / 2;
    // SiLU of the first half of a result's columns, times the second half.
    static std::vector<float> gated(const std::vector<float>& sums) {
        std::vector<float> act(size_t{kRows} * kHalf);
        for (uint32_t t = 0; t < kRows; t++) {
            for (uint32_t f = 0; f < kHalf; f++) {
                const float gate = sums[size_t{t} * kN + f], up = sums[size_t{t} * kN + kHalf + f];
                act[size_t{t} * kHalf + f] = gate / (1.0f + std::exp(-gate)) * up;
            }
        }
        return act;
    }

    // That, rows kRows, computed by the product itself; in blocks if x is, in this order.
    Result<std::vector<float>> run_gated(Device& device, KernelSet& kernels, const MatmulPlan& plan, uint32_t y_order = kBlocksByColumns) {
        MatmulParams params = params_of(kHalf, plan);
        if (plan.x_in_blocks) {
            params.y = 0;
            params.y_blocks = y_blocks.address();
        }
        TRY(execute(device, kernels, [&](Recorder& recorder) { kernels.matmul_gated(recorder, params, plan, Activation::kSilu, y_order); }));
        return act_of(plan, y_order);
    }

  private:
    std::optional<uint32_t> arranged_;  // the order that x_blocks has

    std::vector<float> sum_of_splits(uint32_t n_splits) const {
        std::vector<float> sum(size_t{kRows} * kN);
        const auto* values = reinterpret_cast<const float*>(y.mapped().data());
        for (uint32_t split = 0; split < n_splits; split++) {
            for (size_t i = 0; i < sum.size(); i++) sum[i] += values[size_t{split} * kBufferRows * kN + i];
        }
        return sum;
    }
    std::vector<float> act_of(const MatmulPlan& plan, uint32_t y_order) const {
        std::vector<float> act(size_t{kRows} * kHalf);
        const std::byte* got = (plan.x_in_blocks ? y_blocks : y).mapped().data();
        for (uint32_t i = 0; i < act.size(); i++) {
            uint16_t bits = 0;
            std::memcpy(&bits, got + (plan.x_in_blocks ? block_offset(i / kHalf, i % kHalf, kHalf, y_order) : uint64_t{i} * 2), 2);
            act[i] = decode16(bits, plan.act_type);
        }
        return act;
    }

    MatmulJoinedParams joined_params_of(uint32_t n, const MatmulPlan& plan) {
        static_assert(kK % kJoinedModuleColumns == 0);
        return {.product = params_of(n, plan), .windows = windows.address(), .b = w.address(), .low = x_blocks.address()};
    }

    // n: columns of the result.
    MatmulParams params_of(uint32_t n, const MatmulPlan& plan) {
        if (plan.x_in_blocks && arranged_ != plan.x_order) {
            to_blocks(x.mapped(), x_blocks.mapped(), kK, plan.x_order);
            arranged_ = plan.x_order;
        }
        MatmulParams params{};
        params.n_rows = count.address();
        params.w = w.address();
        params.x = (plan.x_in_blocks ? x_blocks : x).address();
        params.y = y.address();
        params.n = params.y_stride = n;
        params.k = params.w_stride = params.x_stride = kK;
        return params;
    }

    template <typename Record>
    Status execute(Device& device, KernelSet& kernels, Record record) {
        std::memset(y.mapped().data(), 0xff, y.size());
        std::memset(y_blocks.mapped().data(), 0xff, y_blocks.size());
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        record(recorder);
        TRY(kernels.status());
        return submit_and_wait(device, std::move(recorder));
    }
};

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
        TRY(make(device, test.low, KernelSet::lora_low_bytes(kRows), MemoryKind::kHostReadback));
        TRY(make(device, test.parts, KernelSet::kShrinkPartBytes, MemoryKind::kHostUpload));
        std::memset(test.parts.mapped().data(), 0, test.parts.size());
        std::memcpy(test.step.mapped().data(), &dispatch, sizeof(dispatch));
        const LoraSegment segment{0, kRows, 0, 0};
        std::memcpy(test.segments.mapped().data(), &segment, sizeof(segment));
        std::mt19937 random(21);
        LoraModule entries[kLoraModules] = {};
        for (uint32_t m = 0; m < kModules; m++) {
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
        kernels.lora_shrink(recorder, params, type, rows, ShrinkPlace::kBehindProduct, step, 0);
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        std::vector<float> all;
        const auto* values = reinterpret_cast<const float*>(low.mapped().data());
        for (uint32_t i = 0; i < kRows * kModules; i++) {
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
        TRY(make(device, test.low, KernelSet::lora_low_bytes(kRows), MemoryKind::kHostUpload));
        TRY(make(device, test.y, kRows * 2 * kFfn * 4, MemoryKind::kHostUpload));
        TRY(make(device, test.act, kRows * kFfn * 2, MemoryKind::kHostReadback));
        StepHeader header{};
        header.n_rows = kRows - 1;
        std::memcpy(test.step.mapped().data(), &header, sizeof(header));
        for (uint32_t t = 0; t < kRows; t++) {
            StepRow row{};
            row.adapter_slot = t / 8 < kSlots ? t / 8 : kNoSlot;
            std::memcpy(test.step.mapped().data() + sizeof(header) + t * sizeof(row), &row, sizeof(row));
        }
        std::mt19937 random(22);
        std::vector<LoraModule> entries(kSlots * kLoraModules);
        for (uint32_t i = 0; i < kSlots * 2; i++) {
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
        kernels.gated_act(recorder, params, {.rows = kRows, .lora = LoraLevel::kPlain, .few_runs = few_runs}, Activation::kSilu, type);
        TRY(kernels.status());
        TRY(submit_and_wait(device, std::move(recorder)));
        std::vector<float> all(size_t{kRows - 1} * kFfn);
        const auto* values = reinterpret_cast<const uint16_t*>(act.mapped().data());
        for (size_t i = 0; i < all.size(); i++) all[i] = decode16(values[i], type);
        return all;
    }
};

// Products are exact in f32 and only the order of 512 sums differs; a wrong element costs more than this.
constexpr double kSelfTestTolerance = 1e-5;
// Results are rounded to 8 bits (bf16) or more.
constexpr double kGatedTolerance = 4e-3;
struct GatedStep {
    uint32_t rows, ffn;
};
constexpr uint32_t kLargeFfn = 18944;
constexpr std::array kGatedTestSteps = {GatedStep{16, TestProduct::kHalf}, GatedStep{64, TestProduct::kHalf}, GatedStep{96, TestProduct::kHalf},
                                        GatedStep{128, TestProduct::kHalf}, GatedStep{16, kLargeFfn}, GatedStep{32, kLargeFfn}};
// Two parts of bf16 hold 16 bits of f32.
constexpr double kShrinkTolerance = 3e-5;

// Of the product and the gated product of x in blocks, where it is not allowed.
std::optional<Deviation> deviation_of_blocks(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type, const std::vector<float>& want) {
    MatmulPlan plan;
    plan.variant = MatmulVariant::kCoopmat;
    plan.weight_type = plan.act_type = type;
    plan.rows = TestProduct::kRows;
    take(plan, {.tile = kBlocksTile, .k_per_split = TestProduct::kK, .x_in_blocks = true});
    Deviation plain, gated;
    plain.add(test.run(device, kernels, plan), want);
    if (!(plain.error <= kSelfTestTolerance)) return plain;
    gated.add(test.run_gated(device, kernels, plan), TestProduct::gated(want));
    if (!(gated.error <= kGatedTolerance)) return gated;
    return std::nullopt;
}

// Of all tiles, with k whole and cut, and of their gated products, where it is not allowed.
std::optional<Deviation> deviation_of_warpgroup(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type, const std::vector<float>& want) {
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
        for (const uint32_t n_splits : {1u, 2u}) {
            Deviation plain;
            plain.add(test.run(device, kernels, KernelSet::plan_of_warpgroup(tile, TestProduct::kRows, n_splits, TestProduct::kK / n_splits, type)), want);
            if (!(plain.error <= kSelfTestTolerance)) return plain;
        }
        if (!kWarpgroupTiles[tile].may_gate()) continue;
        for (const uint32_t y_order : {kBlocksByRows, kBlocksOfARow}) {
            if (y_order == kBlocksOfARow && kWarpgroupTiles[tile].groups > 1) continue;  // nobody reads so many rows in it
            Deviation gated;
            gated.add(test.run_gated(device, kernels, KernelSet::plan_of_warpgroup(tile, TestProduct::kRows, 1, TestProduct::kK, type), y_order), TestProduct::gated(want));
            if (!(gated.error <= kGatedTolerance)) return gated;
        }
    }
    return std::nullopt;
}

// Of the tiles that take adapters as more k, plain with k cut and gated, where it is not allowed.
std::optional<Deviation> deviation_of_joined(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type, const MatmulPlan& portable, std::vector<float> want) {
    const Result<std::vector<float>> more = test.run_window(device, kernels, portable);
    Deviation failed;
    failed.add(more, want);
    if (!more.ok()) return failed;
    for (size_t i = 0; i < want.size(); i++) want[i] += more.value()[i];
    for (uint32_t tile = 0; tile < kWarpgroupTiles.size(); tile++) {
        if (kWarpgroupTiles[tile].rows() != kJoinedTileRows) continue;
        Deviation plain;
        plain.add(test.run_joined(device, kernels, KernelSet::plan_of_warpgroup(tile, TestProduct::kRows, 2, TestProduct::kK / 2, type)), want);
        if (!(plain.error <= kSelfTestTolerance)) return plain;
        if (!kWarpgroupTiles[tile].may_gate()) continue;
        Deviation gated;
        gated.add(test.run_gated_joined(device, kernels, KernelSet::plan_of_warpgroup(tile, TestProduct::kRows, 1, TestProduct::kK, type)), TestProduct::gated(want));
        if (!(gated.error <= kGatedTolerance)) return gated;
    }
    return std::nullopt;
}

// Of workgroups with one, two and three groups, the last one with warps that have no rows, in the sizes of x that it is for, with k whole and cut, where it is
// not allowed.
std::optional<Deviation> deviation_of_direct(Device& device, KernelSet& kernels, TestProduct& test, ScalarType type, const std::vector<float>& want) {
    struct Form {
        uint32_t column_blocks, rows, n_splits;
    };
    for (const Form& form : {Form{3, 48, 1}, Form{7, 64, 2}, Form{9, 64, 4}}) {
        Deviation deviation;
        deviation.add(test.run(device, kernels, KernelSet::plan_of_direct(form.column_blocks, form.rows, form.n_splits, TestProduct::kK / form.n_splits, type)), want);
        if (!(deviation.error <= kSelfTestTolerance)) return deviation;
    }
    return std::nullopt;
}

}  // namespace

KernelPath KernelLadder::path() const {
    if (has_warpgroup()) return KernelPath::kWarpgroup;
    if (coopmat2[1] || coopmat2[2]) return KernelPath::kCoopmat2;
    return coopmat[1] || coopmat[2] ? KernelPath::kCoopmat : KernelPath::kPortable;
}

KernelLadder ladder_of(const DeviceCapabilities& capabilities, KernelPath path, std::span<const std::string> left_out) {
    KernelLadder ladder;
    const auto is_there = [&](const char* module) { return has_kernel_module(module) && std::ranges::find(left_out, module) == left_out.end(); };
    // A software device has matrices for tests: compiling their kernels takes it minutes.
    if (path == KernelPath::kPortable || (capabilities.is_cpu && path == KernelPath::kAuto)) return ladder;
    // The smallest tile and its subgroups must fit; see kCoopmatTiles.
    const bool smallest_fits = capabilities.subgroup_size >= 8 && capabilities.shared_memory_bytes >= 32 * 1024 &&
                      threads_max(capabilities) >= 4 * capabilities.subgroup_size;
    ladder.coopmat[1] = smallest_fits && capabilities.coopmat_f16 && is_there("matmul_coopmat_f16");
    ladder.coopmat[2] = smallest_fits && capabilities.bfloat16_coopmat && is_there("matmul_coopmat_bf16");
    ladder.shrink[1] = ladder.coopmat[1] && capabilities.subgroup_size <= 128 && is_there("lora_shrink_f16");
    ladder.shrink[2] = ladder.coopmat[2] && capabilities.subgroup_size <= 128 && is_there("lora_shrink_bf16");
    ladder.gated_act[1] = ladder.coopmat[1] && is_there("gated_act_f16");
    ladder.gated_act[2] = ladder.coopmat[2] && is_there("gated_act_bf16");
    ladder.gated[1] = ladder.coopmat[1] && is_there("matmul_coopmat_gated_f16");
    ladder.gated[2] = ladder.coopmat[2] && is_there("matmul_coopmat_gated_bf16");
    ladder.adapters[1] = ladder.coopmat[1] && is_there("matmul_coopmat_lora_f16");
    ladder.adapters[2] = ladder.coopmat[2] && is_there("matmul_coopmat_lora_bf16");
    ladder.gated_adapters[1] = ladder.gated[1] && is_there("matmul_coopmat_gated_lora_f16");
    ladder.gated_adapters[2] = ladder.gated[2] && is_there("matmul_coopmat_gated_lora_bf16");
    const bool blocks_fit = capabilities.subgroup_size == 32 && fits(kCoopmatTiles[kBlocksTile], TestProduct::kN, TestProduct::kK, capabilities);
    const auto offer_blocks = [&](ScalarType type, const char* suffix) {
        bool all = blocks_fit && ladder.has_gated_adapters(type) && ladder.has_adapters(type) && capabilities.float16;
        // By int16 pairs of bits become bf16.
        if (type == ScalarType::kBf16) all = all && capabilities.int16;
        for (const char* kind : {"", "lora_", "gated_", "gated_lora_"}) all = all && is_there(lorad::format("matmul_coopmat_{}blocks_{}", kind, suffix).c_str());
        ladder.blocks[static_cast<uint32_t>(type)] = all;
    };
    const auto offer_residual = [&](ScalarType type, const char* suffix) {
        bool all = capabilities.subgroup_size == 32 && ladder.has_gated(type) && capabilities.float16 && (type != ScalarType::kBf16 || capabilities.int16);
        for (const char* kind : {"residual", "coopmat_deferred", "coopmat_gated_deferred"}) all = all && is_there(lorad::format("matmul_{}_{}", kind, suffix).c_str());
        ladder.residual[static_cast<uint32_t>(type)] = all;
    };
    offer_residual(ScalarType::kF16, "f16");
    offer_residual(ScalarType::kBf16, "bf16");
    offer_blocks(ScalarType::kF16, "f16");
    offer_blocks(ScalarType::kBf16, "bf16");
    const auto offer_warpgroup = [&](ScalarType type, const char* suffix) {
        const auto is_left_out = [&](const char* kind) { return std::ranges::find(left_out, lorad::format("matmul_warpgroup{}_{}", kind, suffix)) != left_out.end(); };
        const bool wanted = path == KernelPath::kAuto || path == KernelPath::kWarpgroup;
        ladder.warpgroup[static_cast<uint32_t>(type)] = wanted && capabilities.warpgroup_matrices && !is_left_out("") && !is_left_out("_gated");
        ladder.joined[static_cast<uint32_t>(type)] = ladder.has_warpgroup(type) && !is_left_out("_joined") && !is_left_out("_gated_joined");
        ladder.direct[static_cast<uint32_t>(type)] = ladder.has_warpgroup(type) && !is_left_out("_direct");
    };
    offer_warpgroup(ScalarType::kF16, "f16");
    offer_warpgroup(ScalarType::kBf16, "bf16");
    const bool subgroups_of_32 = smallest_fits && capabilities.subgroup_size_min <= 32 && capabilities.subgroup_size_max >= 32;
    const bool functions = capabilities.matrix_functions && path != KernelPath::kCoopmat;
    const auto offer = [&](TileAttention kind, bool can) { ladder.attention_tile[static_cast<uint32_t>(kind)] = subgroups_of_32 && can; };
    offer(TileAttention::kStaged, capabilities.coopmat_f16 && is_there("attention_tile") && is_there("attention_tile_kv8"));
    ladder.attention_group = subgroups_of_32 && functions && capabilities.coopmat_f16_16x8 && is_there("attention_group") && is_there("attention_group_kv8");
    ladder.attention_from_qkv = ladder.attention_group && is_there("attention_from_qkv");
    offer(TileAttention::kWorkgroup, functions && capabilities.coopmat2 && is_there("attention_coopmat2"));
    offer(TileAttention::kRegisters, capabilities.coopmat_f16 && capabilities.subgroup_vote && is_there("attention_registers"));
    // Only on request: with the same tiles it is slower than KHR matrices wherever it was measured (docs/REJECTED.md).
    if (path != KernelPath::kCoopmat2) return ladder;
    ladder.coopmat2[1] = ladder.coopmat[1] && capabilities.coopmat2 && is_there("matmul_coopmat2_f16");
    ladder.coopmat2[2] = ladder.coopmat[2] && capabilities.coopmat2_bfloat16 && is_there("matmul_coopmat2_bf16");
    return ladder;
}

// The adapter's matrices in both 16-bit types and in f32 against the portable kernel.
Status KernelSet::test_shrink(ScalarType type) {
    bool& works = ladder_.shrink[static_cast<uint32_t>(type)];
    if (!ladder_.has(type)) works = false;
    if (!works) return ok_status();
    TRY_ASSIGN(ShrinkTest test, ShrinkTest::create(device_, type));
    TRY_ASSIGN(const std::vector<float> want, test.run(device_, *this, type, 1));
    Deviation deviation;
    deviation.add(test.run(device_, *this, type, ShrinkTest::kManyRows), want);
    if (deviation.error <= kShrinkTolerance) return ok_status();
    works = false;
    tell_left_out("lora_shrink on matrices", device_, deviation);
    return ok_status();
}

// Rows of adapters, and of none, against the portable kernel.
Status KernelSet::test_gated_act(ScalarType type) {
    bool& works = ladder_.gated_act[static_cast<uint32_t>(type)];
    if (!ladder_.has(type)) works = false;
    if (!works) return ok_status();
    Deviation deviation;
    // B of the matrices' own type goes another way than others.
    for (const auto& types : {std::array{type, type, type}, std::array{ScalarType::kF32, ScalarType::kF16, ScalarType::kBf16}}) {
        TRY_ASSIGN(GatedActTest test, GatedActTest::create(device_, types));
        TRY_ASSIGN(const std::vector<float> want, test.run(device_, *this, type, false));
        deviation.add(test.run(device_, *this, type, true), want);
    }
    if (deviation.error <= kGatedTolerance) return ok_status();
    works = false;
    tell_left_out("gated_act on matrices", device_, deviation);
    return ok_status();
}

Status KernelSet::climb_ladder() {
    const KernelPath wanted = wanted_path_ = options_.path;
    ladder_ = ladder_of(device_.capabilities(), wanted, options_.left_out);
    for (const ScalarType type : kShortTypes) {
        if (!ladder_.has(type)) continue;
        const auto type_idx = static_cast<uint32_t>(type);
        TRY_ASSIGN(TestProduct test, TestProduct::create(device_, type));
        MatmulPlan portable;
        portable.variant = MatmulVariant::kTiled;
        portable.k_per_split = TestProduct::kK;
        portable.row_tile = 32;
        portable.column_tile = 64;
        portable.rows = TestProduct::kRows;
        portable.weight_type = portable.act_type = type;
        TRY_ASSIGN(const std::vector<float> want, test.run(device_, *this, portable));
        for (const MatmulVariant variant : {MatmulVariant::kGemv, MatmulVariant::kCoopmat, MatmulVariant::kCoopmat2}) {
            if (variant == MatmulVariant::kCoopmat2 && !ladder_.has2(type)) continue;
            const MatmulPlan plan = plan_fast(variant, TestProduct::kN, TestProduct::kK, type, TestProduct::kRows, 4, false);
            Deviation deviation;
            deviation.add(test.run(device_, *this, plan), want);
            if (deviation.error <= kSelfTestTolerance) continue;
            tell_left_out(variant_name(plan), device_, deviation);
            ladder_.coopmat2[type_idx] = false;
            if (variant != MatmulVariant::kCoopmat2) ladder_.coopmat[type_idx] = false;
            if (variant != MatmulVariant::kCoopmat2) break;
        }
        // The tiles that steps of so many rows take in a small and in a large model, though the test has fewer rows and columns.
        std::vector<uint32_t> tested;
        for (const auto& [rows, ffn] : kGatedTestSteps) {
            if (!ladder_.has_gated(type)) break;
            const GatedProducts wanted_gated = std::exchange(options_.gated, GatedProducts::kAlways);
            std::optional<MatmulPlan> plan = plan_gated(ffn, TestProduct::kK, type, rows, 1);
            options_.gated = wanted_gated;
            if (!plan || std::ranges::find(tested, plan->tile) != tested.end()) continue;
            tested.push_back(plan->tile);
            plan->rows = TestProduct::kRows;
            Deviation deviation;
            deviation.add(test.run_gated(device_, *this, *plan), TestProduct::gated(want));
            if (deviation.error <= kGatedTolerance) continue;
            ladder_.gated[type_idx] = false;
            tell_left_out("matmul_coopmat_gated", device_, deviation);
        }
        if (tested.empty()) ladder_.gated[type_idx] = false;
        if (ladder_.has_warpgroup(type)) {
            if (const auto deviation = deviation_of_warpgroup(device_, *this, test, type, want)) {
                ladder_.warpgroup[type_idx] = false;
                tell_left_out("matmul_warpgroup", device_, *deviation);
            }
        }
        if (ladder_.has_joined(type)) {
            if (const auto deviation = deviation_of_joined(device_, *this, test, type, portable, want)) {
                ladder_.joined[type_idx] = false;
                tell_left_out("matmul_warpgroup_joined", device_, *deviation);
            }
        }
        if (ladder_.has_direct(type)) {
            if (const auto deviation = deviation_of_direct(device_, *this, test, type, want)) {
                ladder_.direct[type_idx] = false;
                tell_left_out("matmul_warpgroup_direct", device_, *deviation);
            }
        }
        if (ladder_.has_blocks(type)) {
            if (const auto deviation = deviation_of_blocks(device_, *this, test, type, want)) {
                ladder_.blocks[type_idx] = false;
                tell_left_out_by_lanes("matmul_coopmat with x in blocks", device_, *deviation);
            }
        }
        TRY(test_residual(type));
        TRY(test_shrink(type));
        TRY(test_gated_act(type));
    }
    TRY(test_attention());
    TRY(test_attention_from_qkv());
    options_.path = ladder_.path();
    if (wanted != KernelPath::kAuto && options_.path != wanted) {
        return make_error(ErrorCode::kInvalidConfig,
                          lorad::format("kernel path {}: not available on {}; the best that works there is {}", path_name(wanted),
                                        device_.capabilities().name, path_name(options_.path)));
    }
    return ok_status();
}

}  // namespace lorad::gpu
