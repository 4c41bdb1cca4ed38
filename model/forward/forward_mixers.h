// The mixers of a layer other than attention, and the gate behind attention, between the products around them. Internal
// to forward.cpp.
#pragma once

#include "model/forward/forward_parts.h"

namespace lorad::model {

class MixerParts : protected PassParts {
  protected:
    using PassParts::PassParts;

    // Computes the input of the layer's last product, in attention_, in rows, from the product of the layer's input.
    // The layer's state advances by the step's rows. With keeps_only only the state advances.
    void mix_delta(uint32_t layer, const Product& input, bool keeps_only);
    void mix_conv(uint32_t layer, const Product& input, bool keeps_only);
    void mix_mamba(uint32_t layer, const Product& input, bool keeps_only);

    // The sums of a product whose modules may end anywhere, with biases and what adapters add, in its first split.
    Product sum_up(uint32_t layer, LoraGroup group, Product product, const Matrix& w, const Vector& bias);
    // The same, written elsewhere: [t][to_stride] f32.
    void sum_to(uint32_t layer, LoraGroup group, const Product& product, const Matrix& w, const Vector& bias,
                DeviceAddress to, uint32_t to_stride);
    // attention_ times the sigmoids of the gates that stand beside the queries in the finished sums.
    void gate_attention(uint32_t layer);

  private:
    DeviceAddress runs() const { return step_ + layout_.state_runs; }
};

}  // namespace lorad::model
