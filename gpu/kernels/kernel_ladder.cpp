#include "gpu/kernels/kernel_ladder.h"

#include <algorithm>

#include "gpu/pipeline.h"
#include "proto/base/format.h"

namespace lorad::gpu {

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

bool KernelLadder::has(RungId rung, ScalarType type) const {
    if (!switches_[at(rung, type)]) return false;
    return std::ranges::all_of(row_of(rung).needs,
                               [&](const Need& need) { return need.kind != Need::Kind::kOn || has(need.rung, type); });
}

bool KernelLadder::has(RungId rung) const {
    for (uint32_t type = 0; type < kTypes; ++type) {
        if (has(rung, static_cast<ScalarType>(type))) return true;
    }
    return false;
}

KernelPath KernelLadder::path() const {
    if (has(RungId::kWarpgroups)) return KernelPath::kWarpgroup;
    if (has(RungId::kMatrices2)) return KernelPath::kCoopmat2;
    return has(RungId::kMatrices) ? KernelPath::kCoopmat : KernelPath::kPortable;
}

KernelLadder& KernelLadder::add(RungId rung, ScalarType type) {
    switches_.set(at(rung, type));
    return *this;
}

KernelLadder& KernelLadder::drop(RungId rung, ScalarType type) {
    switches_.reset(at(rung, type));
    return *this;
}

KernelLadder& KernelLadder::drop(RungId rung) {
    for (uint32_t type = 0; type < kTypes; ++type) drop(rung, static_cast<ScalarType>(type));
    return *this;
}

std::optional<KernelLadder> KernelLadder::of_digits(std::string_view digits) {
    KernelLadder ladder;
    if (digits.size() != ladder.switches_.size() || digits.find_first_not_of("01") != std::string_view::npos)
        return std::nullopt;
    ladder.switches_ = decltype(switches_)(digits.data(), digits.size());
    return ladder;
}

namespace {

// Climbs the table, row by row, and keeps what the device lacks for each rung that it has not.
class LadderBuilder {
  public:
    explicit LadderBuilder(const RungQuestion& question) : question_(question) {
        for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16, ScalarType::kF32}) {
            for (const RungRow& row : rung_rows()) {
                if (row.has_types == (type != ScalarType::kF32)) add(row, type);
            }
        }
    }

    KernelLadder ladder() const { return ladder_; }
    std::vector<Rung> rungs() { return std::move(rungs_); }

  private:
    void add(const RungRow& row, ScalarType type) {
        if (!row.is_beside_matrices && ladder_.has(ScalarType::kF16)) return;
        Missing missing;
        want(row, type, missing);
        if (row.has_switch && missing.is_nothing()) ladder_.add(row.id, type);
        const bool is_small = row.small_name != nullptr && question_.caps.small_workgroups;
        rungs_.push_back({row.part_of(type), is_small ? row.small_name : row.name, row.gain, missing.take()});
    }

    void want(const RungRow& row, ScalarType type, Missing& missing) const {
        for (const Need& need : row.needs) {
            switch (need.kind) {
                case Need::Kind::kNothing: break;
                case Need::Kind::kDevice: need.device(question_, type, missing); break;
                case Need::Kind::kModule: {
                    const std::string module = row.module_of(need, type);
                    missing.want(
                        has_kernel_module(module),
                        lorad::format("kernel {}, which the shader compiler of this build could not make", module));
                    want_kept(module, missing);
                    break;
                }
                case Need::Kind::kProgram: want_kept(row.module_of(need, type), missing); break;
                case Need::Kind::kOn:
                case Need::Kind::kWith:
                    if (need.name != nullptr)
                        missing.want(ladder_.has(need.rung, type), need.name);
                    else
                        want(row_of(need.rung), type, missing);
                    break;
            }
        }
    }
    void want_kept(const std::string& module, Missing& missing) const {
        missing.want(!question_.is_left_out(module), lorad::format("kernel {}, which was left out", module));
    }

    const RungQuestion question_;
    KernelLadder ladder_;
    std::vector<Rung> rungs_;
};

}  // namespace

KernelLadder ladder_of(const DeviceCapabilities& capabilities, KernelPath path, std::span<const std::string> left_out) {
    return LadderBuilder({capabilities, path, left_out}).ladder();
}
std::vector<Rung> rungs_of(const DeviceCapabilities& capabilities, KernelPath path,
                           std::span<const std::string> left_out) {
    return LadderBuilder({capabilities, path, left_out}).rungs();
}

}  // namespace lorad::gpu
