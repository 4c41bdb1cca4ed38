#include "model/train/trainable.h"

namespace lorad::model {
namespace {

template <typename Adapter, typename Take>
void for_each_tensor(Adapter& adapter, const Take& take) {
    const auto take_pair = [&](auto& pair) {
        take(pair.a);
        take(pair.b);
        if (pair.magnitude) take(*pair.magnitude);
        if (pair.b_bias) take(*pair.b_bias);
    };
    for (auto& linear : adapter.linears) take_pair(linear.pair);
    for (auto& whole : adapter.wholes) take(whole.weight);
    if (adapter.embedding) take_pair(*adapter.embedding);
    if (adapter.head) take_pair(*adapter.head);
    for (auto& bias : adapter.biases) take(bias.bias);
}

}  // namespace

std::vector<const TrainedTensor*> TrainableAdapter::tensors() const {
    std::vector<const TrainedTensor*> all;
    for_each_tensor(*this, [&](const TrainedTensor& tensor) { all.push_back(&tensor); });
    return all;
}

std::vector<TrainedTensor*> TrainableAdapter::tensors() {
    std::vector<TrainedTensor*> all;
    for_each_tensor(*this, [&](TrainedTensor& tensor) { all.push_back(&tensor); });
    return all;
}

uint64_t TrainableAdapter::n_parameters() const {
    uint64_t n = 0;
    for (const TrainedTensor* tensor : tensors()) {
        uint64_t of_tensor = 1;
        for (const uint64_t size : tensor->shape) of_tensor *= size;
        n += of_tensor;
    }
    return n;
}

}  // namespace lorad::model
