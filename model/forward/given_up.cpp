#include "model/forward/given_up.h"

#include <cstring>

namespace lorad::model {

Result<GivenUp> GivenUp::create(gpu::Device& device, const char* name) {
    GivenUp made;
    TRY_ASSIGN(made.word_, device.create_buffer(sizeof(uint32_t), gpu::MemoryKind::kHostReadback, name));
    std::memset(made.word_.mapped().data(), 0, sizeof(uint32_t));
    return made;
}

bool GivenUp::is_set() const {
    uint32_t word = 0;
    std::memcpy(&word, word_.mapped().data(), sizeof(word));
    return word != 0;
}

}  // namespace lorad::model
