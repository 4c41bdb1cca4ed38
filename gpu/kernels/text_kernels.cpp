// Which modules are programs in text, made for their constants (gpu/pipeline.h, KernelOptions::text).
#include <string_view>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/persistent/decode_rows_text.h"
#include "gpu/kernels/products/warpgroup_direct_text.h"
#include "gpu/kernels/products/warpgroup_text.h"
#include "gpu/kernels/products/warpgroup_tiles.h"
#include "proto/base/check.h"

namespace lorad::gpu {

bool is_from_text(std::string_view module) {
    return module.starts_with("matmul_warpgroup") || module.starts_with("decode_rows");
}

std::string kernel_text(std::string_view module, const std::vector<uint32_t>& constants) {
    CHECK(is_from_text(module));
    const ScalarType type = module.ends_with("_bf16") ? ScalarType::kBf16 : ScalarType::kF16;
    if (module.starts_with("decode_rows")) {
        CHECK(constants.size() == 6);
        return decode_rows_text(
            {{.type = type, .hidden = constants[1], .q = constants[2], .ffn = constants[3], .qkv = constants[4]},
             constants[5]});
    }
    if (module.starts_with("matmul_warpgroup_direct")) {
        CHECK(constants.size() == 4);
        return warpgroup_direct_text(
            {.column_blocks = constants[1], .row_blocks = constants[3], .type = type, .stride = constants[2]});
    }
    CHECK(constants.size() == 10);
    return warpgroup_text({.tile = kWarpgroupTiles[constants[1]],
                           .type = type,
                           .stride = constants[2],
                           .w_columns = constants[9],
                           .row_blocks = constants[3],
                           .gated_rows = constants[4],
                           .y_order = constants[5],
                           .units = constants[6],
                           .joined_columns = constants[8],
                           .adds_lora = module.starts_with("matmul_warpgroup_gated_lora"),
                           .argmax = module.starts_with("matmul_warpgroup_argmax"),
                           .in_turns = constants[7] != 0});
}

}  // namespace lorad::gpu
