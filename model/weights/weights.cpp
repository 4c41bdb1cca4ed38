#include "model/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "gpu/kernels/kernels.h"
#include "gpu/upload.h"
#include "model/quant/brick_packer.h"
#include "model/quant/matrix_decoder.h"
#include "model/quant/matrix_source.h"
#include "model/weights/weight_inventory.h"
#include "proto/base/format.h"
#include "proto/base/log.h"
#include "proto/base/rounding.h"
#include "proto/json/json.h"

namespace lorad::model {

namespace {

// Tensors that some folders carry and no forward pass reads.
bool is_ignored(const ModelConfig& config, std::string_view name) {
    return name.ends_with("rotary_emb.inv_freq") || (config.tied_embeddings && name == "lm_head.weight");
}

// Some quantizers write a bias of zeros for each layer, also of models that have none.
bool is_empty_bias(const TensorFiles& files, const Tensor& tensor) {
    constexpr std::string_view kBias = "bias";
    if (!tensor.name.ends_with(".bias") || !is_weight_type(tensor.dtype)) return false;
    const Tensor* weight = files.find(tensor.name.substr(0, tensor.name.size() - kBias.size()) + "weight");
    if (!weight || !weight->source) return false;
    for (uint64_t i = 0; i < tensor.n_elements(); ++i) {
        if (number_at(tensor, i) != 0.0f) return false;
    }
    return true;
}

Result<float> finite_at(const WeightPart& part, uint64_t i) {
    const float number = number_at(*part.tensor, i);
    if (std::isfinite(number)) return number;
    return make_error(ErrorCode::kInvalidModel,
                      format("tensor {}: expected finite numbers, found {} at [{}]", part.name, number, i));
}

std::optional<gpu::ScalarType> common_type(const TensorFiles& files, const ModelConfig& config,
                                           std::optional<gpu::ScalarType> wished) {
    if (wished) return wished;
    if (std::ranges::none_of(files.tensors(), [](const Tensor& tensor) { return tensor.source != nullptr; }))
        return std::nullopt;
    return static_cast<gpu::ScalarType>(
        weight_type_of(config.dtype.value_or(config.wide_activations ? DType::kBF16 : DType::kF16)));
}

bool is_stored_as(const Tensor& tensor, gpu::ScalarType type) {
    return !tensor.source && static_cast<gpu::ScalarType>(weight_type_of(tensor.dtype)) == type;
}

uint64_t bytes_on_device(const Matrix& matrix) { return matrix.device_bytes(); }
uint64_t bytes_on_device(const Vector& vector) { return uint64_t{gpu::padded(vector.n)} * sizeof(float); }

bool are_alike(std::span<const float> a, std::span<const float> b) {
    // no table of NaN passes pack_rows()
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace

// Decides which matrices stay packed, and where the parts of each lie. Says which experts do not, though their files
// have them in few bits.
void WeightLoader::place_packed(std::vector<WeightPart>& parts, const Matrix& always_plain) {
    constexpr uint32_t kColumnsAtOnce = 4;  // that a product writes of a joined result
    // Biases may lie between the parts of a matrix.
    std::map<Matrix*, std::vector<const WeightPart*>> parts_of;
    for (const WeightPart& part : parts) {
        if (part.matrix && part.matrix != &always_plain) parts_of[part.matrix].push_back(&part);
    }
    std::map<std::string, uint32_t> decoded;  // matrices of experts, by what they become and why
    const auto tell_decoded = [&](const Matrix& matrix, std::string_view why) {
        ++decoded[format("{}: {}", gpu::name_of(gpu::format_of(matrix.type)), why)];
    };
    for (const auto& [place, own] : parts_of) {
        Matrix& matrix = *place;
        const auto is_in_few_bits = [](const WeightPart* part) {
            return part->tensor->source && !part->tensor->source->is_plain();
        };
        const bool are_experts = own.front()->is_of_experts && std::ranges::any_of(own, is_in_few_bits);
        const bool can = std::ranges::all_of(own, [&](const WeightPart* part) {
            return part->from == 0 && part->dims.empty() && part->tensor->source &&
                   part->tensor->source->device_format() && (own.size() == 1 || part->n % kColumnsAtOnce == 0);
        });
        if (!can) {
            if (!are_experts) continue;
            const auto odd = std::ranges::find_if(own, [&](const WeightPart* part) {
                return is_in_few_bits(part) && !part->tensor->source->device_format();
            });
            tell_decoded(matrix, odd == own.end() ? "some of them are plain, or have rows that are no multiple of 4"
                                                  : format("{} as the file has it has no format on the device",
                                                           (*odd)->tensor->source->format()));
            continue;
        }
        const MatrixSource* before = nullptr;
        for (const WeightPart* part : own) {
            const MatrixSource& source = *part->tensor->source;
            const gpu::WeightFormat format = *source.device_format();
            MatrixPart* last = matrix.parts.empty() ? nullptr : &matrix.parts.back();
            if (last != nullptr && last->format == format && last->n % gpu::kBrickRows == 0 &&
                are_alike(before->table(), source.table())) {
                last->n += part->n;
            } else {
                const uint64_t offset = last != nullptr
                                            ? round_up(last->offset + gpu::bytes_of(last->format, last->n, matrix.k),
                                                       uint64_t{gpu::kPartAlign})
                                            : 0;
                matrix.parts.push_back(
                    {.format = format, .row_begin = part->begin, .n = part->n, .offset = offset + gpu::kPartAlign});
            }
            before = &source;
        }
        if (are_experts && matrix.parts.size() > 1) {
            matrix.parts.clear();
            tell_decoded(matrix, "single experts are of several formats, or of rows that are no multiple of 16");
        }
    }
    for (const auto& [what, n] : decoded) log_info("weights: the experts of {} products become {}", n, what);
}

// Finds each part's tensor and the type of each matrix.
Status WeightLoader::bind(const TensorFiles& files, const ModelConfig& config, std::optional<gpu::ScalarType> all_as,
                          std::vector<WeightPart>& parts) {
    constexpr auto kCode = ErrorCode::kInvalidModel;
    std::set<std::string_view> known;
    for (WeightPart& part : parts) {
        known.insert(part.name);
        part.tensor = files.find(part.name);
        if (!part.tensor) {
            return make_error(kCode, format("tensor {} is missing: {} needs it with shape {}", part.name,
                                            config.architecture, shape_text(part.shape())));
        }
        if (part.tensor->shape != part.shape()) {
            return make_error(kCode, format("tensor {}: expected shape {} (from config.json), found {}", part.name,
                                            shape_text(part.shape()), shape_text(part.tensor->shape)));
        }
        const bool is_readable = is_weight_type(part.tensor->dtype) || (part.matrix && part.tensor->source);
        if (!is_readable) {
            const std::string_view found =
                part.tensor->source ? part.tensor->source->format() : name_of(part.tensor->dtype);
            return make_error(kCode, format("tensor {}: expected F32, F16 or BF16, found {}", part.name, found));
        }
        if (part.number) {
            TRY_ASSIGN(*part.number, finite_at(part, 0));
        }
        if (!part.matrix) continue;
        if (all_as) {
            part.matrix->type = *all_as;
            continue;
        }
        const auto type = static_cast<gpu::ScalarType>(weight_type_of(part.tensor->dtype));
        // Joined matrices of several types (q, k, v; gate, up) become what the model was made in.
        const bool is_mixed = part.begin != 0 && type != part.matrix->type;
        part.matrix->type =
            is_mixed ? static_cast<gpu::ScalarType>(weight_type_of(config.dtype.value_or(DType::kF16))) : type;
    }
    for (WeightPart& part : parts) {
        if (part.like) part.matrix->type = part.like->type;
    }
    for (const Tensor& tensor : files.tensors()) {
        if (!known.contains(tensor.name) && !is_ignored(config, tensor.name) && !is_empty_bias(files, tensor)) {
            return make_error(kCode, format("tensor {} {} is not part of a {} with this config.json",
                                            json_quote(tensor.name), shape_text(tensor.shape), config.architecture));
        }
    }
    return ok_status();
}

Status WeightLoader::upload_vector(gpu::Device& device, const WeightPart& part) {
    const Vector& to = *part.vector;
    // The last part brings the padding with it.
    const uint32_t end = part.begin + part.n;
    std::vector<float> values(end == to.n ? gpu::padded(to.n) - part.begin : part.n, 0.0f);
    for (uint32_t i = 0; i < part.n; ++i) {
        TRY_ASSIGN(const float number, finite_at(part, i));
        values[i] = part.times * number + part.plus;
    }
    return device.uploader().upload(to.buffer, part.begin * sizeof(float), std::as_bytes(std::span(values)));
}

Status WeightLoader::upload_packed(gpu::Device& device, const WeightPart& part,
                                   const std::function<void(uint64_t)>& on_bytes) {
    constexpr uint64_t kPieceBytes = uint64_t{32} << 20;
    const Matrix& to = *part.matrix;
    const MatrixPart& place = to.part_of(part.begin);
    const std::span<const float> table = part.tensor->source->table();
    if (!table.empty())
        TRY(device.uploader().upload(to.buffer, place.offset - gpu::kPartTableBytes, std::as_bytes(table)));
    const uint64_t band_bytes = gpu::bytes_of(place.format, gpu::kBrickRows, to.k);
    const uint64_t piece_rows = std::max<uint64_t>(1, kPieceBytes / band_bytes) * gpu::kBrickRows;
    std::vector<std::byte> bricks;
    for (uint64_t row = 0; row < part.n; row += piece_rows) {
        const uint64_t n_rows = std::min(piece_rows, part.n - row);
        bricks.resize(gpu::bytes_of(place.format, n_rows, to.k));
        TRY(pack_rows(*part.tensor, row, n_rows, to.type, bricks));
        TRY(device.uploader().upload(
            to.buffer, place.offset + (part.begin - place.row_begin + row) / gpu::kBrickRows * band_bytes, bricks));
        on_bytes(bricks.size());
    }
    return ok_status();
}

// Rows go in one piece where the file's rows are as long as the device's; only padding is filled, never data twice.
Status WeightLoader::upload_matrix(gpu::Device& device, const WeightPart& part,
                                   const std::function<void(uint64_t)>& on_bytes) {
    const Matrix& to = *part.matrix;
    if (to.is_packed()) return upload_packed(device, part, on_bytes);
    gpu::Uploader& uploader = device.uploader();
    const bool has_gaps = to.k != to.k_stride;
    if (part.begin == 0) {
        const uint64_t fill_begin = has_gaps ? 0 : to.row_bytes() * to.n;
        if (fill_begin < bytes_on_device(to))
            TRY(uploader.fill_zero(to.buffer, fill_begin, bytes_on_device(to) - fill_begin));
    }
    // Goes by pieces, so that progress is seen while a large matrix is loaded, and decoded numbers take little memory.
    const bool is_as_stored = is_stored_as(*part.tensor, to.type);
    const uint64_t piece_bytes = uint64_t{is_as_stored ? 256u : 32u} << 20;
    const uint64_t row_bytes = uint64_t{to.k} * gpu::bytes_of(to.type);
    const uint64_t piece_rows = std::max<uint64_t>(1, piece_bytes / row_bytes);
    std::vector<std::byte> decoded;
    for (uint64_t row = 0; row < part.n; row += piece_rows) {
        const uint64_t n_rows = std::min(piece_rows, part.n - row);
        std::span<const std::byte> bytes;
        if (is_as_stored) {
            bytes = part.tensor->data.subspan((part.from + row) * row_bytes, n_rows * row_bytes);
        } else {
            decoded.resize(n_rows * row_bytes);
            TRY(decode_rows(*part.tensor, part.from + row, n_rows, to.type, decoded));
            bytes = decoded;
        }
        const uint64_t to_offset = (part.begin + row) * to.row_bytes();
        if (has_gaps) {
            TRY(uploader.upload_rows(to.buffer, to_offset, to.row_bytes(), bytes, row_bytes, n_rows));
        } else {
            TRY(uploader.upload(to.buffer, to_offset, bytes));
        }
        on_bytes(bytes.size());
    }
    return ok_status();
}

WeightLoader::WeightLoader(std::vector<WeightPart> parts) : parts_(std::move(parts)) {}
WeightLoader::~WeightLoader() = default;

Result<std::unique_ptr<WeightLoader>> WeightLoader::create(const TensorFiles& files, const ModelConfig& config,
                                                           ModelWeights& weights, const WeightOptions& options) {
    for (const std::string& note : files.left_out()) log_info("weights: {}", note);
    std::vector<WeightPart> parts = weight_inventory(files, config, weights);
    TRY(bind(files, config, common_type(files, config, options.type), parts));
    if (options.keeps_packed) place_packed(parts, weights.ple_table);
    return std::unique_ptr<WeightLoader>(new WeightLoader(std::move(parts)));
}

Result<TensorFiles> WeightLoader::imagine(const ModelConfig& config) {
    if (config.quantization) {
        return make_error(
            ErrorCode::kInvalidModel,
            "the config says that the weights are quantized: their files are needed to say what they take");
    }
    const TensorFiles none = TensorFiles::of({}, {});
    ModelWeights weights;
    const std::vector<WeightPart> parts = weight_inventory(none, config, weights);
    const DType dtype = config.dtype.value_or(DType::kF16);
    uint64_t zero_bytes = 0;
    for (const WeightPart& part : parts) {
        if (!part.matrix) zero_bytes = std::max(zero_bytes, uint64_t{part.n} * bytes_of(dtype));
    }
    const auto zeros = std::make_shared<const std::vector<std::byte>>(zero_bytes);
    std::vector<Tensor> tensors;
    std::set<std::string_view> known;
    for (const WeightPart& part : parts) {
        if (!known.insert(part.name).second) continue;  // several parts of one tensor
        const std::span<const std::byte> data =
            part.matrix ? std::span<const std::byte>() : std::span(*zeros).first(uint64_t{part.n} * bytes_of(dtype));
        tensors.push_back({.name = part.name, .dtype = dtype, .shape = part.shape(), .data = data});
    }
    return TensorFiles::of(std::move(tensors), {zeros});
}

uint64_t WeightLoader::device_bytes() const {
    uint64_t sum = 0;
    for (const WeightPart& part : parts_) {
        if (part.begin == 0 && !part.number)
            sum += part.matrix ? bytes_on_device(*part.matrix) : bytes_on_device(*part.vector);
    }
    return sum;
}

Status WeightLoader::allocate(gpu::Device& device) {
    if (device_bytes() > device.free_bytes_estimate()) {
        return make_error(ErrorCode::kOutOfMemory,
                          format("the weights need {} bytes of device memory, {} are free on {}", device_bytes(),
                                 device.free_bytes_estimate(), device.capabilities().name));
    }
    for (const WeightPart& part : parts_) {
        if (part.begin != 0 || part.number) continue;
        gpu::Buffer& buffer = part.matrix ? part.matrix->buffer : part.vector->buffer;
        const uint64_t n_bytes = part.matrix ? bytes_on_device(*part.matrix) : bytes_on_device(*part.vector);
        TRY_ASSIGN(buffer, device.create_buffer(n_bytes, gpu::MemoryKind::kDeviceLocal, part.name.c_str()));
    }
    return ok_status();
}

Status WeightLoader::upload(gpu::Device& device, const LoadProgress& progress) {
    uint64_t n_bytes = 0, n_bytes_done = 0, n_bytes_told = 0;
    const auto bytes_of_part = [](const WeightPart& part) {
        if (part.matrix && part.matrix->is_packed())
            return gpu::bytes_of(part.matrix->part_of(part.begin).format, part.n, part.k);
        return part.matrix ? uint64_t{part.n} * part.k * gpu::bytes_of(part.matrix->type)
                           : uint64_t{part.tensor->data.size()};
    };
    for (const WeightPart& part : parts_) n_bytes += bytes_of_part(part);
    const auto on_bytes = [&](uint64_t n) {
        n_bytes_done += n;
        if (!progress || (n_bytes_done - n_bytes_told < n_bytes / 100 && n_bytes_done < n_bytes)) return;
        n_bytes_told = n_bytes_done;
        progress(n_bytes_done, n_bytes);
    };
    for (const WeightPart& part : parts_) {
        if (part.matrix) {
            TRY(upload_matrix(device, part, on_bytes));
        } else {
            if (part.vector) TRY(upload_vector(device, part));
            on_bytes(bytes_of_part(part));
        }
    }
    return device.uploader().finish();
}

}  // namespace lorad::model
