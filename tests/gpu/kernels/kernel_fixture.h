// What every kernel test needs: poisoned result buffers, step state, LoRA tables, and comparisons that name the
// element.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gpu/kernels/kernels.h"
#include "gpu/kernels/launch.h"
#include "gpu/kernels/products/activation_fragments.h"
#include "gpu/kernels/self_test.h"
#include "tests/gpu/gpu_fixture.h"
#include "tests/reference/numbers.h"
#include "tests/reference/transformer.h"
#include "tests/support/best_path.h"

namespace lorad::gpu::testing {

using reference::LoraPair;
using reference::Type;
using reference::Vector;

// Of a product of an n x k matrix whose x and y are as long as the matrix is padded. k_per_split is left to the plan.
inline MatmulParams product_params(uint32_t n, uint32_t k, const Buffer& count, const Buffer& w, const Buffer& x,
                                   const Buffer& y, size_t split_stride) {
    MatmulParams params{};
    params.n_rows = count.address();
    params.w = w.address();
    params.x = x.address();
    params.y = y.address();
    params.n = n;
    params.k = k;
    params.w_stride = params.x_stride = padded(k);
    params.y_stride = padded(n);
    params.split_stride = static_cast<uint32_t>(split_stride);
    return params;
}

inline ScalarType scalar(Type type) { return static_cast<ScalarType>(type); }

inline LoraLevel level(bool with_lora) { return with_lora ? LoraLevel::kPlain : LoraLevel::kNone; }

template <typename T>
Buffer input(const std::vector<T>& values) {
    Buffer buffer = make_buffer(std::max<size_t>(values.size() * sizeof(T), 16), MemoryKind::kHostUpload);
    if (!values.empty()) std::memcpy(buffer.mapped().data(), values.data(), values.size() * sizeof(T));
    return buffer;
}

// Result memory, every word a NaN in all three types: what a kernel must not read, and must write where it should.
inline Buffer poisoned(uint64_t size_bytes) {
    Buffer buffer = make_buffer(size_bytes, MemoryKind::kHostReadback);
    std::memset(buffer.mapped().data(), 0xff, size_bytes);
    return buffer;
}

template <typename T>
std::vector<T> content(const Buffer& buffer, size_t n) {
    std::vector<T> values(n);
    std::memcpy(values.data(), buffer.mapped().data(), n * sizeof(T));
    return values;
}

inline std::vector<float> content(const Buffer& buffer, size_t n, Type type) {
    return reference::decode(content<std::byte>(buffer, n * bytes_of(scalar(type))), type);
}

inline constexpr std::array kFragmentOrders = {kFragmentsByColumns, kFragmentsByRows, kRowFragments, kBandFragments,
                                               kMatrixFragments};
// 16-bit rows as a product reads them in fragments; whole fragments of both.
inline std::vector<std::byte> in_fragments(const std::vector<std::byte>& rows, uint32_t stride, uint32_t order) {
    std::vector<std::byte> blocks(rows.size());
    self_test::to_fragments(rows, blocks, stride, order);
    return blocks;
}

// Of [split][t][width]: what no one may read, because k of the first rows is whole.
inline void poison_other_splits(std::vector<float>& y, uint32_t n_splits, uint32_t whole_rows, uint32_t capacity,
                                uint32_t width) {
    for (size_t s = 1; s < n_splits; s++)
        std::fill_n(y.begin() + static_cast<ptrdiff_t>(s * capacity * width), size_t{whole_rows} * width, NAN);
}
// A product's plan with so many tiles of rows in front whole, and k of the others in three parts.
inline MatmulPlan with_whole_rows(MatmulPlan plan, uint32_t k, uint32_t n_tiles) {
    plan.whole_rows = n_tiles * plan.row_tile;
    plan.k_per_split = round_up(ceil_div(padded(k), 3), 128);
    plan.n_splits = ceil_div(padded(k), plan.k_per_split);
    return plan;
}
inline bool is_poison(float value) { return std::isnan(value); }

// |got - want| <= tolerance * magnitude for all; magnitude says how large the summands were.
inline void expect_near(const std::vector<double>& want, const float* got, double tolerance, double magnitude,
                        const std::string& what) {
    for (size_t i = 0; i < want.size(); i++) {
        if (std::fabs(got[i] - want[i]) <= tolerance * magnitude) continue;
        ADD_FAILURE() << what << " [" << i << "]: expected " << want[i] << ", found " << got[i]
                      << ", allowed difference " << tolerance * magnitude;
        return;
    }
}

// Round-off of a sum of `terms` products in f32, in units of the sum's magnitude; a generous multiple of the usual.
inline double sum_tolerance(size_t terms) { return std::ldexp(4.0 * std::sqrt(static_cast<double>(terms) + 16), -24); }

// An adapter module with random weights, on the host and on the device.
struct TestModule {
    std::vector<float> a, b;
    LoraPair pair;
    Type type = Type::kF32;
    Buffer a_buffer, b_buffer;

    static TestModule make(size_t n, size_t k, size_t rank, Type type, double scale, std::mt19937& random) {
        TestModule module;
        module.type = type;
        module.a = reference::random_values(rank * k, type, random);
        module.b = reference::random_values(n * rank, type, random);
        module.pair = {module.a, module.b, rank, scale};
        if (rank == 0) return module;
        module.a_buffer = input(reference::encode(module.a, k, padded(static_cast<uint32_t>(k)), type));
        module.b_buffer = input(reference::encode(module.b, rank, round_up(static_cast<uint32_t>(rank), 8), type));
        return module;
    }
    LoraModule entry() const {
        LoraModule result{};
        if (pair.rank == 0) return result;
        result = {a_buffer.address(),
                  b_buffer.address(),
                  static_cast<uint32_t>(pair.rank),
                  static_cast<float>(pair.scale),
                  static_cast<uint32_t>(type),
                  0,
                  0,
                  0,
                  {}};
        return result;
    }
};

// The step-state buffer: header and rows; the rest is up to the test.
inline Buffer step_state(const std::vector<StepRow>& rows, uint32_t n_rows) {
    std::vector<std::byte> bytes(sizeof(StepHeader) + rows.size() * sizeof(StepRow));
    StepHeader header{};
    header.n_rows = n_rows;
    std::memcpy(bytes.data(), &header, sizeof(header));
    std::memcpy(bytes.data() + sizeof(header), rows.data(), rows.size() * sizeof(StepRow));
    // Behind the last row lies what other steps left.
    for (size_t t = n_rows; t < rows.size(); t++)
        std::memset(bytes.data() + sizeof(header) + t * sizeof(StepRow), t % 2 ? 0xff : 0x7e, sizeof(StepRow));
    return input(bytes);
}

class KernelTest : public GpuTest {
  protected:
    void SetUp() override {
        GpuTest::SetUp();
        kernels_ = must(KernelSet::create(device(), {.path = KernelPath::kPortable}));
    }

    struct Adapter {
        std::vector<uint32_t> ranks;  // by module
        Type type;
    };
    // Rows of one adapter, -1: of none.
    struct AdapterRun {
        int adapter;
        uint32_t n_rows;
    };

    // The 16-bit types that the test's kernels multiply on matrix units.
    std::vector<Type> matrix_types() const {
        std::vector<Type> types;
        for (const Type type : {Type::kF16, Type::kBf16}) {
            if (kernels_->act_type(scalar(type)) != ScalarType::kF32) types.push_back(type);
        }
        return types;
    }

    // Those of them whose products, on the device's best path, read x in fragments where rows are many. On NVIDIA's
    // devices, which know their multiprocessors, that is all.
    std::vector<Type> fragment_types() const {
        return types_by_lanes([&](Type type) {
            return std::ranges::any_of(
                kernels_->products.candidates(
                    {.n = 4096, .k = 4096, .type = scalar(type), .rows = 2048, .may_be_in_fragments = true}),
                &MatmulPlan::x_in_fragments);
        });
    }

    // Of the matrix types those with a kernel that fills matrices by lanes, in the order that NVIDIA's have.
    std::vector<Type> types_by_lanes(const std::function<bool(Type)>& has_kernel) const {
        std::vector<Type> types = matrix_types();
        std::erase_if(types, [&](Type type) { return !has_kernel(type); });
        EXPECT_TRUE(types == matrix_types() || !device().capabilities().multiprocessor_ids)
            << device().capabilities().name << " has another order of elements";
        return types;
    }

    void execute(const std::function<void(Recorder&)>& record) {
        auto recorder = must(Recorder::begin(device()));
        record(recorder);
        const Status recorded = kernels_->status();
        ASSERT_TRUE(recorded.ok()) << recorded.error().message;
        run(must(std::move(recorder).end()));
    }

    std::unique_ptr<KernelSet> kernels_;
    std::mt19937 random_{20240607};
};

}  // namespace lorad::gpu::testing
