// The activations of gated layers; `kind` is an Activation.
const uint kSilu = 0;
float activate(float g, uint kind) {
    if (kind == kSilu) return g / (1.0 + exp(-g));
    // sqrt(2 / pi) (g + 0.044715 g^3), clamped where tanh is 1 in f32
    const float u = clamp(0.7978845608 * fma(0.044715 * g * g, g, g), -15.0, 15.0);
    return 0.5 * g * (1.0 + tanh(u));
}
