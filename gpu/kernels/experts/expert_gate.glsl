// Applies an expert's activation to gate and up. Needs activation.glsl, and the constants kActivation and kClamped.
float gated(float gate, float up, float alpha, float limit) {
    if (kClamped == 0) return activate(gate, kActivation) * up;
    // Comparisons that leave what is no number as it is.
    gate = gate > limit ? limit : gate;
    up = up > limit ? limit : up < -limit ? -limit : up;
    return (up + 1.0) * (gate / (1.0 + exp(-alpha * gate)));
}
