#include "tests/reference/gradient.h"

#include <algorithm>
#include <cmath>

namespace lorad::reference {

Vector gradient(const std::function<Vector(std::span<const double>)>& f, std::span<const double> x,
                std::span<const double> dy) {
    Vector at(x.begin(), x.end()), made(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
        const double step = 1e-5 * std::max(1.0, std::abs(x[i]));
        double difference = 0;
        for (const double sign : {1.0, -1.0}) {
            at[i] = x[i] + sign * step;
            const Vector y = f(at);
            for (size_t j = 0; j < y.size(); ++j) difference += sign * dy[j] * y[j];
        }
        at[i] = x[i];
        made[i] = difference / (2 * step);
    }
    return made;
}

}  // namespace lorad::reference
