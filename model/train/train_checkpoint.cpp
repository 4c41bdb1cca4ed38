#include "model/train/train_checkpoint.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string_view>

#include "proto/base/format.h"

namespace lorad::model {
namespace {

using Range = TrainParameters::Range;
constexpr std::array kKept = {Range::kValues, Range::kFirst, Range::kSecond};

struct CheckpointHead {
    uint64_t magic = 0;
    uint64_t shape = 0;  // digest of names, shapes and scales
    uint64_t n_steps = 0;
    uint64_t n_elements = 0;
    uint64_t content = 0;  // digest of what follows
};
constexpr uint64_t kMagic = 0x315452414f4cull;

// FNV-1a of 64 bits: finds damage and mistakes, not forgery.
class Digest {
  public:
    void add(std::span<const std::byte> bytes) {
        for (const std::byte byte : bytes) value_ = (value_ ^ static_cast<uint64_t>(byte)) * 0x100000001b3ull;
    }
    // Eight bytes at a time: of numbers, which are many.
    void add_words(std::span<const std::byte> bytes) {
        for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
            uint64_t word;
            std::memcpy(&word, bytes.data() + i, 8);
            value_ = std::rotl((value_ ^ word) * 0x9e3779b97f4a7c15ull, 29);
        }
        add(bytes.subspan(bytes.size() / 8 * 8));
    }
    uint64_t value() const { return value_; }

  private:
    uint64_t value_ = 0xcbf29ce484222325ull;
};

uint64_t digest_of_shape(const TrainableAdapter& shape) {
    Digest digest;
    for (const TrainedTensor* tensor : shape.tensors()) {
        digest.add(std::as_bytes(std::span(std::string_view(tensor->name))));
        digest.add(std::as_bytes(std::span(tensor->shape)));
    }
    const auto add_scale = [&](const TrainedPair& pair) { digest.add(std::as_bytes(std::span(&pair.scale, 1))); };
    for (const TrainedLinear& linear : shape.linears) add_scale(linear.pair);
    if (shape.embedding) add_scale(*shape.embedding);
    if (shape.head) add_scale(*shape.head);
    return digest.value();
}

}  // namespace

Result<std::vector<std::byte>> write_train_checkpoint(const TrainableAdapter& shape, const TrainParameters& parameters,
                                                      uint64_t n_steps) {
    CheckpointHead head{
        .magic = kMagic, .shape = digest_of_shape(shape), .n_steps = n_steps, .n_elements = parameters.n_elements()};
    const size_t range_bytes = head.n_elements * sizeof(float);
    std::vector<std::byte> bytes(sizeof(head) + kKept.size() * range_bytes);
    for (size_t i = 0; i < kKept.size(); ++i) {
        TRY_ASSIGN(const std::vector<float> elements, parameters.read(kKept[i]));
        std::memcpy(bytes.data() + sizeof(head) + i * range_bytes, elements.data(), range_bytes);
    }
    Digest digest;
    digest.add_words(std::span(bytes).subspan(sizeof(head)));
    head.content = digest.value();
    std::memcpy(bytes.data(), &head, sizeof(head));
    return bytes;
}

Result<uint64_t> read_train_checkpoint(std::span<const std::byte> bytes, const TrainableAdapter& shape,
                                       TrainParameters& parameters) {
    const auto refuse = [](const std::string& what) {
        return make_error(ErrorCode::kInvalidRequest, format("the training checkpoint {}", what));
    };
    CheckpointHead head;
    if (bytes.size() < sizeof(head))
        return refuse(format("has {} bytes: expected at least {}", bytes.size(), sizeof(head)));
    std::memcpy(&head, bytes.data(), sizeof(head));
    if (head.magic != kMagic) return refuse("does not begin as one");
    if (head.shape != digest_of_shape(shape) || head.n_elements != parameters.n_elements())
        return refuse("is of an adapter with other tensors or scales");
    const size_t range_bytes = head.n_elements * sizeof(float);
    const std::span<const std::byte> content = bytes.subspan(sizeof(head));
    if (content.size() != kKept.size() * range_bytes)
        return refuse(format("has {} bytes: expected {}", bytes.size(), sizeof(head) + kKept.size() * range_bytes));
    Digest digest;
    digest.add_words(content);
    if (digest.value() != head.content) return refuse("is damaged: its content has another digest");
    for (size_t i = 0; i < kKept.size(); ++i) {
        std::vector<float> elements(head.n_elements);
        std::memcpy(elements.data(), content.data() + i * range_bytes, range_bytes);
        TRY(parameters.write(kKept[i], elements));
    }
    return head.n_steps;
}

}  // namespace lorad::model
