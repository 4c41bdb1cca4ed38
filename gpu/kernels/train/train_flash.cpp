// Attention of training on matrices in registers, and what shows at the start that a device gives its lanes the
// elements that these kernels expect.
#include <array>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "gpu/kernels/launch.h"
#include "gpu/kernels/self_test.h"
#include "gpu/kernels/train/train_kernels.h"

namespace lorad::gpu {
namespace {

constexpr uint32_t kFlashThreads = 128, kFlashLanes = 32;
constexpr uint32_t kFlashHeadDimMax = 128, kFlashHeadDimStep = 32;

const char* flash_module(ScalarType type) { return type == ScalarType::kBf16 ? "train_flash_bf16" : "train_flash_f16"; }
struct FlashConstants {
    uint32_t threads, head_dim, group, backward;
};
// Values of `backward`.
constexpr uint32_t kFlashForward = 0, kFlashQueries = 1, kFlashKeys = 2;

}  // namespace

bool TrainKernels::may_have_flash(const DeviceCapabilities& caps, const TrainKernelOptions& options) {
    return options.matrix_type != ScalarType::kF32 && caps.coopmat_f16 && caps.subgroup_size == kFlashLanes &&
           caps.float16 && !caps.is_cpu && options.head_dim % kFlashHeadDimStep == 0 &&
           options.head_dim <= kFlashHeadDimMax && has_kernel_module(flash_module(options.matrix_type)) &&
           (options.matrix_type != ScalarType::kBf16 || (caps.bfloat16_coopmat && caps.int16));
}

void TrainKernels::flash(Recorder& recorder, TrainDirection direction, const TrainFlashParams& params,
                         uint32_t n_heads) {
    const bool is_backward = direction == TrainDirection::kBackward;
    const Kernel* k = kernel(flash_module(matrix_type_),
                             FlashConstants{.threads = kFlashThreads,
                                            .head_dim = options_.head_dim,
                                            .group = options_.head_group,
                                            .backward = is_backward ? kFlashQueries : kFlashForward},
                             kFlashLanes);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, n_heads, params.n_tiles, 1,
                      {is_backward ? "train_flash_queries" : "train_flash", 0, 0});
    if (!is_backward) return;
    k = kernel(flash_module(matrix_type_),
               FlashConstants{.threads = kFlashThreads,
                              .head_dim = options_.head_dim,
                              .group = options_.head_group,
                              .backward = kFlashKeys},
               kFlashLanes);
    if (k == nullptr) return;
    recorder.dispatch(*k, params, n_heads, params.n_tiles, 1, {"train_flash_keys", 0, 0});
}

void TrainKernels::dots(Recorder& recorder, const TrainDotsParams& params, uint32_t n_heads, uint32_t rows) {
    const Kernel* k =
        kernel("train_sum_heads", TypedRowConstants{.threads = workgroup_size(facts_.capabilities, 32, 32),
                                                    .type = static_cast<uint32_t>(matrix_type_)});
    if (k == nullptr) return;
    const TrainHeadSumsParams of_kernel{.from = params.o,
                                        .to = params.dots,
                                        .dout = params.dout,
                                        .rounded = params.rounded,
                                        .columns = 0,
                                        .head_dim = params.head_dim,
                                        .n_group = 1,
                                        .from_stride = params.stride,
                                        .to_stride = n_heads,
                                        .pad = 0};
    recorder.dispatch(*k, of_kernel, n_heads, rows, 1,
                      {"train_dots", uint64_t{rows} * n_heads * params.head_dim * 10, 0});
}

namespace {

// Two sequences of a few heads, and what attention and its gradients are in double precision.
struct FlashCase {
    static constexpr uint32_t kTokens[2] = {150, 37}, kRows = 192, kKvHeads = 2;
    uint32_t head_dim, group, heads, q_size, kv_size;
    std::vector<float> in, dout;       // [row][q, k, v], [row][q]
    std::vector<float> o, dq, dk, dv;  // [row][q]; dk and dv of each query head

    FlashCase(uint32_t dim, uint32_t n_group)
        : head_dim(dim), group(n_group), heads(n_group * kKvHeads), q_size(heads * dim), kv_size(kKvHeads * dim) {}
    uint32_t width() const { return q_size + 2 * kv_size; }
    double scale() const { return 1.0 / std::sqrt(head_dim); }

    void compute(uint32_t window) {
        for (auto* result : {&o, &dq, &dk, &dv}) result->assign(size_t{kTokens[0] + kTokens[1]} * q_size, 0.0f);
        uint32_t first = 0;
        for (const uint32_t n : kTokens) {
            for (uint32_t head = 0; head < heads; ++head) {
                for (uint32_t query = 0; query < n; ++query) compute_row(first, query, head, window);
            }
            first += n;
        }
    }

  private:
    float* of(std::vector<float>& values, uint32_t row, uint32_t head) const {
        return &values[size_t{row} * q_size + head * head_dim];
    }
    double dot(const float* a, const float* b) const {
        double sum = 0;
        for (uint32_t d = 0; d < head_dim; ++d) sum += double{a[d]} * b[d];
        return sum;
    }
    void compute_row(uint32_t first, uint32_t query, uint32_t head, uint32_t window) {
        const auto at = [&](uint32_t token, uint32_t column) {
            return &in[size_t{first + token} * width() + column + head / group * head_dim];
        };
        const float* q = &in[size_t{first + query} * width() + head * head_dim];
        const float* d_out = of(dout, first + query, head);
        const uint32_t begin = window != 0 && query + 1 > window ? query + 1 - window : 0;
        std::vector<double> p(query + 1, 0.0);
        double sum = 0, dot_sum = 0;
        for (uint32_t key = begin; key <= query; ++key) sum += p[key] = std::exp(scale() * dot(q, at(key, q_size)));
        for (uint32_t key = begin; key <= query; ++key)
            dot_sum += (p[key] /= sum) * dot(d_out, at(key, q_size + kv_size));
        for (uint32_t key = begin; key <= query; ++key) {
            const float *k = at(key, q_size), *v = at(key, q_size + kv_size);
            const double ds = scale() * p[key] * (dot(d_out, v) - dot_sum);
            for (uint32_t d = 0; d < head_dim; ++d) {
                of(o, first + query, head)[d] += static_cast<float>(p[key] * v[d]);
                of(dq, first + query, head)[d] += static_cast<float>(ds * k[d]);
                of(dk, first + key, head)[d] += static_cast<float>(ds * q[d]);
                of(dv, first + key, head)[d] += static_cast<float>(p[key] * d_out[d]);
            }
        }
    }
};

std::vector<float> floats_of(const Buffer& buffer, size_t n) {
    std::vector<float> values(n);
    std::memcpy(values.data(), buffer.mapped().data(), n * sizeof(float));
    return values;
}

// The same case on the device.
struct FlashBuffers {
    Buffer sums, heads, dout, rounded, o, lse, dots, dq, dk, dv, tiles;
    uint32_t n_tiles = 0;

    Status make(Device& device, const FlashCase& test, const std::vector<float>& input) {
        const uint64_t out_bytes = test.dout.size() * sizeof(float),
                       row_bytes = uint64_t{FlashCase::kRows} * test.heads * 4;
        TRY(self_test::make(device, heads, input.size() * sizeof(uint16_t), MemoryKind::kHostReadback));
        for (Buffer* buffer : {&o, &dq, &dk, &dv, &rounded})
            TRY(self_test::make(device, *buffer, out_bytes, MemoryKind::kHostReadback));
        for (Buffer* buffer : {&lse, &dots})
            TRY(self_test::make(device, *buffer, row_bytes, MemoryKind::kHostReadback));
        std::vector<TrainFlashTile> token_tiles;
        uint32_t first = 0;
        for (const uint32_t n : FlashCase::kTokens) {
            for (uint32_t begin = 0; begin < n; begin += kFlashRows) token_tiles.push_back({first, n, begin, 0});
            first += n;
        }
        n_tiles = static_cast<uint32_t>(token_tiles.size());
        TRY(upload(device, tiles, std::as_bytes(std::span(token_tiles))));
        TRY(upload(device, sums, std::as_bytes(std::span(input))));
        return upload(device, dout, std::as_bytes(std::span(test.dout)));
    }
    TrainFlashParams params(const FlashCase& test, uint32_t window) const {
        return {.tiles = tiles.address(),
                .heads = heads.address(),
                .o = o.address(),
                .lse = lse.address(),
                .dout = rounded.address(),
                .dots = dots.address(),
                .dq = dq.address(),
                .dk = dk.address(),
                .dv = dv.address(),
                .heads_stride = test.width(),
                .o_stride = test.q_size,
                .dq_stride = test.q_size,
                .k_begin = test.q_size,
                .v_begin = test.q_size + test.kv_size,
                .scale = static_cast<float>(test.scale()),
                .window = window,
                .n_tiles = n_tiles};
    }
    // Against what the case computed.
    void compare(const FlashCase& test, self_test::Deviation& deviation) const {
        const std::array<std::pair<const Buffer*, const std::vector<float>*>, 4> results = {
            {{&o, &test.o}, {&dq, &test.dq}, {&dk, &test.dk}, {&dv, &test.dv}}};
        for (const auto& [got, want] : results) deviation.add(floats_of(*got, want->size()), *want);
    }

  private:
    static Status upload(Device& device, Buffer& buffer, std::span<const std::byte> bytes) {
        TRY(self_test::make(device, buffer, bytes.size(), MemoryKind::kHostUpload));
        std::memcpy(buffer.mapped().data(), bytes.data(), bytes.size());
        return ok_status();
    }
};

}  // namespace

void TrainKernels::record_flash_test(Recorder& recorder, const TrainFlashParams& params, DeviceAddress sums,
                                     DeviceAddress dout) {
    const uint32_t n_heads = params.o_stride / options_.head_dim;
    round(recorder,
          {.from = sums,
           .to = params.heads,
           .columns = params.heads_stride,
           .from_stride = params.heads_stride,
           .to_stride = params.heads_stride,
           .factor = 1.0f},
          matrix_type_, FlashCase::kRows);
    recorder.barrier();
    flash(recorder, TrainDirection::kForward, params, n_heads);
    recorder.barrier();
    dots(recorder,
         {.o = params.o,
          .dout = dout,
          .rounded = params.dout,
          .dots = params.dots,
          .head_dim = options_.head_dim,
          .stride = params.o_stride},
         n_heads, FlashCase::kRows);
    recorder.barrier();
    flash(recorder, TrainDirection::kBackward, params, n_heads);
}

Status TrainKernels::test_flash(Device& device) {
    FlashCase test(options_.head_dim, options_.head_group);
    std::mt19937 random(kFlashRows);
    std::normal_distribution<float> value(0.0f, 1.0f);
    std::vector<float> input(size_t{FlashCase::kRows} * test.width());
    for (float& number : input) number = value(random);
    test.dout.resize(size_t{FlashCase::kRows} * test.q_size);
    for (float& number : test.dout) number = value(random);
    FlashBuffers buffers;
    TRY(buffers.make(device, test, input));
    self_test::Deviation deviation;
    for (const uint32_t window : {0u, 70u}) {
        TRY_ASSIGN(Recorder recorder, Recorder::begin(device));
        record_flash_test(recorder, buffers.params(test, window), buffers.sums.address(), buffers.dout.address());
        const Status recorded = cache_.status();
        const Status ran = recorded.ok() ? self_test::submit_and_wait(device, std::move(recorder)) : recorded;
        if (!ran.ok() && ran.error().code == ErrorCode::kDeviceLost) return ran.error();
        if (!ran.ok()) {
            deviation.failure = ran.error().message;
            break;
        }
        // The reference starts from the heads as the kernels have them: rounded.
        test.in.resize(input.size());
        const auto* bits = reinterpret_cast<const uint16_t*>(buffers.heads.mapped().data());
        for (size_t i = 0; i < input.size(); ++i) test.in[i] = decode16(bits[i], matrix_type_);
        test.compute(window);
        buffers.compare(test, deviation);
    }
    // Weights and gradients of scores have 8 or 11 bits.
    has_flash_ = deviation.failure.empty() && deviation.error < (matrix_type_ == ScalarType::kBf16 ? 8e-3 : 1e-3);
    if (!has_flash_) self_test::tell_left_out_by_lanes(flash_module(matrix_type_), device, deviation);
    cache_.forget_failures();
    return ok_status();
}

}  // namespace lorad::gpu
