#ifndef LORAD_GPU_KERNELS_GATE_ROWS_PARAMS_H
#define LORAD_GPU_KERNELS_GATE_ROWS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct GateRowsParams {
    uint64_t step;  // StepHeader
    uint64_t gate;  // [t][gate_stride] f32: of head h elements h * gate_head .. + size
    uint64_t y;     // [t][y_stride] of the activation type, in place: heads of `size` elements side by side
    uint32_t gate_stride;
    uint32_t gate_head;
    uint32_t y_stride;
    uint32_t width;  // heads * size
};
INTEROP_SIZE(GateRowsParams, 40);

INTEROP_END

#endif
