// Knows the modules that are programs in text, made for their constants (gpu/pipeline.h, KernelOptions::text).
#include <string_view>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/persistent/decode_bricks_text.h"
#include "gpu/kernels/persistent/decode_rows_text.h"
#include "gpu/kernels/products/packed/packed_rows_text.h"
#include "gpu/kernels/products/packed/packed_warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_direct_text.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "proto/base/check.h"

namespace lorad::gpu {

bool is_from_text(std::string_view module) {
    return module.starts_with("matmul_warpgroup") || module.starts_with("matmul_packed_rows") ||
           module.starts_with("matmul_packed_warpgroup") || module.starts_with("decode_rows") ||
           module.starts_with("decode_bricks");
}

std::string kernel_text(std::string_view module, const std::vector<uint32_t>& constants) {
    CHECK(is_from_text(module));
    const ScalarType type = module.ends_with("_bf16") ? ScalarType::kBf16 : ScalarType::kF16;
    if (module.starts_with("decode_rows")) {
        const auto of = constants_from<DecodeRowsConstants>(constants);
        return decode_rows_text(
            {{.type = type, .hidden = of.hidden, .q = of.q, .ffn = of.ffn, .qkv = of.qkv}, of.workgroups});
    }
    if (module.starts_with("decode_bricks")) {
        const auto of = constants_from<DecodeBricksConstants>(constants);
        DecodeBricksShape shape{.type = type,
                                .rows = of.rows,
                                .hidden = of.hidden,
                                .q = of.q,
                                .ffn = of.ffn,
                                .o = static_cast<WeightFormat>(of.o),
                                .gate_up = static_cast<WeightFormat>(of.gate_up),
                                .down = static_cast<WeightFormat>(of.down)};
        uint32_t row_begin = 0;
        for (uint32_t i = 0; i < kDecodeBricksParts; ++i) {
            shape.qkv[i] = {static_cast<WeightFormat>(of.qkv_formats[i]), row_begin, of.qkv_rows[i]};
            row_begin += of.qkv_rows[i];
        }
        return decode_bricks_text({shape, of.workgroups});
    }
    if (module.starts_with("matmul_packed_rows")) {
        const auto of = constants_from<PackedRowsConstants>(constants);
        return packed_rows_text({.format = static_cast<WeightFormat>(of.weights),
                                 .type = type,
                                 .stride = of.stride,
                                 .warps = of.threads / 32,
                                 .slots = of.slots,
                                 .workgroups = of.workgroups,
                                 .x_in_fragments = of.x_in_fragments != 0});
    }
    if (module.starts_with("matmul_packed_warpgroup")) {
        const auto of = constants_from<PackedWarpgroupConstants>(constants);
        return packed_warpgroup_text({.format = static_cast<WeightFormat>(of.weights),
                                      .type = type,
                                      .stride = of.stride,
                                      .row_blocks = of.row_blocks,
                                      .warps = of.threads / 32});
    }
    if (module.starts_with("matmul_warpgroup_direct")) {
        const auto of = constants_from<DirectConstants>(constants);
        return warpgroup_direct_text(
            {.column_blocks = of.column_blocks, .row_blocks = of.row_blocks, .type = type, .stride = of.stride});
    }
    const auto of = constants_from<WarpgroupConstants>(constants);
    return warpgroup_text({.tile = kWarpgroupTiles[of.tile],
                           .type = type,
                           .stride = of.stride,
                           .w_columns = of.w_columns,
                           .row_blocks = of.row_blocks,
                           .gated_rows = of.gated_rows,
                           .y_order = of.y_order,
                           .units = of.units,
                           .stacked_columns = of.stacked_columns,
                           .adds_lora = module.starts_with("matmul_warpgroup_gated_lora"),
                           .argmax = module.starts_with("matmul_warpgroup_argmax"),
                           .persistent = of.persistent != 0});
}

}  // namespace lorad::gpu
