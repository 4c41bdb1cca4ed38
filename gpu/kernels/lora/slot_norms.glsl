// Norm weights that a row's adapter brings along. Needs common.glsl.
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer AddressRef { uint64_t v; };

// gamma of one norm: the one that the slot has in slot_norms (addresses [slot], 0: none), else the base's.
uint64_t slot_gamma(uint64_t slot_norms, uint slot, uint64_t base) {
    if (slot == kNoSlot) return base;
    uint64_t own = AddressRef(slot_norms + uint64_t(slot) * 8).v;
    return own != 0 ? own : base;
}
