#include "adapters/plan/plan_checks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <optional>

#include "model/files/tensor_map.h"
#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

using model::Tensor;

// Trained weights are below a thousand; sums of products of what is far beyond overflow on the device.
constexpr float kWeightMax = 0x1p20f;

// Returns the element index of the first value that is not finite, or is beyond kWeightMax.
std::optional<uint64_t> first_unusable(const Tensor& tensor) {
    // Without the sign bit, bits of floats are in the order of their values, infinity and NaN behind all others.
    const auto scan = [&]<typename Word>(Word beyond) -> std::optional<uint64_t> {
        constexpr auto kMagnitude = static_cast<Word>(static_cast<Word>(~Word{0}) >> 1);
        for (uint64_t begin = 0; begin < tensor.data.size(); begin += 4096) {
            Word words[4096 / sizeof(Word)] = {};
            const size_t bytes = std::min<size_t>(4096, tensor.data.size() - begin);
            std::memcpy(words, tensor.data.data() + begin, bytes);
            bool any = false;
            for (const Word word : words) any |= static_cast<Word>(word & kMagnitude) >= beyond;
            if (!any) continue;
            for (size_t i = 0; i < bytes / sizeof(Word); ++i) {
                if (static_cast<Word>(words[i] & kMagnitude) >= beyond) return begin / sizeof(Word) + i;
            }
        }
        return std::nullopt;
    };
    switch (tensor.dtype) {
        case model::DType::kF32: return scan(std::bit_cast<uint32_t>(kWeightMax) + 1);
        case model::DType::kF16: return scan(uint16_t{0x7c00});  // no number of it is so large
        case model::DType::kBF16: return scan(static_cast<uint16_t>((std::bit_cast<uint32_t>(kWeightMax) >> 16) + 1));
        default: return std::nullopt;
    }
}

}  // namespace

bool is_same(const Tensor& a, const Tensor& b) {
    return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.data, b.data);
}

bool is_transposed(const Tensor& a, const Tensor& b) {
    if (a.shape.size() != 2 || b.shape.size() != 2 || a.shape[0] != b.shape[1] || a.shape[1] != b.shape[0])
        return false;
    for (uint64_t row = 0; row < a.shape[0]; ++row) {
        for (uint64_t column = 0; column < a.shape[1]; ++column) {
            if (number_at(a, row * a.shape[1] + column) != number_at(b, column * a.shape[0] + row)) return false;
        }
    }
    return true;
}

void PlanChecks::misfit(std::string tensor, std::string expected, std::string what, bool unsupported) {
    // A small file can name very many; who has read a thousand knows.
    if (misfits.size() >= kMisfitsMax) {
        if (!unsupported) misfits.back().unsupported = false;
        return;
    }
    misfits.push_back({std::move(tensor), std::move(expected), std::move(what), unsupported});
}

void PlanChecks::sort_in(const Tensor& tensor) {
    const ParsedName parsed = parse_tensor_name(tensor.name, base.config);
    if (!parsed.expected.empty()) return misfit(tensor.name, parsed.expected, parsed.found, parsed.unsupported);
    if (parsed.is_elsewhere) {
        ++n_elsewhere;
        return;
    }
    if (parsed.prefix != "model.") prefix = parsed.prefix;
    const Tensor*& place = found[parsed.place][static_cast<size_t>(parsed.role)];
    // With save_embedding_layers PEFT saves a trained table once as its copy and once more under its plain name.
    if (place != nullptr && parsed.role == TensorRole::kWeight && is_same(*place, tensor)) return;
    if (place != nullptr) return misfit(tensor.name, "one tensor for this matrix", format("also {}", place->name));
    place = &tensor;
}

std::string PlanChecks::peft_name(const Place& place) const {
    return model::name_in_files(name_of(place, prefix), base.config);
}

const Tensor* PlanChecks::find(const Place& place, TensorRole role) const {
    const auto entry = found.find(place);
    return entry == found.end() ? nullptr : entry->second[static_cast<size_t>(role)];
}

bool PlanChecks::has_single_experts() const {
    return std::ranges::any_of(found, [](const auto& entry) {
        return entry.first.kind == PlaceKind::kLinear && entry.first.linear >= kExpertGate;
    });
}

bool PlanChecks::has_low_rank(const Place& place) const {
    for (const TensorRole role : {TensorRole::kA, TensorRole::kB, TensorRole::kEmbeddingA, TensorRole::kEmbeddingB}) {
        if (find(place, role) != nullptr) return true;
    }
    return false;
}

const Tensor* PlanChecks::fitting(const Place& place, TensorRole role, std::initializer_list<uint64_t> shape) {
    const std::vector<uint64_t> expected(shape);
    const Tensor* tensor = find(place, role);
    if (tensor == nullptr) {
        misfit(tensor_name(place, role), model::shape_text(expected), "none");
        return nullptr;
    }
    if (!model::is_weight_type(tensor->dtype)) {
        misfit(tensor->name, "type F32, F16 or BF16", std::string(model::name_of(tensor->dtype)));
        return nullptr;
    }
    if (tensor->shape != expected) {
        misfit(tensor->name, model::shape_text(expected), model::shape_text(tensor->shape));
        return nullptr;
    }
    if (const auto bad = base.checks_numbers ? first_unusable(*tensor) : std::nullopt) {
        const float value = number_at(*tensor, *bad);
        const bool is_finite = std::isfinite(value);
        const std::string what = is_finite ? format("{:g}", value) : "infinity or NaN";
        const uint64_t columns = expected.size() == 2 ? expected[1] : 1;
        misfit(tensor->name, is_finite ? format("numbers up to {:g}", kWeightMax) : "finite numbers",
               expected.size() == 2 ? format("{} at [{}, {}]", what, *bad / columns, *bad % columns)
                                    : format("{} at [{}]", what, *bad));
        return nullptr;
    }
    return tensor;
}

}  // namespace lorad::adapters
