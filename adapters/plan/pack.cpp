#include "adapters/plan/pack.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "gpu/kernels/kernels.h"
#include "proto/base/format.h"
#include "proto/base/rounding.h"

namespace lorad::adapters {

namespace {

using model::DType;
using model::Tensor;

constexpr uint64_t kAlignment = 256;
static_assert(PackedImage::kBase % kAlignment == 0);

// Where an image's pieces lie, and what fills them: addresses are known before anything is written.
class Layout {
  public:
    explicit Layout(const CheckedAdapter& adapter) : plan_(adapter.plan) {
        for (const LayerPlan& layer : plan_.layers) {
            for (uint32_t module = 0; module < plan_.n_modules; ++module)
                view.modules.push_back(view_of(layer[module]));
        }
        if (!plan_.extras.is_used()) return;
        view.has_extras = true;
        lay_out_embedding();
        lay_out_head();
        lay_out_norms();
    }

    void fill(std::byte* image) const {
        for (const Piece& piece : pieces) piece.write(image + piece.offset);
    }

    struct Piece {
        uint64_t offset = 0;  // in the image
        std::function<void(std::byte*)> write;
    };
    std::vector<Piece> pieces;
    uint64_t n_bytes = 0;
    model::AdapterView view;

  private:
    gpu::DeviceAddress add(uint64_t bytes, std::function<void(std::byte*)> write) {
        pieces.push_back({n_bytes, std::move(write)});
        n_bytes += round_up(bytes, kAlignment);
        return PackedImage::kBase + pieces.back().offset;
    }

    // [n_rows][stride]; the tensor's rows, in its type or widened.
    gpu::DeviceAddress add_matrix(const Tensor& tensor, uint64_t n_rows, uint32_t stride, DType type) {
        return once(&tensor, [&] {
            return add(n_rows * stride * model::bytes_of(type),
                       [&tensor, stride, type](std::byte* to) { write_matrix(to, tensor, stride, type); });
        });
    }
    gpu::DeviceAddress add_table(const Tensor& tensor) {
        return add_matrix(tensor, gpu::padded(static_cast<uint32_t>(tensor.shape[0])),
                          gpu::padded(static_cast<uint32_t>(tensor.shape[1])), tensor.dtype);
    }
    // f32 [n rounded up to 64]
    gpu::DeviceAddress add_vector(const Tensor& tensor, float plus = 0.0f) {
        return once(&tensor, [&] {
            return add(gpu::padded(static_cast<uint32_t>(tensor.shape[0])) * sizeof(float),
                       [&tensor, plus](std::byte* to) {
                           for (uint64_t i = 0; i < tensor.shape[0]; ++i) {
                               const float value = number_at(tensor, i) + plus;
                               std::memcpy(to + i * sizeof(float), &value, sizeof(value));
                           }
                       });
        });
    }
    gpu::DeviceAddress add_values(const std::vector<float>& values) {
        return add(gpu::padded(static_cast<uint32_t>(values.size())) * sizeof(float),
                   [&values](std::byte* to) { std::memcpy(to, values.data(), values.size() * sizeof(float)); });
    }
    // The module's rows of a tensor with one or two dimensions, as [n][stride] of `type`.
    gpu::DeviceAddress add_rows(const Tensor& tensor, const ModulePlan& module, uint32_t stride, DType type) {
        const uint64_t row_bytes = uint64_t{stride} * model::bytes_of(type);
        return add(gpu::padded(module.n) * row_bytes, [&tensor, &module, row_bytes, type](std::byte* to) {
            const uint64_t columns = tensor.shape.size() == 2 ? tensor.shape[1] : 1;
            for (const model::RowRange& range : module.rows) {
                for (uint64_t row = range.begin; row < uint64_t{range.begin} + range.n; ++row, to += row_bytes) {
                    for (uint64_t column = 0; column < columns; ++column)
                        write_number(to + column * model::bytes_of(type), tensor, row * columns + column, type);
                }
            }
        });
    }
    // Tensors that several modules share are laid out once.
    gpu::DeviceAddress once(const Tensor* tensor, const auto& lay_out) {
        const auto known = addresses_.find(tensor);
        if (known != addresses_.end()) return known->second;
        const gpu::DeviceAddress address = lay_out();
        addresses_.emplace(tensor, address);
        return address;
    }

    model::LoraModuleView view_of(const ModulePlan& module) {
        model::LoraModuleView made;
        if (!module.experts.empty()) add_experts(module, made);
        if (module.a != nullptr) {
            const DType type = common_type(*module.a, *module.b);
            const uint32_t b_stride = round_up(module.rank, 8);
            made.a = add_matrix(*module.a, module.rank, gpu::padded(module.k), type);
            made.b = !module.rows.empty() ? add_rows(*module.b, module, b_stride, type)
                                          : add_matrix(*module.b, module.b->shape[0], b_stride, type) +
                                                uint64_t{module.row_begin} * b_stride * model::bytes_of(type);
            made.rank = module.rank;
            made.scale = module.scale;
            made.weight_type = model::weight_type_of(type);
        }
        if (module.magnitude != nullptr) {
            made.gain = !module.rows.empty() ? add_rows(*module.magnitude, module, 1, DType::kF32)
                                             : add_vector(*module.magnitude) + module.row_begin * sizeof(float);
        }
        if (!module.bias.empty()) made.bias = add_values(module.bias);
        return made;
    }

    // A [experts][rank][k_stride], B [experts][n][rank rounded up to 8]; what no piece fills is zero. A router is one
    // expert.
    void add_experts(const ModulePlan& module, model::LoraModuleView& made) {
        const ExpertPiece& first = module.experts.front();
        bool is_alike = true;
        uint32_t n_experts = 1;
        for (const ExpertPiece& piece : module.experts) {
            is_alike =
                is_alike && piece.a->dtype == first.a->dtype && piece.b->dtype == first.a->dtype && piece.scale == 1.0f;
            n_experts = std::max({n_experts, piece.n_experts, piece.expert + 1});
        }
        n_experts = std::max(n_experts, module.n_experts);
        const DType type = is_alike ? first.a->dtype : DType::kF32;
        const uint64_t bytes = model::bytes_of(type), a_stride = gpu::padded(module.k),
                       b_stride = round_up(module.rank, 8);
        made.a = add(n_experts * module.rank * a_stride * bytes, [&module, type, bytes, a_stride](std::byte* to) {
            for (const ExpertPiece& piece : module.experts) {
                for (uint64_t j = 0; j < piece.rank; ++j) {
                    std::byte* row =
                        to + ((uint64_t{piece.expert} * module.rank + piece.rank_begin + j) * a_stride) * bytes;
                    for (uint64_t i = 0; i < module.k; ++i)
                        write_number(row + i * bytes, *a_of(piece), a_element(piece, j, i, module.k), type);
                }
            }
        });
        made.b = add(n_experts * module.n * b_stride * bytes, [&module, type, bytes, b_stride](std::byte* to) {
            for (const ExpertPiece& piece : module.experts) {
                for (uint64_t i = 0; i < piece.n; ++i) {
                    std::byte* row =
                        to + ((uint64_t{piece.expert} * module.n + piece.row_begin + i) * b_stride + piece.rank_begin) *
                                 bytes;
                    for (uint64_t j = 0; j < piece.rank; ++j)
                        write_scaled(row + j * bytes, *b_of(piece), b_element(piece, i, j), type, piece.scale);
                }
            }
        });
        made.rank = module.rank;
        made.scale = module.scale;
        made.weight_type = model::weight_type_of(type);
    }
    // The tensor and the element with rank j and input i of A, and with output i and rank j of B.
    static const Tensor* a_of(const ExpertPiece& piece) {
        return piece.form == ExpertForm::kStackedSwapped ? piece.b : piece.a;
    }
    static const Tensor* b_of(const ExpertPiece& piece) {
        return piece.form == ExpertForm::kStackedSwapped ? piece.a : piece.b;
    }
    static uint64_t a_element(const ExpertPiece& piece, uint64_t j, uint64_t i, uint64_t k) {
        switch (piece.form) {
            case ExpertForm::kOwn: return j * k + i;
            case ExpertForm::kStacked: return (uint64_t{piece.expert} * piece.rank + j) * k + i;
            case ExpertForm::kStackedSwapped:
                return i * piece.rank * piece.n_experts + j * piece.n_experts + piece.expert;
        }
        return 0;
    }
    static uint64_t b_element(const ExpertPiece& piece, uint64_t i, uint64_t j) {
        switch (piece.form) {
            case ExpertForm::kOwn: return i * piece.rank + j;
            case ExpertForm::kStacked: return i * piece.rank * piece.n_experts + j * piece.n_experts + piece.expert;
            case ExpertForm::kStackedSwapped: return (uint64_t{piece.expert} * piece.rank + j) * piece.n + i;
        }
        return 0;
    }

    void lay_out_embedding() {
        const ExtrasPlan& plan = plan_.extras;
        model::AdapterExtrasView& extras = view.extras;
        if (plan.embed_table != nullptr) {
            extras.embed_table = add_table(*plan.embed_table);
            extras.embed_type = model::weight_type_of(plan.embed_table->dtype);
        }
        if (plan.embed.a != nullptr) {
            const Tensor& a = *plan.embed.a;
            const DType type = common_type(a, *plan.embed.b);
            const uint32_t stride = round_up(plan.embed.rank, 8);
            extras.embed_a = add(a.shape[1] * stride * model::bytes_of(type),
                                 [&a, stride, type](std::byte* to) { write_transposed(to, a, stride, type); });
            extras.embed_b = add_matrix(*plan.embed.b, plan.embed.b->shape[0], stride, type);
            extras.embed_rank = plan.embed.rank;
            extras.embed_scale = plan.embed.scale;
            extras.embed_lora_type = model::weight_type_of(type);
        }
        if (plan.token_rows != nullptr) {
            const uint32_t stride = gpu::padded(static_cast<uint32_t>(plan.token_rows->shape[1]));
            extras.token_ids = add(plan.token_ids.size() * sizeof(uint32_t), [&plan](std::byte* to) {
                std::memcpy(to, plan.token_ids.data(), plan.token_ids.size() * sizeof(uint32_t));
            });
            extras.token_rows = add(plan.token_ids.size() * stride * sizeof(float),
                                    [&plan, stride](std::byte* to) { write_token_rows(to, plan, stride); });
            extras.n_tokens = static_cast<uint32_t>(plan.token_ids.size());
            extras.tokens_in_head = plan.tokens_in_head;
        }
    }

    void lay_out_head() {
        const ExtrasPlan& plan = plan_.extras;
        model::AdapterExtrasView& extras = view.extras;
        if (plan.head_table != nullptr) {
            extras.head_table = add_table(*plan.head_table);
            extras.head_type = model::weight_type_of(plan.head_table->dtype);
        }
        if (plan.head.a != nullptr) {
            const DType type = common_type(*plan.head.a, *plan.head.b);
            const auto hidden = static_cast<uint32_t>(plan.head.a->shape[1]);
            extras.head_a = add_matrix(*plan.head.a, plan.head.rank, gpu::padded(hidden), type);
            extras.head_b = add_matrix(*plan.head.b, plan.head.b->shape[0], round_up(plan.head.rank, 8), type);
            extras.head_rank = plan.head.rank;
            extras.head_scale = plan.head.scale;
            extras.head_lora_type = model::weight_type_of(type);
        }
        if (!plan.head_bias.empty()) extras.head_bias = add_values(plan.head_bias);
    }

    void lay_out_norms() {
        const auto vector = [&](const Tensor* tensor) {
            return tensor ? add_vector(*tensor, plan_.extras.one_plus_norms ? 1.0f : 0.0f) : 0;
        };
        for (const ExtrasPlan::LayerNorms& norms : plan_.extras.norms) {
            view.extras.norms.push_back({vector(norms.input), vector(norms.mixer_after), vector(norms.ffn),
                                         vector(norms.ffn_after), vector(norms.q), vector(norms.k),
                                         // no family has that one as w - 1
                                         norms.mixer ? add_vector(*norms.mixer, 0.0f) : 0});
        }
        view.extras.final_norm = vector(plan_.extras.final_norm);
    }

    static DType common_type(const Tensor& a, const Tensor& b) { return a.dtype == b.dtype ? a.dtype : DType::kF32; }

    // In the tensor's own type, or widened.
    static void write_number(std::byte* to, const Tensor& tensor, uint64_t element, DType type) {
        const size_t bytes = model::bytes_of(type);
        if (tensor.dtype == type)
            std::memcpy(to, tensor.data.data() + element * bytes, bytes);
        else
            write_widened(to, tensor, element);
    }

    static void write_scaled(std::byte* to, const Tensor& tensor, uint64_t element, DType type, float scale) {
        if (scale == 1.0f) return write_number(to, tensor, element, type);
        const float value = number_at(tensor, element) * scale;
        std::memcpy(to, &value, sizeof(value));  // the type is f32 then
    }

    static void write_widened(std::byte* to, const Tensor& tensor, uint64_t element) {
        const float wide = number_at(tensor, element);
        std::memcpy(to, &wide, sizeof(wide));
    }

    // The tensor as [rows][stride] of `type`; what lies behind each row is zero already.
    static void write_matrix(std::byte* to, const Tensor& tensor, uint32_t stride, DType type) {
        const size_t to_bytes = model::bytes_of(type);
        const uint64_t columns = tensor.shape[1];
        if (tensor.dtype == type && columns == stride) {
            std::memcpy(to, tensor.data.data(), tensor.data.size());
            return;
        }
        for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
            std::byte* row_to = to + row * stride * to_bytes;
            if (tensor.dtype == type) {
                std::memcpy(row_to, tensor.data.data() + row * columns * to_bytes, columns * to_bytes);
                continue;
            }
            for (uint64_t column = 0; column < columns; ++column) {
                write_widened(row_to + column * to_bytes, tensor, row * columns + column);
            }
        }
    }

    // [columns][stride]
    static void write_transposed(std::byte* to, const Tensor& tensor, uint32_t stride, DType type) {
        const size_t bytes = model::bytes_of(type);
        const uint64_t columns = tensor.shape[1];
        for (uint64_t column = 0; column < columns; ++column) {
            for (uint64_t row = 0; row < tensor.shape[0]; ++row) {
                std::byte* at = to + (column * stride + row) * bytes;
                const uint64_t element = row * columns + column;
                if (tensor.dtype == type) {
                    std::memcpy(at, tensor.data.data() + element * bytes, bytes);
                } else {
                    write_widened(at, tensor, element);
                }
            }
        }
    }

    static void write_token_rows(std::byte* to, const ExtrasPlan& plan, uint32_t stride) {
        const uint64_t columns = plan.token_rows->shape[1];
        for (size_t i = 0; i < plan.token_order.size(); ++i) {
            for (uint64_t column = 0; column < columns; ++column) {
                write_widened(to + (i * stride + column) * sizeof(float), *plan.token_rows,
                              plan.token_order[i] * columns + column);
            }
        }
    }

    const AdapterPlan& plan_;
    std::map<const Tensor*, gpu::DeviceAddress> addresses_;
};

void for_each_address(model::AdapterView& view, const std::function<void(gpu::DeviceAddress&)>& change) {
    for (model::LoraModuleView& module : view.modules) {
        for (gpu::DeviceAddress* address : {&module.a, &module.b, &module.gain, &module.bias}) change(*address);
    }
    model::AdapterExtrasView& extras = view.extras;
    for (gpu::DeviceAddress* address :
         {&extras.embed_table, &extras.embed_a, &extras.embed_b, &extras.token_ids, &extras.token_rows,
          &extras.head_table, &extras.head_a, &extras.head_b, &extras.head_bias, &extras.final_norm}) {
        change(*address);
    }
    for (model::AdapterExtrasView::LayerNorms& norms : extras.norms) {
        for (gpu::DeviceAddress* address :
             {&norms.input, &norms.mixer_after, &norms.ffn, &norms.ffn_after, &norms.q, &norms.k, &norms.mixer})
            change(*address);
    }
}

// The image cut into blocks of at most block_bytes_max where pieces begin; a piece that is larger gets a block of its
// own, which the store then refuses.
std::vector<uint64_t> block_begins(const PackedImage& image, uint64_t block_bytes_max) {
    std::vector<uint64_t> begins;
    for (size_t i = 0; i < image.pieces.size(); ++i) {
        const uint64_t end = i + 1 < image.pieces.size() ? image.pieces[i + 1] : image.n_bytes;
        if (begins.empty() || end - begins.back() > block_bytes_max) begins.push_back(image.pieces[i]);
    }
    return begins;
}

}  // namespace

uint64_t packed_bytes(const CheckedAdapter& adapter) { return Layout(adapter).n_bytes; }

Result<PackedImage> pack(const CheckedAdapter& adapter) {
    Layout layout(adapter);
    PackedImage image;
    // Zero, and so without touching pages that are only padding.
    image.bytes.reset(static_cast<std::byte*>(std::calloc(std::max<uint64_t>(layout.n_bytes, 1), 1)));
    if (!image.bytes) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("the packed adapter: {} bytes of host memory are not there", layout.n_bytes));
    }
    prefer_huge_pages(image.bytes.get(), layout.n_bytes);
    image.n_bytes = layout.n_bytes;
    for (const Layout::Piece& piece : layout.pieces) image.pieces.push_back(piece.offset);
    layout.fill(image.bytes.get());
    image.view = std::move(layout.view);
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
