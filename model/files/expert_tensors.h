// The experts of a layer as files hold them in one tensor, told as matrices: NAME.experts.gate_up_proj.weight [experts
// * 2 I][H] and NAME.experts.down_proj.weight [experts * H][I], the experts one behind the other, with biases
// NAME.experts.gate_up_proj.bias [experts][2 I] and so on. Files of single experts stay as they are.
#pragma once

#include <vector>

#include "model/config/config.h"
#include "model/files/safetensors.h"
#include "proto/base/result.h"

namespace lorad::model {

// Maps tensors that have our names (tensor_map.h). Reads [experts][outputs][inputs], or [experts][inputs][outputs] if
// the family says so (ExpertFacts::by_inputs), and the blocks and scales of MXFP4 (OCP Microscaling Formats 1.0;
// gpt-oss: [experts][outputs][inputs / 32][16 bytes], the low nibble first). kInvalidModel names a tensor whose shape
// does not fit the config.
Status map_expert_tensors(std::vector<Tensor>& tensors, const ModelConfig& config);

}  // namespace lorad::model
