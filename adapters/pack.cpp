#include "adapters/pack.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "gpu/kernels/kernels.h"
#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

using model::DType;
using model::Tensor;

constexpr uint64_t kAlignment = 256;

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The matrices of one name in the file; several modules share it where the name is fused.
struct MatrixPair {
    const Tensor* a = nullptr;
    const Tensor* b = nullptr;
    uint32_t rank = 0, k = 0, n = 0;
    DType type = DType::kF32;
    size_t block = 0;
    uint64_t a_offset = 0, b_offset = 0;

    uint32_t k_stride() const { return gpu::padded(k); }
    uint32_t b_stride() const { return gpu::round_up(rank, 8); }
    uint64_t a_bytes() const { return uint64_t{rank} * k_stride() * model::bytes_of(type); }
    uint64_t b_bytes() const { return uint64_t{n} * b_stride() * model::bytes_of(type); }
    uint64_t bytes() const { return aligned(a_bytes()) + aligned(b_bytes()); }
};

struct Layout {
    std::vector<MatrixPair> pairs;
    std::vector<uint64_t> block_bytes;
    std::map<const Tensor*, size_t> pair_of_a;
};

Layout lay_out(const CheckedAdapter& adapter, uint64_t block_bytes_max) {
    Layout layout;
    for (const LayerPlan& layer : adapter.layers) {
        for (const ModulePlan& module : layer) {
            if (module.a == nullptr || layout.pair_of_a.contains(module.a)) continue;
            MatrixPair pair;
            pair.a = module.a;
            pair.b = module.b;
            pair.rank = module.rank;
            pair.k = module.k;
            pair.n = static_cast<uint32_t>(module.b->shape[0]);
            pair.type = module.a->dtype == module.b->dtype ? module.a->dtype : DType::kF32;
            if (layout.block_bytes.empty() || layout.block_bytes.back() + pair.bytes() > block_bytes_max) {
                layout.block_bytes.push_back(0);
            }
            pair.block = layout.block_bytes.size() - 1;
            pair.a_offset = layout.block_bytes.back();
            pair.b_offset = pair.a_offset + aligned(pair.a_bytes());
            layout.block_bytes.back() += pair.bytes();
            layout.pair_of_a.emplace(module.a, layout.pairs.size());
            layout.pairs.push_back(pair);
        }
    }
    return layout;
}

// One 16-bit number as f32 bits, exactly.
uint32_t widened(uint16_t bits, DType type) {
    if (type == DType::kBF16) return uint32_t{bits} << 16;
    const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
    uint32_t exponent = (bits >> 10) & 0x1f;
    uint32_t mantissa = bits & 0x3ff;
    if (exponent == 0) {
        if (mantissa == 0) return sign;
        // Subnormal in f16, normal in f32.
        exponent = 1;
        while ((mantissa & 0x400) == 0) {
            mantissa <<= 1;
            --exponent;
        }
        mantissa &= 0x3ff;
    }
    return sign | ((exponent + 112) << 23) | (mantissa << 13);
}

// The tensor as [rows][stride] of `type`, zeros behind each row.
std::vector<std::byte> padded(const Tensor& tensor, uint32_t columns, uint32_t stride, DType type) {
    const uint64_t rows = tensor.shape[0];
    const size_t bytes = model::bytes_of(type);
    std::vector<std::byte> out(rows * stride * bytes);
    for (uint64_t row = 0; row < rows; ++row) {
        std::byte* to = out.data() + row * stride * bytes;
        if (tensor.dtype == type) {
            std::memcpy(to, tensor.data.data() + row * columns * bytes, columns * bytes);
            continue;
        }
        for (uint32_t column = 0; column < columns; ++column) {
            uint16_t narrow = 0;
            std::memcpy(&narrow, tensor.data.data() + (row * columns + column) * sizeof(narrow), sizeof(narrow));
            const uint32_t wide = widened(narrow, tensor.dtype);
            std::memcpy(to + column * sizeof(wide), &wide, sizeof(wide));
        }
    }
    return out;
}

Status upload_matrix(WeightStore& store, WeightBlock& block, uint64_t offset, const Tensor& tensor, uint32_t columns,
                     uint32_t stride, DType type) {
    if (columns == stride && tensor.dtype == type) return store.upload(block, offset, tensor.data);
    return store.upload(block, offset, padded(tensor, columns, stride, type));
}

Status upload_pairs(WeightStore& store, const Layout& layout, PackedAdapter& packed) {
    for (const MatrixPair& pair : layout.pairs) {
        WeightBlock& block = *packed.blocks[pair.block];
        TRY(upload_matrix(store, block, pair.a_offset, *pair.a, pair.k, pair.k_stride(), pair.type));
        TRY(upload_matrix(store, block, pair.b_offset, *pair.b, pair.rank, pair.b_stride(), pair.type));
    }
    return ok_status();
}

}  // namespace

uint64_t packed_bytes(const CheckedAdapter& adapter) {
    uint64_t bytes = 0;
    for (const uint64_t block : lay_out(adapter, UINT64_MAX).block_bytes) bytes += block;
    return bytes;
}

Result<PackedAdapter> pack_adapter(const CheckedAdapter& adapter, WeightStore& store) {
    const Layout layout = lay_out(adapter, store.block_bytes_max());
    PackedAdapter packed;
    for (const uint64_t bytes : layout.block_bytes) {
        TRY_ASSIGN(std::unique_ptr<WeightBlock> block, store.allocate(bytes));
        packed.blocks.push_back(std::move(block));
        packed.device_bytes += bytes;
    }
    const Status uploaded = upload_pairs(store, layout, packed);
    // Also after a failure: the blocks may not be freed under copies that are still running.
    const Status arrived = store.finish();
    TRY(uploaded);
    TRY(arrived);
    for (const LayerPlan& layer : adapter.layers) {
        for (const ModulePlan& module : layer) {
            model::LoraModuleView view;
            if (module.a != nullptr) {
                const MatrixPair& pair = layout.pairs[layout.pair_of_a.at(module.a)];
                const gpu::DeviceAddress base = packed.blocks[pair.block]->address();
                const uint64_t row_bytes = uint64_t{pair.b_stride()} * model::bytes_of(pair.type);
                view.a = base + pair.a_offset;
                view.b = base + pair.b_offset + module.b_row_begin * row_bytes;
                view.rank = module.rank;
                view.scale = module.scale;
                view.weight_type = model::weight_type_of(pair.type);
            }
            packed.view.modules.push_back(view);
        }
    }
    return packed;
}

}  // namespace lorad::adapters
