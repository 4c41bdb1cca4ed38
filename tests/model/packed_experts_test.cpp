// Experts whose matrices lie in few bits on the device: their products by every format, and whole models.
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "gpu/kernels/experts/expert_kernels.h"
#include "model/exec/runner.h"
#include "model/files/model_files.h"
#include "model/quant/quantize.h"
#include "model/weights/weights.h"
#include "tests/reference/experts.h"
#include "tests/reference/numbers.h"
#include "tests/support/best_path.h"
#include "tests/support/family_gguf.h"
#include "tests/support/goldens.h"
#include "tests/support/load_executor.h"
#include "tests/support/packed_fixture.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_dir.h"

namespace lorad::model::packed_experts_test {
namespace {

using namespace lorad::testing;
using gpu::ScalarType;
using gpu::WeightFormat;
using reference::Type;

constexpr uint32_t kExperts = 3, kTop = 2, kRowsOfX = 12, kPairs = kRowsOfX * kTop;
constexpr gpu::RouterShape kShape{.experts = kExperts, .top = kTop};

// A matrix whose rows are cut into experts, in memory, with rows of x and a list of tiles.
class PackedExperts : public PackedFixture {
  protected:
    struct Product {
        uint32_t n = 0, k = 0, stride = 0;  // of one expert
        gpu::WeightKind kind = ScalarType::kF32;
        std::vector<float> w, x;  // what the matrix and the rows hold
        gpu::Buffer part, x_buffer, sorted, tiles, n_tiles;
        std::vector<uint32_t> expert_of = std::vector<uint32_t>(kPairs, kExperts);  // kExperts: in no tile
    };

    Product make_product(const Tensor& tensor, ScalarType type, uint32_t tile_rows) {
        Product p;
        p.n = static_cast<uint32_t>(tensor.shape[0]) / kExperts / 4 * 4;
        p.k = static_cast<uint32_t>(tensor.shape[1]);
        p.stride = gpu::padded(p.k);
        p.kind = {*tensor.source->device_format(), type};
        p.part = pack(tensor, type);
        p.w.resize(tensor.shape[0] * p.k);
        tensor.source->decode(0, tensor.shape[0], p.w);
        const auto as = static_cast<Type>(gpu::is_rounded(p.kind.format) ? type : ScalarType::kF32);
        p.w = reference::decode(reference::encode(p.w, p.k, p.k, as), as);
        const auto act = static_cast<Type>(kernels_->experts.act_type(type));
        p.x = reference::random_values(size_t{kRowsOfX} * p.k, act, random_);
        p.x_buffer = input(reference::encode(p.x, p.k, p.stride, act));
        std::vector<uint32_t> sorted(kPairs);
        for (uint32_t i = 0; i < kPairs; ++i) sorted[i] = i * 7 % kPairs;
        std::vector<gpu::ExpertTile> tiles;
        for (uint32_t begin = 0, i = 0; begin + 1 < kPairs; ++i) {
            const uint32_t n = std::min(i == 1 ? 1 : tile_rows, kPairs - 1 - begin);
            tiles.push_back({i % kExperts, begin, n, 0});
            for (uint32_t j = 0; j < n; ++j) p.expert_of[sorted[begin + j]] = i % kExperts;
            begin += n;
        }
        p.sorted = input(sorted);
        p.tiles = input(tiles);
        p.n_tiles = input(std::vector<uint32_t>{static_cast<uint32_t>(tiles.size())});
        return p;
    }

    gpu::ExpertProductParams params_of(const Product& p, const gpu::Buffer& y, uint32_t y_stride) const {
        return {.sorted = p.sorted.address(),
                .n_tiles = p.n_tiles.address(),
                .tiles = p.tiles.address(),
                .w = p.part.address() + gpu::kPartAlign,
                .x = p.x_buffer.address(),
                .y = y.address(),
                .bias = 0,
                .n = p.n,
                .w_stride = p.stride,
                .y_stride = y_stride,
                .pairs_per_row = kTop,
                .alpha = 0,
                .limit = 0};
    }

    struct Sum {
        double value = 0, magnitude = 0;
    };
    static Sum sum_of(const Product& p, uint32_t pair, uint32_t row) {
        Sum sum;
        const float* w = &p.w[(size_t{p.expert_of[pair]} * p.n + row) * p.k];
        for (uint32_t i = 0; i < p.k; ++i) {
            const double term = static_cast<double>(w[i]) * p.x[size_t{pair / kTop} * p.k + i];
            sum.value += term;
            sum.magnitude += std::fabs(term);
        }
        return sum;
    }

    // rounding: of each weight, of its size and, of what 16 bits hold as subnormals, in all.
    void expect_product(const Tensor& tensor, ScalarType type, const gpu::ExpertPlan& plan, double rounding = 0) {
        const Product p = make_product(tensor, type, plan.tile_rows);
        const gpu::Buffer y = memory(uint64_t{kPairs} * p.n * sizeof(float), gpu::MemoryKind::kHostReadback);
        execute([&](gpu::Recorder& recorder) {
            kernels_->experts.product(recorder, params_of(p, y, p.n), kShape, plan, p.kind, kRowsOfX);
        });
        const auto* got = reinterpret_cast<const float*>(y.mapped().data());
        const std::string what = tensor.name + " by tiles of " + std::to_string(plan.tile_rows) + ", pair ";
        for (uint32_t pair = 0; pair < kPairs; ++pair) {
            if (p.expert_of[pair] == kExperts) {
                ASSERT_TRUE(std::isnan(got[size_t{pair} * p.n])) << what << pair << " was written";
                continue;
            }
            for (uint32_t row = 0; row < p.n; ++row) {
                const Sum want = sum_of(p, pair, row);
                // Portable weights are exact: only k sums of f32 are rounded, by 2^-24 of what the magnitudes' sum may
                // be.
                const double allowed =
                    (std::ldexp(p.k, -24) + rounding) * want.magnitude + (rounding != 0 ? std::ldexp(p.k, -24) : 1e-30);
                ASSERT_NEAR(got[size_t{pair} * p.n + row], want.value, allowed) << what << pair << ", row " << row;
            }
        }
    }

    struct Gate {
        gpu::ExpertGate gate;
        bool has_bias = false;
    };
    void expect_gated(const Tensor& tensor, ScalarType type, const gpu::ExpertPlan& plan, const Gate& with,
                      double rounding) {
        Product p = make_product(tensor, type, plan.tile_rows);
        constexpr double kAlpha = 1.702, kLimit = 0.75;
        const uint32_t size = p.n / 2, y_stride = gpu::padded(size);
        const auto act = static_cast<Type>(kernels_->experts.act_type(type));
        const auto bias = reference::random_values(size_t{kExperts} * p.n, Type::kF32, random_);
        const gpu::Buffer bias_buffer = input(bias);
        const size_t n_bytes = size_t{kPairs} * y_stride * gpu::bytes_of(static_cast<ScalarType>(act));
        const gpu::Buffer y = memory(n_bytes, gpu::MemoryKind::kHostReadback);
        gpu::ExpertProductParams params = params_of(p, y, y_stride);
        params.bias = with.has_bias ? bias_buffer.address() : 0;
        params.alpha = static_cast<float>(kAlpha);
        params.limit = static_cast<float>(kLimit);
        execute([&](gpu::Recorder& recorder) {
            kernels_->experts.product(recorder, params, kShape, plan, p.kind, kRowsOfX, with.gate);
        });
        const std::vector<float> got =
            reference::decode(std::vector<std::byte>(y.mapped().begin(), y.mapped().end()), act);
        for (uint32_t pair = 0; pair < kPairs; ++pair) {
            if (p.expert_of[pair] == kExperts) continue;
            const size_t expert = p.expert_of[pair];
            for (uint32_t f = 0; f < size; ++f) {
                const uint32_t g = with.gate.interleaved ? 2 * f : f, u = with.gate.interleaved ? 2 * f + 1 : size + f;
                const Sum gate_sum = sum_of(p, pair, g), up_sum = sum_of(p, pair, u);
                const double gate = gate_sum.value + (with.has_bias ? bias[expert * p.n + g] : 0.0f),
                             up = up_sum.value + (with.has_bias ? bias[expert * p.n + u] : 0.0f);
                const double want = with.gate.clamped ? reference::clamped_swiglu(gate, up, kAlpha, kLimit)
                                                      : reference::silu(gate) * up;
                // The derivatives by gate and by up are at most 1.2 and 1 of the other's size and 1.
                const double of_sums =
                    (std::ldexp(p.k, -24) + rounding) *
                    (1.2 * gate_sum.magnitude * (1 + std::fabs(up)) + up_sum.magnitude * (1 + std::fabs(gate)));
                ASSERT_NEAR(got[size_t{pair} * y_stride + f], want, of_sums + (rounding + 1e-6) * std::fabs(want))
                    << tensor.name << " pair " << pair << ", output " << f;
            }
        }
    }

    std::mt19937 random_{20261130};
};

std::vector<Tensor> of_all_formats(const FolderMatrices& folders, uint64_t n_rows) {
    std::vector<Tensor> all = matrices_of_blocks(n_rows);
    all.insert(all.end(), folders.matrices.begin(), folders.matrices.end());
    return all;
}

// Rows of an expert begin in the middle of a brick.
TEST_F(PackedExperts, ProductsEqualTheReferenceInEveryFormat) {
    const FolderMatrices folders = matrices_of_folders();
    std::set<WeightFormat> seen;
    uint32_t turn = 0;
    for (const Tensor& tensor : of_all_formats(folders, 37)) {
        const WeightFormat format = *tensor.source->device_format();
        if (!seen.insert(format).second) continue;
        // All read weights by the same functions; each tile size has a module of its own.
        const uint32_t tile_rows = std::array{1u, 2u, gpu::kExpertTileRows}[turn++ % 3];
        expect_product(tensor, turn % 2 == 0 ? ScalarType::kBf16 : ScalarType::kF32, {.tile_rows = tile_rows});
        if (format != WeightFormat::kMXFP4) continue;
        for (const uint32_t rows : {1u, 2u, gpu::kExpertTileRows})
            expect_product(tensor, ScalarType::kF32, {.tile_rows = rows});
    }
    EXPECT_EQ(seen.size(), gpu::kWeightFormats - gpu::kWeightsQ8_0) << "of the formats";
}

// By every tile that the device takes. Software takes minutes for a kernel on matrices, so it has some of the formats.
TEST_F(PackedExperts, ProductsOnMatricesEqualTheReference) {
    kernels_ = must(gpu::KernelSet::create(device_, {.path = best_path(), .has_experts = true}));
    const std::set<WeightFormat> some = {WeightFormat::kMXFP4, WeightFormat::kQ4_K, WeightFormat::kQ8_0};
    const FolderMatrices folders = matrices_of_folders();
    uint32_t n_products = 0;
    for (const ScalarType type : {ScalarType::kF16, ScalarType::kBf16}) {
        std::set<WeightFormat> seen;
        for (const Tensor& tensor : of_all_formats(folders, 600)) {
            const gpu::WeightKind kind(*tensor.source->device_format(), type);
            if (!kernels_->experts.has_matrices(kind) || !seen.insert(kind.format).second) continue;
            if (device_.capabilities().is_cpu && !some.contains(kind.format)) continue;
            const auto n = static_cast<uint32_t>(tensor.shape[0]) / kExperts / 4 * 4,
                       stride = gpu::padded(static_cast<uint32_t>(tensor.shape[1]));
            for (const uint32_t rows : kernels_->experts.matrix_tiles({n, n, stride, stride, kind, kind})) {
                expect_product(tensor, type, {.tile_rows = rows, .on_matrices = true},
                               std::ldexp(1.0, type == ScalarType::kF16 ? -11 : -8));
                ++n_products;
            }
        }
    }
    if (n_products == 0) GTEST_SKIP() << "no cooperative matrices: " << device_.capabilities().name;
}

// gpt-oss with gates and ups by turns, its clamps and biases, and the halves of other families.
TEST_F(PackedExperts, ProductsEndInTheActivation) {
    const auto gpt = must(ModelFiles::open(goldens_dir() / "families/models/gpt-oss-mxfp4"));
    const TensorFiles gpt_files = must(gpt->tensors());
    const auto llama = must(ModelFiles::open(goldens_dir() / "quantized/gguf/llama-Q4_K_M.gguf"));
    const TensorFiles llama_files = must(llama->tensors());
    const Gate clamped{{.activation = gpu::Activation::kSilu, .clamped = true, .interleaved = true}, true};
    expect_gated(*gpt_files.find("model.layers.0.mlp.experts.gate_up_proj.weight"), ScalarType::kF32,
                 {.tile_rows = gpu::kExpertTileRows}, clamped, 0);
    expect_gated(*llama_files.find("model.layers.0.mlp.gate_proj.weight"), ScalarType::kF32, {.tile_rows = 2}, {}, 0);
}

// All experts of a golden model as the loader brings them to the device.
class PackedExpertsOfModels : public PackedFixture {
  protected:
    void expect_numbers(const Matrix& matrix, const Tensor& tensor) {
        ASSERT_TRUE(matrix.is_packed()) << tensor.name;
        std::vector<float> want(tensor.n_elements());
        tensor.source->decode(0, tensor.shape[0], want);
        const gpu::Buffer to = memory(uint64_t{matrix.n} * matrix.row_bytes(), gpu::MemoryKind::kHostReadback);
        execute([&](gpu::Recorder& recorder) {
            kernels_->products.unpack_weights(recorder,
                                              {.from = matrix.address(),
                                               .to = to.address(),
                                               .first_row = 0,
                                               .n = matrix.n,
                                               .n_rows = matrix.n,
                                               .stride = matrix.k_stride},
                                              matrix.kind());
        });
        const auto* got = reinterpret_cast<const float*>(to.mapped().data());
        for (size_t i = 0; i < want.size(); ++i)
            ASSERT_EQ(got[i / matrix.k * matrix.k_stride + i % matrix.k], want[i]) << tensor.name << " " << i;
    }

    void expect_mxfp4(const std::filesystem::path& path) {
        const auto files = must(ModelFiles::open(path));
        const TensorFiles tensors = must(files->tensors());
        ModelWeights weights;
        const auto loader =
            must(WeightLoader::create(tensors, must(files->config()), weights, {.type = ScalarType::kF32}));
        ASSERT_TRUE(loader->allocate(device_).ok());
        ASSERT_TRUE(loader->upload(device_, {}).ok());
        for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
            const LayerWeights& w = weights.layers[layer];
            EXPECT_EQ(w.expert_gate_up.kind().format, WeightFormat::kMXFP4);
            const std::string stem = "model.layers." + std::to_string(layer) + ".mlp.experts.";
            expect_numbers(w.expert_gate_up, *tensors.find(stem + "gate_up_proj.weight"));
            expect_numbers(w.expert_down, *tensors.find(stem + "down_proj.weight"));
        }
    }
};

TEST_F(PackedExpertsOfModels, AreTheFilesNumbersInFourBits) {
    const std::filesystem::path folder = goldens_dir() / "families/models/gpt-oss-mxfp4";
    expect_mxfp4(folder);
    const auto files = must(ModelFiles::open(folder));
    const ModelConfig config = must(files->config());
    const lorad::testing::TempDir dir;
    const std::filesystem::path gguf = dir.path() / "model.gguf";
    std::ofstream(gguf, std::ios::binary)
        << family_as_gguf(meaning_of(must(files->tensors()), config), config, "gpt-oss", ExpertsAs::kMxfp4);
    expect_mxfp4(gguf);
}

// Qwen3 MoE, whose rows are whole blocks of every type, and with experts of 40 rows, which are no whole bricks.
constexpr RandomModel::Shape kMoe{.hidden = 256,
                                  .heads = 4,
                                  .kv_heads = 2,
                                  .head_dim = 64,
                                  .ffn = 256,
                                  .layers = 2,
                                  .vocab = 128,
                                  .experts = 4,
                                  .top = 2};
constexpr RandomModel::Shape kOddMoe{.hidden = 64,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .ffn = 40,
                                     .layers = 1,
                                     .vocab = 128,
                                     .experts = 4,
                                     .top = 2};

// Which matrices lie how, without a device.
ModelWeights placed(const std::filesystem::path& path, std::optional<QuantizeType> quantize, bool keeps_packed = true) {
    const auto files = must(ModelFiles::open(path));
    TensorFiles tensors = must(files->tensors());
    if (quantize) quantize_tensors(tensors, *quantize);
    ModelWeights weights;
    must(WeightLoader::create(tensors, must(files->config()), weights, {.keeps_packed = keeps_packed}));
    return weights;
}

TEST(PackedExpertsPlaces, SingleExpertsOfOneFormatAreOnePart) {
    const RandomModel model(kMoe);
    const std::pair<QuantizeType, WeightFormat> all[] = {{QuantizeType::kQ4_K, WeightFormat::kQ4_K},
                                                         {QuantizeType::kNf4, WeightFormat::kTable}};
    for (const auto& [type, format] : all) {
        const ModelWeights weights = placed(model.folder(), type);
        for (const Matrix* matrix : {&weights.layers[1].expert_gate_up, &weights.layers[1].expert_down}) {
            EXPECT_EQ(matrix->kind().format, format);
            ASSERT_EQ(matrix->parts.size(), 1u);
            EXPECT_EQ(matrix->parts.front().n, matrix->n);
            EXPECT_EQ(matrix->device_bytes(), gpu::kPartAlign + gpu::bytes_of(format, matrix->n, matrix->k));
        }
        EXPECT_FALSE(weights.layers[1].router.is_packed());
    }
    EXPECT_FALSE(placed(model.folder(), QuantizeType::kQ4_K, false).layers[1].expert_gate_up.is_packed());
}

TEST(PackedExpertsPlaces, SingleExpertsThatAreNoWholeBricksAreDecoded) {
    const RandomModel model(kOddMoe);
    const ModelWeights weights = placed(model.folder(), QuantizeType::kQ8_0);
    EXPECT_FALSE(weights.layers[0].expert_gate_up.is_packed()) << "gates and ups of 40 rows";
    EXPECT_FALSE(weights.layers[0].expert_down.is_packed()) << "rows of 40 are no whole blocks";
}

TEST(PackedExpertsPlaces, StacksOfGgufFilesStayWhereGatesAndUpsAreOfOneType) {
    const RandomModel model(kMoe);
    const auto files = must(ModelFiles::open(model.folder()));
    const ModelConfig config = must(files->config());
    const NamedNumbers numbers = meaning_of(must(files->tensors()), config);
    const lorad::testing::TempDir dir;
    const std::filesystem::path gguf = dir.path() / "model.gguf";
    for (const ExpertsAs as : {ExpertsAs::kQ8_0, ExpertsAs::kMixed}) {
        std::ofstream(gguf, std::ios::binary) << family_as_gguf(numbers, config, "qwen3moe", as);
        const ModelWeights weights = placed(gguf, std::nullopt);
        EXPECT_EQ(weights.layers[0].expert_gate_up.is_packed(), as == ExpertsAs::kQ8_0);
        EXPECT_EQ(weights.layers[0].expert_down.is_packed(), as == ExpertsAs::kQ8_0);
    }
}

std::vector<float> logits_of(const std::filesystem::path& model, std::optional<QuantizeType> quantize,
                             bool keeps_packed) {
    const auto executor = load_executor(model, {.n_rows_max = 64,
                                                .n_sequences_max = 4,
                                                .n_positions_max = 128,
                                                .n_adapter_slots = 2,
                                                .weight_type = ScalarType::kF32,
                                                .keeps_packed = keeps_packed,
                                                .quantize = quantize,
                                                .kernel_path = gpu::KernelPath::kPortable,
                                                .decode = gpu::PersistentDecode::kOff});
    EXPECT_EQ(executor->weights().layers.back().expert_gate_up.is_packed(), keeps_packed);
    Runner runner(*executor);
    std::vector<TokenId> ids;
    for (uint32_t i = 0; i < 21; ++i) ids.push_back(TokenId{static_cast<int32_t>(i * 17 % 101)});
    return must(runner.logits(ids, false));
}

// The same numbers decoded into f32, whose products are the same sums in another order.
TEST(PackedExpertsLogits, EqualThoseOfDecodedWeights) {
    const RandomModel model(kMoe);
    for (const auto& [path, quantize] :
         {std::pair(model.folder(), std::optional(QuantizeType::kQ4_K)),
          std::pair(goldens_dir() / "families/models/gpt-oss-mxfp4", std::optional<QuantizeType>())}) {
        const std::vector<float> decoded = logits_of(path, quantize, false), packed = logits_of(path, quantize, true);
        EXPECT_LE(relative_error(packed.data(), decoded.data(), decoded.size()), 1e-4) << path;
    }
}

}  // namespace
}  // namespace lorad::model::packed_experts_test
