#include "gpu/kernels/ladder_tests.h"

#include <array>
#include <bit>
#include <charconv>

#include "gpu/facts/start_record.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::gpu {
namespace {

// A KernelLadder is made of switches alone: a digit for each.
using Switches = std::array<bool, sizeof(KernelLadder)>;
static_assert(sizeof(bool) == 1 && std::is_trivially_copyable_v<KernelLadder>);

std::string digits_of(const KernelLadder& ladder) {
    std::string text;
    for (const bool on : std::bit_cast<Switches>(ladder)) text += on ? '1' : '0';
    return text;
}

}  // namespace

Status LadderTests::run() {
    StartRecord& record = device_.start_record();
    const std::string key = record_key();
    const auto known = device_.repeats_tests() ? std::nullopt : record.find(key);
    if (known && take_results(*known)) return ok_status();
    const size_t n_left_out = facts_.options.left_out.size();
    TRY(run_all());
    // What is left out by its module's name is not in the ladder, and so not in the results: it is tested again.
    if (is_conclusive_ && facts_.options.left_out.size() == n_left_out) record.put(key, results());
    return ok_status();
}

Status LadderTests::run_all() {
    TRY(registers());
    for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
        if (!facts_.ladder.has(type)) continue;
        tell_progress(type == ScalarType::kF16 ? "products of f16" : "products of bf16");
        TRY(products(type));
        TRY(residual(type));
        if (facts_.ladder.has_packed(type)) TRY(packed(type));
        if (facts_.options.has_experts && kernels_.experts.has_matrices(type)) TRY(experts(type));
        if (facts_.options.has_experts) TRY(packed_experts(type));
        tell_progress("adapters");
        TRY(shrink(type));
        TRY(gated_act(type));
    }
    tell_progress("attention");
    TRY(attention());
    TRY(attention_from_qkv());
    return recurrences();
}

// Of all that the tests and their results depend on beside device, driver and build, which the record knows.
std::string LadderTests::record_key() const {
    const DeviceCapabilities& caps = facts_.capabilities;
    const KernelSetOptions& options = facts_.options;
    std::string text =
        lorad::format("{} {} {} {} {} {} {} {} {}", digits_of(facts_.ladder), caps.small_workgroups, caps.subgroup_size,
                      caps.subgroup_size_min, caps.subgroup_size_max, caps.shared_memory_bytes,
                      caps.max_workgroup_invocations, caps.max_workgroup_subgroups, caps.n_compute_units_hint);
    text += lorad::format(" {} {} {} {} {} {} {} {} {} {} {} {} {}", fmt::join(options.left_out, ","),
                          options.batch_invariant, options.has_experts, static_cast<uint32_t>(options.kv_type),
                          options.lora_on_matrices, static_cast<uint32_t>(options.gated),
                          static_cast<uint32_t>(options.tile_attention), options.attention_tile_rows,
                          options.attention_heads, options.expand_rows, fmt::join(options.head_dims, ","),
                          options.head_group, options.packed_formats);
    for (const DeltaShape& shape : options.delta_shapes)
        text += lorad::format(" d{},{},{},{},{}", shape.key_heads, shape.value_heads, shape.key_size, shape.value_size,
                              shape.taps);
    for (const MambaShape& shape : options.mamba_shapes)
        text +=
            lorad::format(" m{},{},{},{},{}", shape.heads, shape.head_size, shape.groups, shape.state_size, shape.taps);
    if (options.spoil_delta_blocks) text += " spoiled";
    return "ladder-" + sha256_hex(std::as_bytes(std::span(text))).substr(0, 16);
}

std::string LadderTests::results() const { return digits_of(facts_.ladder) + told_; }

bool LadderTests::take_results(std::string_view text) {
    const std::string_view digits = text.substr(0, text.find('\t'));
    const Switches offered = std::bit_cast<Switches>(facts_.ladder);
    if (digits.size() != offered.size()) return false;
    Switches passed{};
    for (size_t i = 0; i < digits.size(); ++i) {
        if (digits[i] != '0' && digits[i] != '1') return false;
        passed[i] = digits[i] == '1';
        if (passed[i] && !offered[i]) return false;
    }
    facts_.ladder = std::bit_cast<KernelLadder>(passed);
    for (std::string_view rest = text.substr(digits.size()); !rest.empty();) {
        rest.remove_prefix(1);
        const std::string_view one = rest.substr(0, rest.find('\t'));
        log_warn("kernels: {} on {}: it failed its self-test at an earlier start, and is not used", one,
                 device_.capabilities().name);
        rest.remove_prefix(one.size());
    }
    log_debug("kernels: results of the self-tests are those of an earlier start");
    return true;
}

// So that a start which compiles for long says how far it is.
void LadderTests::tell_progress(std::string_view what) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_told_ < std::chrono::seconds(2)) return;
    last_told_ = now;
    log_info("testing kernels: {}", what);
}

void LadderTests::remember_left_out(std::string_view kernel, const self_test::Deviation& deviation) {
    is_conclusive_ = is_conclusive_ && deviation.failure.empty();
    told_ += lorad::format("\t{} ({})", kernel, deviation.text());
}

void LadderTests::tell_left_out(std::string_view kernel, const Device& device, const self_test::Deviation& deviation) {
    remember_left_out(kernel, deviation);
    self_test::tell_left_out(kernel, device, deviation);
}

void LadderTests::tell_left_out_by_lanes(std::string_view kernel, const Device& device,
                                         const self_test::Deviation& deviation) {
    if (self_test::tell_left_out_by_lanes(kernel, device, deviation)) remember_left_out(kernel, deviation);
}

}  // namespace lorad::gpu
