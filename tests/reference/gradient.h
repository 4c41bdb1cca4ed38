// Gradients by central differences in double precision: what backward kernels are compared with.
#pragma once

#include <functional>
#include <span>

#include "tests/reference/transformer.h"

namespace lorad::reference {

// The gradient at x of sum_i dy[i] * f(x)[i].
Vector gradient(const std::function<Vector(std::span<const double>)>& f, std::span<const double> x,
                std::span<const double> dy);

}  // namespace lorad::reference
