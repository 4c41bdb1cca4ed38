#include "gpu/kernels/ladder_tests.h"

namespace lorad::gpu {

Status LadderTests::run() {
    TRY(registers());
    for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
        if (!facts_.ladder.has(type)) continue;
        TRY(products(type));
        TRY(residual(type));
        if (facts_.ladder.has_packed(type)) TRY(packed(type));
        if (facts_.options.has_experts && kernels_.experts.has_matrices(type)) TRY(experts(type));
        if (facts_.options.has_experts) TRY(packed_experts(type));
        TRY(shrink(type));
        TRY(gated_act(type));
    }
    TRY(attention());
    TRY(attention_from_qkv());
    return recurrences();
}

}  // namespace lorad::gpu
