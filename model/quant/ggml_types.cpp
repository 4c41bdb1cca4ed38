#include "model/quant/ggml_types.h"

#include <algorithm>

#include "proto/base/check.h"

namespace lorad::model {
namespace {

constexpr GgmlTypeInfo kGgmlTypes[] = {
    {0, "F32", 1, 4, true},
    {1, "F16", 1, 2, true},
    {2, "Q4_0", 32, 18, true},
    {3, "Q4_1", 32, 20, true},
    {4, "Q4_2"},
    {5, "Q4_3"},
    {6, "Q5_0", 32, 22, true},
    {7, "Q5_1", 32, 24, true},
    {8, "Q8_0", 32, 34, true},
    {9, "Q8_1", 32, 40},
    {10, "Q2_K", 256, 84},
    {11, "Q3_K", 256, 110, true},
    {12, "Q4_K", 256, 144, true},
    {13, "Q5_K", 256, 176, true},
    {14, "Q6_K", 256, 210, true},
    {15, "Q8_K", 256, 292},
    {16, "IQ2_XXS", 256, 66},
    {17, "IQ2_XS", 256, 74},
    {18, "IQ3_XXS", 256, 98},
    {19, "IQ1_S", 256, 50},
    {20, "IQ4_NL", 32, 18, true},
    {21, "IQ3_S", 256, 110},
    {22, "IQ2_S", 256, 82},
    {23, "IQ4_XS", 256, 136, true},
    {24, "I8", 1, 1},
    {25, "I16", 1, 2},
    {26, "I32", 1, 4},
    {27, "I64", 1, 8},
    {28, "F64", 1, 8},
    {29, "IQ1_M", 256, 56},
    {30, "BF16", 1, 2, true},
    {31, "Q4_0_4_4"},
    {32, "Q4_0_4_8"},
    {33, "Q4_0_8_8"},
    {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},
    {36, "IQ4_NL_4_4"},
    {37, "IQ4_NL_4_8"},
    {38, "IQ4_NL_8_8"},
    {39, "MXFP4", 32, 17, true},
    {40, "NVFP4", 64, 36},
    {41, "Q1_0", 128, 18},
};

}  // namespace

const GgmlTypeInfo* ggml_type_info(uint32_t number) {
    const auto* found = std::ranges::find(kGgmlTypes, number, &GgmlTypeInfo::number);
    return found == std::end(kGgmlTypes) ? nullptr : found;
}

const GgmlTypeInfo& info_of(GgmlType type) {
    const GgmlTypeInfo* info = ggml_type_info(static_cast<uint32_t>(type));
    CHECK(info != nullptr && info->block_bytes != 0);
    return *info;
}

std::string_view name_of(GgmlType type) { return info_of(type).name; }

std::string readable_ggml_types() {
    std::string names;
    for (const GgmlTypeInfo& info : kGgmlTypes) {
        if (info.is_read) names.append(names.empty() ? "" : ", ").append(info.name);
    }
    return names;
}

}  // namespace lorad::model
