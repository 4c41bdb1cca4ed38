#include <algorithm>
#include <bit>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kThreadsOnGpu = 512;
constexpr uint32_t kRowsApart = 4;  // see decode_layers.comp
constexpr uint32_t kThreadsOnCpu = 64;
constexpr uint32_t kThreadsLeast = 64;  // with adapters; each fetches one word of seven modules' 56
constexpr uint32_t kHeadDimMax = 256;   // with subgroups of 8 and more: what a lane has of a tile is counted for it
// Joining parts is one more grid barrier in each layer: 1 to 6 % of a step (docs/PERFORMANCE.md).
constexpr uint32_t kTokensPerDecodeSplit = 320;
// Questions for one value; each is a trip to the device's memory, so a second or two in all.
constexpr uint32_t kPollsMax = 1u << 21;
static_assert(kPollsMax < 1u << 31);      // the shaders take its highest bit for a zero that compilers do not know
static_assert(kDecodeRankMax % 16 == 0);  // decode_lora.glsl takes two words of eight ranks at once

// Of decode_layers.comp; and of those of its modules that take adapters or attention's result in some type.
struct DecodeConstants {
    uint32_t threads, type, hidden, q_heads, kv_heads, head_dim, rotary_dim, ffn, splits, lanes, staged, partials,
        own_rows, workgroups, speakers;
};
struct DecodeConstantsOfType {
    DecodeConstants decode;
    uint32_t other_type;  // kLoraType or kAttentionType
};
struct DecodeConstantsOfFamily {
    DecodeConstantsOfType decode;
    uint32_t activation, norms_before, norms_after, wide_qk_norms;
    float softcap, multiplier, position_beta;
    uint32_t position_original;
};

// Modules of decode_layers.comp: without and with affinity, then likewise with families.
struct DecodeNames {
    const char *plain, *affinity, *families, *families_affinity;
};

DecodeNames names_of(DecodeModule module) {
    switch (module) {
        case DecodeModule::kLora:
            return {"decode_layers_lora", "decode_layers_lora_affinity", "decode_families_lora",
                    "decode_families_lora_affinity"};
        case DecodeModule::kBehind:
            return {"decode_behind", "decode_behind_affinity", "decode_families_behind",
                    "decode_families_behind_affinity"};
        default: return {"decode_layers", "decode_layers_affinity", "decode_families", "decode_families_affinity"};
    }
}

struct DecodeLaunch {
    uint32_t threads = 0, workgroups = 0, staged_words = 0, partials = 0, own_rows = 0;
    uint64_t shared_bytes = 0;
};

// Words that are told of A x for one product at most, as lows_max() in decode_lora.glsl.
uint32_t lows_max(const DecodeLayersShape& shape, uint32_t threads) {
    const auto parts = [&](uint32_t k) { return ceil_div(padded(k) / 8, threads); };
    return kDecodeRankMax *
           std::max({3 * parts(shape.hidden), parts(shape.n_q_heads * shape.head_dim), parts(shape.ffn)});
}

uint64_t layer_bytes(const DecodeLayersShape& shape) {
    const uint64_t q = uint64_t{shape.n_q_heads} * shape.head_dim, kv = uint64_t{shape.n_kv_heads} * shape.head_dim;
    return (q + 2 * kv + q + 3 * uint64_t{shape.ffn}) * shape.hidden * 2;
}

DecodeLaunch launch_of(const DeviceCapabilities& caps, const KernelSetOptions& options,
                       const DecodeLayersShape& shape) {
    DecodeLaunch launch;
    // A software device runs subgroups one after the other from barrier to barrier, so none may wait for another's
    // words.
    launch.threads = caps.is_cpu ? kThreadsOnCpu : within_limit(caps, kThreadsOnGpu);
    launch.workgroups = options.decode_workgroups != 0 ? options.decode_workgroups : caps.n_compute_units_hint;
    // Each says something in every product: see decode_layers.comp.
    const uint32_t q_size = shape.n_q_heads * shape.head_dim, n_qkv = q_size + 2 * shape.n_kv_heads * shape.head_dim;
    launch.workgroups = std::min(launch.workgroups, std::min({shape.hidden, n_qkv, padded(shape.ffn)}) / kRowsApart);
    if (launch.workgroups == 0 || caps.subgroup_size == 0) return launch;
    const uint32_t longest = std::max({padded(shape.hidden), padded(q_size), padded(shape.ffn)});
    const uint32_t n_subgroups = ceil_div(launch.threads, caps.subgroup_size);
    // Attention keeps a head there for each subgroup.
    launch.staged_words = std::max(round_up(longest / 8, caps.subgroup_size), n_subgroups * shape.head_dim / 4);
    const uint32_t most_rows =
        ceil_div(std::max({n_qkv, shape.hidden, padded(shape.ffn) * 2}), launch.workgroups) + 2 * kRowsApart;
    launch.partials = most_rows + n_subgroups * kRowsApart;
    launch.own_rows = ceil_div(shape.hidden, launch.workgroups) + kRowsApart;
    const uint64_t attention_bytes = uint64_t{shape.head_dim} * 4 * 6 + n_subgroups * 8 + 8;
    // And the addresses of two layers, sums of subgroups, and a few words.
    launch.shared_bytes = launch.staged_words * uint64_t{16} + (uint64_t{launch.partials} + launch.own_rows) * 4 +
                          attention_bytes + 2 * sizeof(DecodeLayer) + n_subgroups * 4 + 64;
    if (shape.has_families()) launch.shared_bytes += n_subgroups * 4;
    if (shape.lora) launch.shared_bytes += 2 * kLoraModules * sizeof(LoraModule) + 3 * kDecodeRankMax * sizeof(float);
    return launch;
}

}  // namespace

uint64_t PersistentPlanner::decode_channel_words(const DecodeLayersShape& shape, uint32_t n_splits_max) {
    const uint64_t q = uint64_t{shape.n_q_heads} * shape.head_dim,
                   qkv = q + 2 * uint64_t{shape.n_kv_heads} * shape.head_dim;
    return shape.hidden + qkv + q / 2 + padded(shape.ffn) / 2 +
           uint64_t{shape.n_q_heads} * n_splits_max * (shape.head_dim + 2) +
           4 * uint64_t{lows_max(shape, kThreadsLeast)};
}

bool PersistentPlanner::can_decode_layers(const DecodeLayersShape& shape) const {
    if (options().decode == PersistentDecode::kOff || options().batch_invariant || options().kv_type != KvType::kF16 ||
        shape.type == ScalarType::kF32)
        return false;
    const DeviceCapabilities& caps = capabilities();
    // Without being asked only where 16-bit activations are the rule, and where the driver tells how many
    // multiprocessors there are.
    if (options().decode == PersistentDecode::kAuto && (caps.is_cpu || !ladder().has(shape.type))) return false;
    const DecodeLaunch launch = launch_of(caps, options(), shape);
    return caps.int64_atomics && shape.head_dim % 8 == 0 && shape.head_dim <= kHeadDimMax &&
           shape.hidden % kRowsApart == 0 && shape.ffn % 2 == 0 && launch.workgroups != 0 &&
           (!shape.lora || launch.threads >= kThreadsLeast) && launch.threads % caps.subgroup_size == 0 &&
           caps.subgroup_size % 8 == 0 && launch.shared_bytes <= caps.shared_memory_bytes;
}

uint32_t PersistentPlanner::plan_decode_splits(const DecodeLayersShape& shape, uint32_t n_context) const {
    const DecodeLaunch launch = launch_of(capabilities(), options(), shape);
    return std::bit_floor(
        std::clamp(n_context / kTokensPerDecodeSplit, 1u, std::max(launch.workgroups / shape.n_q_heads, 1u)));
}

const Kernel* PersistentKernels::decode_kernel(DecodeModule module, const DecodeLayersShape& shape,
                                               uint32_t other_type) {
    CHECK(can_decode_layers(shape));
    const DeviceCapabilities& caps = capabilities();
    const DecodeLaunch launch = launch_of(caps, options(), shape);
    const bool affinity = caps.multiprocessor_ids && launch.workgroups <= kDecodeAffinities;
    const DecodeConstants constants{.threads = launch.threads,
                                    .type = static_cast<uint32_t>(shape.type),
                                    .hidden = shape.hidden,
                                    .q_heads = shape.n_q_heads,
                                    .kv_heads = shape.n_kv_heads,
                                    .head_dim = shape.head_dim,
                                    .rotary_dim = shape.rotary_dim,
                                    .ffn = shape.ffn,
                                    .splits = shape.n_splits,
                                    .lanes = caps.subgroup_size,
                                    .staged = launch.staged_words,
                                    .partials = launch.partials,
                                    .own_rows = launch.own_rows,
                                    .workgroups = launch.workgroups,
                                    .speakers = caps.is_cpu ? caps.subgroup_size : launch.threads};
    const DecodeNames names = names_of(module);
    const DecodeConstantsOfType with_type{constants, other_type};
    if (shape.has_families()) {
        const DecodeFamily& family = shape.family;
        const DecodeConstantsOfFamily of_family{.decode = with_type,
                                                .activation = static_cast<uint32_t>(family.activation),
                                                .norms_before = family.norms_before,
                                                .norms_after = family.norms_after,
                                                .wide_qk_norms = family.wide_qk_norms,
                                                .softcap = family.softcap,
                                                .multiplier = family.multiplier,
                                                .position_beta = family.position_beta,
                                                .position_original = family.position_original};
        return kernel(affinity ? names.families_affinity : names.families, of_family, caps.subgroup_size);
    }
    const char* name = affinity ? names.affinity : names.plain;
    return module == DecodeModule::kLayers ? kernel(name, constants, caps.subgroup_size)
                                           : kernel(name, with_type, caps.subgroup_size);
}

void PersistentKernels::decode_layers(Recorder& recorder, DecodeLayersParams params, const DecodeLayersShape& shape) {
    // decode_attention.glsl joins parts four at a time.
    CHECK(shape.n_splits <= 3 || std::has_single_bit(shape.n_splits));
    const DecodeLaunch launch = launch_of(capabilities(), options(), shape);
    const Kernel* k = decode_kernel(shape.lora ? DecodeModule::kLora : DecodeModule::kLayers, shape, shape.lora_type);
    if (k == nullptr) return;
    params.max_polls = kPollsMax;
    recorder.dispatch(*k, params, launch.workgroups, 1, 1,
                      {!shape.lora                       ? "decode_layers"
                       : shape.lora_type == kAnyLoraType ? "decode_layers_lora"
                                                         : "decode_layers_lora_of_type",
                       layer_bytes(shape) * params.n_layers, 0});
}

void PersistentKernels::decode_behind(Recorder& recorder, DecodeBehindParams params, const DecodeLayersShape& shape,
                                      ScalarType attention_type) {
    const Kernel* k = decode_kernel(DecodeModule::kBehind, shape, static_cast<uint32_t>(attention_type));
    if (k == nullptr) return;
    params.layers.max_polls = kPollsMax;
    recorder.dispatch(*k, params, launch_of(capabilities(), options(), shape).workgroups, 1, 1,
                      {"decode_behind", layer_bytes(shape), 0});
}

}  // namespace lorad::gpu
