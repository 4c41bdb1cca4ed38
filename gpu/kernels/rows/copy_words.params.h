#ifndef LORAD_GPU_KERNELS_COPY_WORDS_PARAMS_H
#define LORAD_GPU_KERNELS_COPY_WORDS_PARAMS_H

#include "gpu/kernels/interop.h"

INTEROP_BEGIN

struct CopyWordsParams {
    uint64_t from;  // [n_words] of 16 bytes
    uint64_t to;    // [n_words], no part of `from`
    uint32_t n_words;
    uint32_t pad;
};
INTEROP_SIZE(CopyWordsParams, 24);

INTEROP_END

#endif
