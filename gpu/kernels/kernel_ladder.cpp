#include "gpu/kernels/kernel_ladder.h"

#include <algorithm>
#include <array>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/coopmat_tiles.h"
#include "gpu/kernels/self_test.h"
#include "gpu/pipeline.h"
#include "proto/base/format.h"

namespace lorad::gpu {

using namespace self_test;

const char* path_name(KernelPath path) {
    switch (path) {
        case KernelPath::kAuto: return "auto";
        case KernelPath::kPortableF32: return "portable-f32";
        case KernelPath::kPortable: return "portable";
        case KernelPath::kCoopmat: return "coopmat";
        case KernelPath::kCoopmat2: return "coopmat2";
        case KernelPath::kWarpgroup: return "warpgroup";
    }
    return "?";
}

KernelPath KernelLadder::path() const {
    if (has_warpgroup()) return KernelPath::kWarpgroup;
    if (coopmat2[1] || coopmat2[2]) return KernelPath::kCoopmat2;
    return coopmat[1] || coopmat[2] ? KernelPath::kCoopmat : KernelPath::kPortable;
}

namespace {

// The needs of a rung, and the words for those that are missing.
class Needs {
  public:
    Needs& want(bool is_there, std::string what) {
        if (!is_there && std::ranges::find(missing_, what) == missing_.end()) missing_.push_back(std::move(what));
        return *this;
    }
    // A rung that it stands on.
    Needs& want(const Needs& below) {
        for (const std::string& what : below.missing_) want(false, what);
        return *this;
    }
    bool are_met() const { return missing_.empty(); }
    const std::vector<std::string>& missing() const { return missing_; }

  private:
    std::vector<std::string> missing_;
};

// Builds the ladder of a device, and keeps what it lacks for each rung that it has not.
class LadderBuilder {
  public:
    LadderBuilder(const DeviceCapabilities& capabilities, KernelPath path, std::span<const std::string> left_out)
        : caps_(capabilities), path_(path), left_out_(left_out) {
        ask(all_);
        for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) add_products(type);
        add_attention();
        add_registers();
        add_recurrences();
    }

    KernelLadder ladder() const { return ladder_; }
    std::vector<Rung> rungs() { return std::move(rungs_); }

  private:
    bool is_left_out(const std::string& module) const {
        return std::ranges::find(left_out_, module) != left_out_.end();
    }
    Needs& want_module(Needs& needs, const std::string& module) const {
        needs.want(has_kernel_module(module),
                   lorad::format("kernel {}, which the shader compiler of this build could not make", module));
        return needs.want(!is_left_out(module), lorad::format("kernel {}, which was left out", module));
    }
    void ask(Needs& needs) const {
        needs.want(path_ != KernelPath::kPortable && path_ != KernelPath::kPortableF32,
                   "a kernel path above portable, which was asked for");
        // It has matrices for tests: compiling their kernels takes it minutes.
        needs.want(!caps_.is_cpu || path_ != KernelPath::kAuto,
                   "a GPU: software devices take it only when they are asked to");
    }
    void add(bool& field, const Needs& needs, const char* part, const char* type, const char* name, const char* gain) {
        field = needs.are_met();
        rungs_.push_back({lorad::format("{}{}", part, type), name, gain, needs.missing()});
    }

    void add_products(ScalarType type);
    void add_warpgroups(ScalarType type, const char* suffix, const Needs& matrices);
    void add_attention();
    void add_registers();
    void add_recurrences();
    // The smallest tile and its subgroups must fit; see kCoopmatTiles.
    void want_smallest_tile(Needs& needs) const {
        needs.want(caps_.subgroup_size >= 8, lorad::format("subgroups of 8 or more, not {}", caps_.subgroup_size));
        needs.want(caps_.shared_memory_bytes >= 32 * 1024,
                   lorad::format("32 KiB of shared memory, not {}", caps_.shared_memory_bytes >> 10));
        needs.want(threads_max(caps_) >= 4 * caps_.subgroup_size,
                   lorad::format("workgroups of {} threads, not {}", 4 * caps_.subgroup_size, threads_max(caps_)));
    }
    static std::string told_or(const std::string& why, const char* usual) { return why.empty() ? usual : why; }

    const DeviceCapabilities& caps_;
    const KernelPath path_;
    const std::span<const std::string> left_out_;
    Needs all_;  // of every rung
    KernelLadder ladder_;
    std::vector<Rung> rungs_;
};

void LadderBuilder::add_products(ScalarType type) {
    const auto t = static_cast<uint32_t>(type);
    const bool is_bf16 = type == ScalarType::kBf16;
    const char* suffix = is_bf16 ? "bf16" : "f16";
    const char* of = is_bf16 ? " (bf16 weights)" : " (f16 weights)";
    const auto modules = [&](Needs& needs, std::initializer_list<const char*> kinds) {
        for (const char* kind : kinds) want_module(needs, lorad::format("{}_{}", kind, suffix));
    };
    Needs matrices = all_;
    want_smallest_tile(matrices);
    if (is_bf16)
        matrices.want(caps_.bfloat16_coopmat,
                      told_or(caps_.no_bfloat16_coopmat, "cooperative matrices of bf16, 16x16x16 with sums in f32"));
    else
        matrices.want(caps_.coopmat_f16,
                      told_or(caps_.no_coopmat_f16, "cooperative matrices of f16, 16x16x16 with sums in f32"));
    modules(matrices, {"matmul_coopmat"});
    add(ladder_.coopmat[t], matrices, "products", of, "KHR cooperative matrices",
        "prompts about ten times and many rows several times as fast, half the bytes of activations");

    // Cheap and certain kernels for single parts of a step.
    Needs shrink = matrices, gated_act = matrices, gated = matrices, adapters = matrices;
    shrink.want(caps_.subgroup_size <= 128, "subgroups of 128 or fewer");
    modules(shrink, {"lora_shrink"});
    add(ladder_.shrink[t], shrink, "adapters' first product", of, "KHR cooperative matrices", "prompts with adapters");
    modules(gated_act, {"gated_act"});
    add(ladder_.gated_act[t], gated_act, "activation with adapters", of, "KHR cooperative matrices",
        "many rows with adapters");
    modules(gated, {"matmul_coopmat_gated"});
    add(ladder_.gated[t], gated, "gate, up and activation in one", of, "KHR cooperative matrices",
        "a pass over the activations less");
    modules(adapters, {"matmul_coopmat_lora"});
    add(ladder_.adapters[t], adapters, "products with their adapters", of, "KHR cooperative matrices",
        "prompts of adapters in one product");
    Needs gated_adapters = gated;
    modules(gated_adapters, {"matmul_coopmat_gated_lora"});
    add(ladder_.gated_adapters[t], gated_adapters, "gate, up and activation with their adapters", of,
        "KHR cooperative matrices", "prompts of adapters in one product");

    const std::string subgroups = lorad::format("subgroups of 32, not {}", caps_.subgroup_size);
    Needs lanes = matrices;
    lanes.want(caps_.subgroup_size == 32, subgroups).want(caps_.float16, "shaderFloat16 with 16-bit storage");
    if (is_bf16) lanes.want(caps_.int16, "shaderInt16");  // by which pairs of bits become bf16
    Needs fragments = lanes;
    fragments.want(gated_adapters).want(adapters);
    fragments.want(fits(kCoopmatTiles[kFragmentsTile], kTestProductN, kTestProductK, caps_),
                   "shared memory and threads for the tile of blocks");
    modules(fragments, {"matmul_coopmat_fragments", "matmul_coopmat_lora_fragments", "matmul_coopmat_gated_fragments",
                        "matmul_coopmat_gated_lora_fragments"});
    add(ladder_.fragments[t], fragments, "activations in blocks", of, "KHR cooperative matrices",
        "many rows: loads without conflicts");
    Needs residual = lanes;
    residual.want(gated);
    modules(residual, {"matmul_residual", "matmul_coopmat_deferred", "matmul_coopmat_gated_deferred"});
    add(ladder_.residual[t], residual, "products that end in the residual stream", of, "KHR cooperative matrices",
        "two dispatches a layer less");
    Needs packed = lanes;
    modules(packed, {"matmul_packed"});
    add(ladder_.packed[t], packed, "products of weights in few bits", of, "KHR cooperative matrices",
        "many rows without unpacking");
    Needs experts = matrices;
    modules(experts, {"expert_matrix"});
    bool has_experts = false;  // who uses it asks ExpertPlanner, which knows the modules that were left out
    add(has_experts, experts, "experts' products", of, "KHR cooperative matrices",
        "prompts about ten times and many rows several times as fast, in models with experts");
    modules(experts, {"expert_matrix_packed"});
    add(has_experts, experts, "experts' products of weights in few bits", of, "KHR cooperative matrices",
        "the same where experts lie in few bits");
    add_warpgroups(type, suffix, matrices);

    // Only on request: with the same tiles it is slower than KHR matrices wherever it was measured (docs/REJECTED.md).
    Needs matrices2 = matrices;
    matrices2.want(is_bf16 ? caps_.coopmat2_bfloat16 : caps_.coopmat2,
                   "VK_NV_cooperative_matrix2 with workgroup scope and tensor addressing");
    modules(matrices2, {"matmul_coopmat2"});
    matrices2.want(path_ == KernelPath::kCoopmat2, "--kernel-path coopmat2: nowhere faster");
    add(ladder_.coopmat2[t], matrices2, "products", of, "NV cooperative matrices 2", "nothing that was measured");
}

void LadderBuilder::add_warpgroups(ScalarType type, const char* suffix, const Needs& matrices) {
    const auto t = static_cast<uint32_t>(type);
    const char* of = type == ScalarType::kBf16 ? " (bf16 weights)" : " (f16 weights)";
    const auto without = [&](Needs& needs, std::initializer_list<const char*> kinds) {
        for (const char* kind : kinds)
            needs.want(!is_left_out(lorad::format("matmul_warpgroup{}_{}", kind, suffix)),
                       lorad::format("kernel matmul_warpgroup{}_{}, which was left out", kind, suffix));
    };
    Needs warpgroup = all_;
    warpgroup.want(path_ == KernelPath::kAuto || path_ == KernelPath::kWarpgroup, "a kernel path of auto or warpgroup");
    warpgroup.want(caps_.warpgroup_matrices, "an H100, H200 or GH200 with VK_NVX_binary_import");
    without(warpgroup, {"", "_gated"});
    ladder_.warpgroup[t] = warpgroup.are_met();
    Needs shown = warpgroup;  // its products stand beside those on matrices
    shown.want(matrices);
    rungs_.push_back(
        {lorad::format("products{}", of), "warpgroups", "prompts 1.6 times as fast on that chip", shown.missing()});
    Needs stacked = warpgroup, direct = warpgroup, argmax = warpgroup;
    stacked.want(ladder_.has_warpgroup(type), "cooperative matrices");
    direct.want(ladder_.has_warpgroup(type), "cooperative matrices");
    argmax.want(ladder_.has_warpgroup(type), "cooperative matrices");
    without(stacked, {"_stacked", "_gated_stacked"});
    without(direct, {"_direct"});
    without(argmax, {"_argmax"});
    add(ladder_.stacked[t], stacked, "adapters as more columns", of, "warpgroups", "prompts of adapters");
    add(ladder_.direct[t], direct, "products of few rows", of, "warpgroups", "8 to 64 rows");
    add(ladder_.argmax[t], argmax, "output layer that keeps its logits", of, "warpgroups", "greedy decodes");
}

void LadderBuilder::add_attention() {
    Needs subgroups = all_;
    want_smallest_tile(subgroups);
    subgroups.want(caps_.subgroup_size_min <= 32 && caps_.subgroup_size_max >= 32,
                   lorad::format("subgroups of 32, not {} to {}", caps_.subgroup_size_min, caps_.subgroup_size_max));
    Needs f16 = subgroups;
    f16.want(caps_.coopmat_f16,
             told_or(caps_.no_coopmat_f16, "cooperative matrices of f16, 16x16x16 with sums in f32"));
    Needs functions = subgroups;
    functions.want(path_ != KernelPath::kCoopmat, "a kernel path above coopmat, which was asked for");
    functions.want(caps_.matrix_functions,
                   "VK_NV_cooperative_matrix2 with reductions, conversions and operations on elements");
    const auto tile = [&](TileAttention kind) -> bool& { return ladder_.attention_tile[static_cast<uint32_t>(kind)]; };

    Needs staged = f16, registers = f16, workgroup = functions, group = functions;
    want_module(staged, "attention_tile");
    want_module(staged, "attention_tile_kv8");
    add(tile(TileAttention::kStaged), staged, "attention of prompts", "", "KHR cooperative matrices",
        "long prompts several times as fast");
    want_module(registers.want(caps_.subgroup_vote, "votes of subgroups"), "attention_registers");
    add(tile(TileAttention::kRegisters), registers, "attention of prompts", "",
        "KHR cooperative matrices whose elements lie as on NVIDIA's, which a test at the start tells",
        "scores stay in registers");
    want_module(workgroup.want(caps_.coopmat2, "VK_NV_cooperative_matrix2 with workgroup scope and tensor addressing"),
                "attention_coopmat2");
    add(tile(TileAttention::kWorkgroup), workgroup, "attention of prompts", "", "NV cooperative matrices 2",
        "larger tiles");
    group.want(caps_.coopmat_f16_16x8, "cooperative matrices of f16, 16x8x16");
    want_module(group, "attention_group");
    want_module(group, "attention_group_kv8");
    add(ladder_.attention_group, group, "attention of single rows", "",
        "query heads together on NV cooperative matrices 2", "long contexts");
    Needs from_qkv = group;
    want_module(from_qkv, "attention_from_qkv");
    add(ladder_.attention_from_qkv, from_qkv, "attention of single rows", "", "straight from the product's sums",
        "a dispatch a layer less");
}

// Beside matrices nothing takes them.
void LadderBuilder::add_registers() {
    if (ladder_.has(ScalarType::kF16)) return;
    Needs registers;
    registers.want(!caps_.small_workgroups, "a GPU: software devices have products of their own");
    registers.want(!has_few_registers(caps_), "the registers of a lane where subgroups may have fewer than 64");
    want_module(registers, "matmul_registers");
    add(ladder_.registers, registers, "products without matrices", "", "blocks in registers", "prompts and many rows");
    Needs short_sums = registers;
    short_sums.want(path_ != KernelPath::kPortableF32, "sums in f16 beside kernel path portable-f32");
    short_sums.want(caps_.float16, "shaderFloat16 with 16-bit storage");
    want_module(short_sums, "matmul_registers_f16");
    add(ladder_.short_sums, short_sums, "products without matrices (f16 weights)", "", "short sums in f16",
        "two products at once where the device has that");
}

// Of what every device has, and so on the portable path, too.
void LadderBuilder::add_recurrences() {
    Needs blocks;
    blocks.want(!is_left_out("delta_step"), "blocks of kernel delta_step, which were left out");
    add(ladder_.delta_blocks, blocks, "recurrences of prompts", "",
        caps_.small_workgroups ? "rows in blocks of 4" : "rows in blocks of 8",
        "prompts of delta nets and Mamba 2 several times as fast as row after row");
}

}  // namespace

KernelLadder ladder_of(const DeviceCapabilities& capabilities, KernelPath path, std::span<const std::string> left_out) {
    return LadderBuilder(capabilities, path, left_out).ladder();
}
std::vector<Rung> rungs_of(const DeviceCapabilities& capabilities, KernelPath path,
                           std::span<const std::string> left_out) {
    return LadderBuilder(capabilities, path, left_out).rungs();
}

}  // namespace lorad::gpu
