#include "adapters/pack.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "gpu/kernels/kernels.h"
#include "proto/base/format.h"

namespace lorad::adapters {

namespace {

using model::DType;
using model::Tensor;

constexpr uint64_t kAlignment = 256;
static_assert(PackedImage::kBase % kAlignment == 0);

uint64_t aligned(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// The matrices of one name in the file; several modules share it where the name is fused.
struct MatrixPair {
    const Tensor* a = nullptr;
    const Tensor* b = nullptr;
    uint32_t rank = 0, k = 0, n = 0;
    DType type = DType::kF32;
    uint64_t a_offset = 0, b_offset = 0;  // in the image

    uint32_t k_stride() const { return gpu::padded(k); }
    uint32_t b_stride() const { return gpu::round_up(rank, 8); }
    uint64_t a_bytes() const { return uint64_t{rank} * k_stride() * model::bytes_of(type); }
    uint64_t b_bytes() const { return uint64_t{n} * b_stride() * model::bytes_of(type); }
};

struct Layout {
    std::vector<MatrixPair> pairs;
    std::vector<uint64_t> pieces;
    uint64_t n_bytes = 0;
    std::map<const Tensor*, size_t> pair_of_a;

    uint64_t add_piece(uint64_t bytes) {
        pieces.push_back(n_bytes);
        n_bytes += aligned(bytes);
        return pieces.back();
    }
};

Layout lay_out(const CheckedAdapter& adapter) {
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
            pair.a_offset = layout.add_piece(pair.a_bytes());
            pair.b_offset = layout.add_piece(pair.b_bytes());
            layout.pair_of_a.emplace(module.a, layout.pairs.size());
            layout.pairs.push_back(pair);
        }
    }
    return layout;
}

// The tensor as [rows][stride] of `type`; what lies behind each row is zero already.
void write_matrix(std::byte* to, const Tensor& tensor, uint32_t columns, uint32_t stride, DType type) {
    const size_t to_bytes = model::bytes_of(type), from_bytes = model::bytes_of(tensor.dtype);
    if (tensor.dtype == type && columns == stride) {
        std::memcpy(to, tensor.data.data(), tensor.data.size());
        return;
    }
    for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
        std::byte* row_to = to + row * stride * to_bytes;
        const std::byte* from = tensor.data.data() + row * columns * from_bytes;
        if (tensor.dtype == type) {
            std::memcpy(row_to, from, columns * to_bytes);
            continue;
        }
        for (uint32_t column = 0; column < columns; ++column) {
            const float wide = model::widen(tensor.dtype, from + column * from_bytes);
            std::memcpy(row_to + column * sizeof(wide), &wide, sizeof(wide));
        }
    }
}

model::LoraModuleView view_of(const ModulePlan& module, const Layout& layout) {
    model::LoraModuleView view;
    if (module.a == nullptr) return view;
    const MatrixPair& pair = layout.pairs[layout.pair_of_a.at(module.a)];
    const uint64_t row_bytes = uint64_t{pair.b_stride()} * model::bytes_of(pair.type);
    view.a = PackedImage::kBase + pair.a_offset;
    view.b = PackedImage::kBase + pair.b_offset + module.b_row_begin * row_bytes;
    view.rank = module.rank;
    view.scale = module.scale;
    view.weight_type = model::weight_type_of(pair.type);
    return view;
}

void for_each_address(model::AdapterView& view, const std::function<void(gpu::DeviceAddress&)>& change) {
    for (model::LoraModuleView& module : view.modules) {
        for (gpu::DeviceAddress* address : {&module.a, &module.b, &module.gain, &module.bias}) change(*address);
    }
    model::AdapterExtrasView& extras = view.extras;
    for (gpu::DeviceAddress* address :
         {&extras.embed_table, &extras.embed_a, &extras.embed_b, &extras.token_ids, &extras.token_rows, &extras.head_table,
          &extras.head_a, &extras.head_b, &extras.head_bias, &extras.final_norm}) {
        change(*address);
    }
    for (model::AdapterExtrasView::LayerNorms& norms : extras.norms) {
        for (gpu::DeviceAddress* address : {&norms.input, &norms.post_attention, &norms.q, &norms.k}) change(*address);
    }
}

// The image cut into blocks of at most block_bytes_max where pieces begin; a piece that is larger gets a block of its own,
// which the store then refuses.
std::vector<uint64_t> block_begins(const PackedImage& image, uint64_t block_bytes_max) {
    std::vector<uint64_t> begins;
    for (size_t i = 0; i < image.pieces.size(); ++i) {
        const uint64_t end = i + 1 < image.pieces.size() ? image.pieces[i + 1] : image.n_bytes;
        if (begins.empty() || end - begins.back() > block_bytes_max) begins.push_back(image.pieces[i]);
    }
    return begins;
}

}  // namespace

uint64_t packed_bytes(const CheckedAdapter& adapter) { return lay_out(adapter).n_bytes; }

Result<PackedImage> pack(const CheckedAdapter& adapter) {
    const Layout layout = lay_out(adapter);
    PackedImage image;
    // Zero, and so without touching pages that are only padding.
    image.bytes.reset(static_cast<std::byte*>(std::calloc(std::max<uint64_t>(layout.n_bytes, 1), 1)));
    if (!image.bytes) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("the packed adapter: {} bytes of host memory are not there", layout.n_bytes));
    }
    image.n_bytes = layout.n_bytes;
    image.pieces = layout.pieces;
    for (const MatrixPair& pair : layout.pairs) {
        write_matrix(image.bytes.get() + pair.a_offset, *pair.a, pair.k, pair.k_stride(), pair.type);
        write_matrix(image.bytes.get() + pair.b_offset, *pair.b, pair.rank, pair.b_stride(), pair.type);
    }
    for (const LayerPlan& layer : adapter.layers) {
        for (const ModulePlan& module : layer) image.view.modules.push_back(view_of(module, layout));
    }
    return image;
}

Result<PlacedAdapter> place(const PackedImage& image, WeightStore& store) {
    const std::vector<uint64_t> begins = block_begins(image, store.block_bytes_max());
    const auto end_of = [&](size_t block) { return block + 1 < begins.size() ? begins[block + 1] : image.n_bytes; };
    PlacedAdapter placed;
    for (size_t i = 0; i < begins.size(); ++i) {
        TRY_ASSIGN(std::unique_ptr<WeightBlock> block, store.allocate(end_of(i) - begins[i]));
        placed.blocks.push_back(std::move(block));
    }
    placed.device_bytes = image.n_bytes;
    Status uploaded = ok_status();
    for (size_t i = 0; i < begins.size() && uploaded.ok(); ++i) {
        uploaded = store.upload(*placed.blocks[i], 0, image.span().subspan(begins[i], end_of(i) - begins[i]));
    }
    // Also after a failure: the blocks may not be freed under copies that are still running.
    const Status arrived = store.finish();
    TRY(uploaded);
    TRY(arrived);
    placed.view = image.view;
    for_each_address(placed.view, [&](gpu::DeviceAddress& address) {
        if (address == 0) return;
        const uint64_t offset = address - PackedImage::kBase;
        const auto block = static_cast<size_t>(std::ranges::upper_bound(begins, offset) - begins.begin()) - 1;
        address = placed.blocks[block]->address() + (offset - begins[block]);
    });
    const auto has_gain = [](const model::LoraModuleView& module) { return module.gain != 0; };
    if (std::ranges::any_of(placed.view.modules, has_gain)) TRY(store.finish_gains(placed.view));
    return placed;
}

}  // namespace lorad::adapters
