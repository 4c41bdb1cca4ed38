// What tests of products by warpgroups share, which are programs in text: their text on any device, results where the
// device takes them.
#pragma once

#include <string>
#include <vector>

#include "tests/gpu/kernels/kernel_fixture.h"

namespace lorad::gpu::testing {

inline uint32_t count(const std::string& text, const std::string& what) {
    uint32_t n = 0;
    for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) n++;
    return n;
}

// Skipped where the device does not take programs by warpgroups; a SetUp() of one's own that goes on behind this one
// asks IsSkipped().
class WarpgroupTest : public KernelTest {
  protected:
    void SetUp() override {
        KernelTest::SetUp();
        if (!device().capabilities().warpgroup_matrices)
            GTEST_SKIP() << "no kernels by warpgroups: " << device().capabilities().name;
        kernels_ = must(KernelSet::create(device(), {}));
    }

    // A product's x in its blocks, of rows with this stride in elements; slack rows, and those of the bucket that are
    // not there, are no numbers.
    static Buffer x_in_fragments(std::vector<std::byte> rows, uint32_t stride, uint32_t bucket, uint32_t order) {
        rows.resize(size_t{round_up(bucket, 16) + kSlackRows} * stride * 2, std::byte{0xff});
        return input(in_fragments(rows, stride, order));
    }
};

}  // namespace lorad::gpu::testing
