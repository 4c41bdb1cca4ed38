#include "gpu/kernels/formats/weight_format.h"

#include <array>

namespace lorad::gpu {

std::string_view name_of(WeightFormat format) {
    constexpr std::array<std::string_view, kWeightFormats> kNames = {"f32",
                                                                     "f16",
                                                                     "bf16",
                                                                     "q8_0",
                                                                     "q4_0",
                                                                     "q4_1",
                                                                     "q5_0",
                                                                     "q5_1",
                                                                     "q4_K",
                                                                     "q5_K",
                                                                     "q6_K",
                                                                     "iq4_nl",
                                                                     "iq4_xs",
                                                                     "mxfp4",
                                                                     "4-bit table",
                                                                     "int4, groups of 32",
                                                                     "int4, groups of 128",
                                                                     "int8, groups of 32",
                                                                     "int8, groups of 128",
                                                                     "fp8"};
    return kNames[number_of(format)];
}

}  // namespace lorad::gpu
