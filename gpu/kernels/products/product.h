// A product of the rows by a matrix of weights, as somebody wants it: what it reads, what comes on the way, where it
// goes. ProductPlanner::plan() finds the implementation that takes it.
#pragma once

#include <cstdint>
#include <limits>

#include "gpu/kernels/consumer_shape.h"
#include "gpu/kernels/formats/weight_format.h"
#include "gpu/kernels/kernel_options.h"
#include "gpu/kernels/scalar_type.h"

namespace lorad::gpu {

// How the rows' adapters are added to the sums.
enum class AdapterForm : uint8_t {
    kApart,    // not by the product: no row has one, or the kernel that reads the sums adds it
    kRuns,     // from what the group's shrink has written, for long runs of rows with one adapter
    kStacked,  // as more k: the adapters' columns stand beside those of x and w (StackedGroup)
    kInside,   // the product shrinks and expands by itself
};

// The destination of the sums.
enum class ProductResult : uint8_t {
    kSums,  // y[s][t][n] = sum over split s of x[t][k] * w[n][k]
    // act[t][f] = activation(gate) * up, of a w with rows of gates 0..n/2-1 and their ups behind them, without bias. It
    // moves 2 bytes an element out where sums and gated_act move 8 out and in.
    kGated,
    kResidual,  // with bias into the residual stream, and the norm behind it but for a factor (deferred_norm.h)
    kGreatest,  // each row's greatest, without the sums themselves
};

struct Product {
    // y = x w^T, w an n x k matrix.
    uint32_t n = 0, k = 0;
    ScalarType type = ScalarType::kF16;  // of w; of a packed matrix, what its numbers become in a plain copy
    // of a packed matrix: a bit, 1 << number_of(format), for the format of each of its parts. 0: w is plain
    uint32_t formats = 0;
    uint32_t align = 1;       // of a packed matrix: rows, a divisor of where each part begins and ends
    bool may_unpack = true;   // there is room for a plain copy of a packed matrix
    bool is_n_major = false;  // y = x w instead, w a k x n matrix

    uint32_t rows = 0;        // of x: the most that a recording has, its capacity
    uint32_t max_splits = 1;  // of k, where sums are wanted
    // The kernel that writes x can write it in fragments (activation_fragments.h); it then has to heed the plan's
    // x_in_fragments and x_order.
    bool may_be_in_fragments = false;
    bool norm_is_deferred = false;  // x is what a product with kResidual wrote, and a norm's factor belongs to the sums

    AdapterForm adapters = AdapterForm::kApart;
    uint32_t rank_max = std::numeric_limits<uint32_t>::max();  // of kRuns: of the rows' adapters; the default is any
    bool leaves_room = false;  // a shrink is to run beside it, so workgroups leave it registers and shared memory

    ProductResult result = ProductResult::kSums;
    Activation activation = Activation::kSilu;  // of kGated

    bool is_packed() const { return formats != 0; }
    uint32_t stride() const { return padded(k); }
};

}  // namespace lorad::gpu
