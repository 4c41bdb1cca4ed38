// sample_draw: the token of each output whose rule is not served by the argmax of the model's own logits
//   rules   ChoiceRule[i]             what = 0 and rules for log-probabilities alone: nothing happens here
//   logits  [i][logits_stride] f32    after sample_changes
//   masks   a bit for each token      where the rule has one: only tokens of it may come
//   sampled, results                  the token, and -2 where the rule allows none; -1, a row that is not finite, stays
// Draws like model::sample: temperature, top_k, top_p, min_p, typical_p, then the token in which the sum of the kept
// weights, in order of ids, passes a random share of it. Equal to the host's bit for bit: sample_math.h.
// grid (1, rows); one workgroup per row, which it reads 4 (top_p) to 14 times, mostly from the cache.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/sampling/sample_choice.params.h"
#include "gpu/kernels/sampling/sample_math.h"

layout(constant_id = 1) const uint kHasMasks = 0;  // 1: some rule may have one
layout(push_constant, scalar) uniform Push { SampleChoiceParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer RuleRef { ChoiceRule v; };

const uint kMaxSubgroups = 256;
const uint kNoKey = 0xffffffffu;
const uint kKeyBits = kDrawKeyBits;
const float kMinusInf = -1.0 / 0.0;

uint64_t row_logits;
uint64_t row_mask = 0;  // 0: none
uint row_vocab;
ChoiceRule rule;
float row_max;

// The kept tokens so far: smaller keys, and among keys equal to it ids up to last_id.
uint cut_key = kNoKey;
uint last_id = kNoKey;
// With typical_p nothing farther from the entropy than this is kept.
bool by_distance = false;  // find_cut counts distances
uint64_t entropy = 0;
uint farthest = kNoKey;
bool counts_ties = false;  // pick_token counts the tokens with cut_key

bool is_allowed(uint id) {
    uint begin = 0, end = rule.n_allowed;
    while (begin < end) {
        uint middle = (begin + end) / 2;
        uint there = UintRef(p.step + uint64_t(rule.allowed_begin + middle) * 4).v;
        if (there == id) return true;
        if (there < id) begin = middle + 1;
        else end = middle;
    }
    return false;
}

float logit_at(uint id, float logit) { return rule.n_allowed != 0 && !is_allowed(id) ? kMinusInf : logit; }

bool is_in_mask(uint id) { return row_mask == 0 || (UintRef(row_mask + uint64_t(id / 32) * 4).v >> (id % 32) & 1u) != 0; }

// One word of the mask for four neighbours.
vec4 row4(uint chunk) {
    vec4 v = load4(row_logits, chunk, 0);
    if (kHasMasks == 0 || row_mask == 0) return v;
    uint bits = UintRef(row_mask + uint64_t(chunk / 8) * 4).v >> (chunk % 8 * 4);
    return mix(vec4(kMinusInf), v, notEqual(uvec4(bits) & uvec4(1, 2, 4, 8), uvec4(0)));
}

float row1(uint id) { return kHasMasks == 0 || is_in_mask(id) ? FloatRef(row_logits + uint64_t(id) * 4).v : kMinusInf; }

bool is_kept(uint id, uint key) {
    if (key > cut_key || (key == cut_key && id > last_id)) return false;
    return rule.min_weight == 0 || draw_weight(key) >= rule.min_weight;
}

bool counts(uint id, float logit, out uint key, out uint64_t weight) {
    key = draw_key(row_max, logit_at(id, logit), rule.scale);
    weight = draw_weight(key);
    if (key >= kDrawKeyEnd) return false;
    if (!by_distance) return true;
    bool kept = is_kept(id, key);
    key = typical_key(key, entropy);
    return kept;
}

uint64_t measure_at(uint id, float logit) {
    uint key = draw_key(row_max, logit_at(id, logit), rule.scale);
    if (counts_ties) return key == cut_key ? 1 : 0;
    if (!is_kept(id, key) || (rule.typical_p != 0 && typical_key(key, entropy) > farthest)) return 0;
    return draw_weight(key);
}

#include "gpu/kernels/sampling/sample_search.glsl"

// The lowest id of the highest logit, which becomes row_max. What the subgroups find passes through the bins, which
// nobody uses yet.
uint most_probable() {
    float top = kMinusInf;
    uint best = kNoKey;
    for (uint chunk = thread_index(); chunk * 4 < row_vocab; chunk += n_threads()) {
        vec4 v = row4(chunk);
        for (uint e = 0; e < 4; e++) {
            uint id = chunk * 4 + e;
            if (id >= row_vocab) break;
            float logit = logit_at(id, v[e]);
            if (logit > top) {
                top = logit;
                best = id;
            }
        }
    }
    float group_top = subgroupMax(top);
    uint group_best = subgroupMin(top == group_top ? best : kNoKey);
    if (subgroupElect()) {
        bin_low[gl_SubgroupID] = floatBitsToUint(group_top);
        bin_count[gl_SubgroupID] = group_best;
    }
    barrier();
    row_max = kMinusInf;
    for (uint i = 0; i < gl_NumSubgroups; i++) {
        float other_top = uintBitsToFloat(bin_low[i]);
        if (i == 0 || other_top > row_max) {
            row_max = other_top;
            best = bin_count[i];
        } else if (other_top == row_max) {
            best = min(best, bin_count[i]);
        }
    }
    return best;
}

// Keeps the cut's tokens: all with smaller keys, and of those with its key the first n.
void keep(Cut cut, uint n_ties) {
    if (cut.bin == kNoBin) return;
    cut_key = cut.key;
    last_id = kNoKey;
    if (n_ties >= cut.count) return;
    counts_ties = true;
    last_id = pick_token(uint64_t(n_ties - 1), false, 0);
    counts_ties = false;
}

void keep_typical() {
    uint64_t shares = 0, weights = 0;
    for (uint chunk = thread_index(); chunk * 4 < row_vocab; chunk += n_threads()) {
        vec4 v = row4(chunk);
        for (uint e = 0; e < 4; e++) {
            uint id = chunk * 4 + e;
            uint key = id < row_vocab ? draw_key(row_max, logit_at(id, v[e]), rule.scale) : kDrawKeyEnd;
            if (!is_kept(id, key)) continue;
            shares += draw_entropy_share(key);
            weights += draw_weight(key) >> 16;
        }
    }
    entropy = sum_of_all(shares) / sum_of_all(weights);
    by_distance = true;
    farthest = find_cut(true, 0, rule.typical_p).key;
    by_distance = false;
}

uint draw() {
    uint64_t kept_weight = 0;
    if (rule.top_k != 0) {
        Cut cut = find_cut(false, uint64_t(rule.top_k), 0);
        if (cut.bin != kNoBin) {
            uint n_ties = uint(uint64_t(rule.top_k) - cut.count_below);
            kept_weight = cut.weight_below + uint64_t(n_ties) * draw_weight(cut.key);
            keep(cut, n_ties);
        }
    }
    if (rule.top_p != 0) {
        // Tokens kept by top_k come first in the order of keys, so their share can be looked for among all.
        Cut cut = kept_weight != 0 ? find_cut(true, share_of(kept_weight, rule.top_p), 0) : find_cut(true, 0, rule.top_p);
        uint64_t own = draw_weight(cut.key);
        keep(cut, uint((cut.target - cut.weight_below + own - 1) / own));
    }
    if (rule.typical_p != 0) keep_typical();
    return pick_token(0, true, draw_bits(rule.seed, rule.position));
}

void main() {
    uint i = gl_WorkGroupID.y;
    if (i >= UintRef(p.step + 4).v) return;  // StepHeader.n_logit_rows
    rule = RuleRef(p.rules + uint64_t(i) * kRuleBytes).v;
    if ((rule.what & (kRuleDraws | kRuleAdjusts | kRuleMasked)) == 0 && rule.n_allowed == 0) return;
    SampleResult result = ResultRef(p.results + uint64_t(i) * 16).v;
    if (result.token < 0) return;
    row_logits = p.logits + uint64_t(i) * p.logits_stride * 4;
    row_vocab = p.vocab;
    row_max = result.max_logit;
    if (kHasMasks != 0 && (rule.what & kRuleMasked) != 0) row_mask = p.masks + uint64_t(rule.mask) * ((p.vocab + 31) / 32) * 4;
    // The model's own first choice, unless something keeps it from coming.
    uint token = uint(result.token);
    bool draws = (rule.what & kRuleDraws) != 0;
    if ((rule.what & kRuleAdjusts) != 0 || logit_at(token, row1(token)) == kMinusInf) token = most_probable();
    if (!(abs(row_max) < 1.0 / 0.0)) token = kNoKey;
    else if (draws) token = draw();
    if (thread_index() != 0) return;
    int chosen = token == kNoKey ? kNothingAllowed : int(token);
    IntRef(p.sampled + uint64_t(i) * 4).v = chosen;
    IntRef(p.results + uint64_t(i) * 16).v = chosen;
}
