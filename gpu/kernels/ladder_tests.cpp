#include "gpu/kernels/ladder_tests.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "gpu/facts/start_record.h"
#include "gpu/kernels/self_test.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/base/log.h"

namespace lorad::gpu {

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
    for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16, ScalarType::kF32}) {
        std::vector<RungTest*> done;
        for (const RungRow& row : rung_rows()) {
            if (row.has_types != (type != ScalarType::kF32) || row.test == nullptr) continue;
            if (row.has_switch && !facts_.ladder.has(row.id, type)) continue;
            if (std::ranges::find(done, row.test) != done.end()) continue;
            done.push_back(row.test);
            if (row.has_switch || facts_.options.has_experts) tell_progress(row.part_of(type));
            TRY(row.test(*this, type));
        }
    }
    return ok_status();
}

// Of all that the tests and their results depend on beside device, driver and build, which the record knows.
std::string LadderTests::record_key() const {
    const DeviceCapabilities& caps = facts_.capabilities;
    const KernelSetOptions& options = facts_.options;
    std::string text =
        lorad::format("{} {} {} {} {} {} {} {} {}", facts_.ladder.digits(), caps.small_workgroups, caps.subgroup_size,
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

std::string LadderTests::results() const { return facts_.ladder.digits() + told_; }

bool LadderTests::take_results(std::string_view text) {
    const std::string_view digits = text.substr(0, text.find('\t'));
    const std::optional<KernelLadder> passed = KernelLadder::of_digits(digits);
    if (!passed || !passed->is_within(facts_.ladder)) return false;
    facts_.ladder = *passed;
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

void LadderTests::tell_left_out(std::string_view kernel, const self_test::Deviation& deviation) {
    remember_left_out(kernel, deviation);
    self_test::tell_left_out(kernel, device_, deviation);
}

void LadderTests::leave_out(RungId rung, ScalarType type, std::string_view kernel,
                            const self_test::Deviation& deviation) {
    facts_.ladder.drop(rung, type);
    tell_left_out(kernel, deviation);
}

void LadderTests::leave_out_by_lanes(RungId rung, ScalarType type, std::string_view kernel,
                                     const self_test::Deviation& deviation) {
    facts_.ladder.drop(rung, type);
    if (self_test::tell_left_out_by_lanes(kernel, device_, deviation)) remember_left_out(kernel, deviation);
}

void LadderTests::leave_out_quietly(RungId rung, ScalarType type, std::string_view kernel,
                                    const self_test::Deviation& deviation) {
    facts_.ladder.drop(rung, type);
    is_conclusive_ = is_conclusive_ && deviation.failure.empty();
    log_debug("kernels: {} does not suit {} ({})", kernel, device_.capabilities().name, deviation.text());
}

}  // namespace lorad::gpu
