// Reads safetensors files, trusting no byte of them: base models and adapters alike. A file is mapped, its header is
// checked in full (lengths, types, shapes, byte ranges that tile the data exactly), and tensors are spans of the
// mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/result.h"

namespace lorad::model {

class MatrixSource;

// Types the format knows. Only the three first are weights that lorad applies.
// kPacked is no type of the format: a matrix of few bits, whose numbers a MatrixSource has.
enum class DType : uint8_t {
    kF32,
    kF16,
    kBF16,
    kF64,
    kI64,
    kI32,
    kI16,
    kI8,
    kU64,
    kU32,
    kU16,
    kU8,
    kBool,
    kF8E4M3,
    kF8E5M2,
    kPacked
};
std::string_view name_of(DType dtype);  // "F32"
uint32_t bytes_of(DType dtype);         // of a number; not of kPacked (CHECK)
// The device's number of a weight type: 0 f32, 1 f16, 2 bf16, as gpu::ScalarType. Only for those three (CHECK).
uint32_t weight_type_of(DType dtype);
inline bool is_weight_type(DType dtype) { return dtype <= DType::kBF16; }
// One number of a weight type as f32, exactly. Bits of a NaN may differ.
float widen(DType dtype, const std::byte* at);

inline constexpr size_t kTensorDimensionsMax = 8;
inline constexpr uint64_t kSafetensorsHeaderBytesMax = uint64_t{32} << 20;
// The limit for an adapter: ten thousand tensors, where 450 are usual, and at most 16 MiB of memory to read them.
inline constexpr uint64_t kAdapterHeaderBytesMax = uint64_t{1} << 20;

struct Tensor {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<uint64_t> shape;
    // into the file's mapping; of a packed matrix its codes, which tell two of them apart
    std::span<const std::byte> data;
    std::shared_ptr<const MatrixSource> source = nullptr;  // of a packed matrix, [rows][columns]; else null

    uint64_t n_elements() const;
};
// Number `i` of a tensor of a weight type, and all of its numbers, as widen().
inline float number_at(const Tensor& tensor, uint64_t i) {
    return widen(tensor.dtype, tensor.data.data() + i * bytes_of(tensor.dtype));
}
std::vector<float> numbers_of(const Tensor& tensor);
// "[4, 128]"
std::string shape_text(std::span<const uint64_t> shape);

inline constexpr size_t kSafetensorsLengthBytes = 8;
// Finds the end of a file's header; looks at its first kSafetensorsLengthBytes only. Errors and limits as
// parse_safetensors().
Result<uint64_t> safetensors_header_end(std::span<const std::byte> file, ErrorCode code);

// The tensors of one file's bytes, sorted by name; spans point into `file`. `code` is the code of errors; their message
// says what is wrong, not in which file; with kAdapterInvalid the header may have kAdapterHeaderBytesMax, else
// kSafetensorsHeaderBytesMax.
// Looks at the header only. This is the fuzzed entry point.
// `metadata`, if given, gets the pairs of __metadata__.
using Metadata = std::map<std::string, std::string, std::less<>>;
Result<std::vector<Tensor>> parse_safetensors(std::span<const std::byte> file, ErrorCode code,
                                              Metadata* metadata = nullptr);

// One or more mapped files whose tensors are found by name. Read-only, so any thread. Spans live as long as this.
class TensorFiles {
  public:
    // One file, mapped: for the base model, which nobody changes while it loads.
    static Result<TensorFiles> map(const std::filesystem::path& file, ErrorCode code);
    // One file of at most n_bytes_max, copied into memory: for files that a client can name, since a mapped file that
    // is cut short under us would kill the process.
    static Result<TensorFiles> read(const std::filesystem::path& file, uint64_t n_bytes_max, ErrorCode code);
    // A model folder: model.safetensors, or the shards that model.safetensors.index.json lists (inside the folder only;
    // the index and the shards must agree on every tensor). Codes: kInvalidModel. Where the folder holds the bare
    // decoder (AutoModel's names, "layers.0..."), its tensors are named as in the model with its output layer:
    // "model.layers.0...".
    static Result<TensorFiles> map_folder(const std::filesystem::path& folder);

    // Tensors that somebody else has read, and what keeps their bytes and sources alive. Names differ.
    static TensorFiles of(std::vector<Tensor> tensors, std::vector<std::shared_ptr<const void>> owners);

    TensorFiles(TensorFiles&&) noexcept;
    TensorFiles& operator=(TensorFiles&&) noexcept;
    ~TensorFiles();

    std::span<const Tensor> tensors() const { return tensors_; }  // sorted by name
    // Describes the same files by other tensors, sorted by name, whose data and sources lie in these files: tensors of
    // a matrix of few bits are joined.
    void set_tensors(std::vector<Tensor> tensors, std::vector<std::string> left_out = {});
    // Things in the files that were not read, with the reason: a line for people each.
    const std::vector<std::string>& left_out() const { return left_out_; }
    const Tensor* find(std::string_view name) const;  // nullptr if absent
    // of all tensors that the files hold, however they are told
    uint64_t total_bytes() const;

  private:
    TensorFiles();
    Status name_as_causal_lm();
    static Result<TensorFiles> parse(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                                     const std::filesystem::path& file, ErrorCode code);
    std::vector<std::shared_ptr<const void>> owners_;  // of the files' bytes
    std::vector<Tensor> tensors_;
    std::vector<std::string> left_out_;
    std::optional<uint64_t> n_bytes_told_otherwise_;  // total_bytes() before set_tensors()
};

}  // namespace lorad::model
