// sample_logprobs: of outputs whose rule has kRuleLogprobs: log-probability and rank of the chosen token and the n_top
// most probable ones, in the model's own distribution
//   logits   [i][logits_stride] f32, the model's own
//   results  SampleResult[i], with the chosen token and log_sum_exp
//   logprobs ChoiceLogprobs[i]
// grid (1, rows); one workgroup per row, which it reads 7 times.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/sampling/sample_choice.params.h"
#include "gpu/kernels/sampling/sample_math.h"

layout(push_constant, scalar) uniform Push { SampleChoiceParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer RuleRef { ChoiceRule v; };

const uint kMaxSubgroups = 256;
const uint kNoKey = 0xffffffffu;
const uint kKeyBits = 32;

uint64_t row_logits;
uint row_vocab;
float own;
uint cut_key = kNoKey;

// Falls with the logit. Both zeros are one.
uint key_of(float logit) {
    uint bits = logit == 0.0 ? 0 : floatBitsToUint(logit);
    return (bits & 0x80000000u) != 0 ? bits : ~bits & 0x7fffffffu;
}

bool counts(uint id, float logit, out uint key, out uint64_t weight) {
    key = key_of(logit);
    weight = 0;
    return true;
}

uint64_t measure_at(uint id, float logit) { return key_of(logit) == cut_key ? 1 : 0; }

vec4 row4(uint chunk) { return load4(row_logits, chunk, 0); }
float row1(uint id) { return FloatRef(row_logits + uint64_t(id) * 4).v; }

#include "gpu/kernels/sampling/sample_search.glsl"

shared uint n_top;
shared uint top_tokens[kTopTokensMax], top_keys[kTopTokensMax];

// Gathers the tokens that come before the cut, in any order, into top_tokens.
void gather(uint n_wanted) {
    Cut cut = find_cut(false, uint64_t(n_wanted), 0);
    uint last_id = kNoKey;
    if (cut.bin != kNoBin) {
        cut_key = cut.key;
        uint n_ties = uint(uint64_t(n_wanted) - cut.count_below);
        if (n_ties < cut.count) last_id = pick_token(uint64_t(n_ties - 1), false, 0);
    }
    if (thread_index() == 0) n_top = 0;
    barrier();
    for (uint chunk = thread_index(); chunk * 4 < row_vocab; chunk += n_threads()) {
        vec4 v = row4(chunk);
        for (uint e = 0; e < 4; e++) {
            uint id = chunk * 4 + e;
            if (id >= row_vocab) break;
            uint key = key_of(v[e]);
            if (key > cut_key || (key == cut_key && id > last_id)) continue;
            uint place = atomicAdd(n_top, 1);
            top_tokens[place] = id;
            top_keys[place] = key;
        }
    }
    barrier();
}

void main() {
    uint i = gl_WorkGroupID.y;
    if (i >= UintRef(p.step + 4).v) return;  // StepHeader.n_logit_rows
    ChoiceRule rule = RuleRef(p.rules + uint64_t(i) * kRuleBytes).v;
    SampleResult result = ResultRef(p.results + uint64_t(i) * 16).v;
    if ((rule.what & kRuleLogprobs) == 0 || result.token < 0) return;
    row_logits = p.logits + uint64_t(i) * p.logits_stride * 4;
    row_vocab = p.vocab;
    own = FloatRef(row_logits + uint64_t(result.token) * 4).v;
    uint n_higher = 0;
    for (uint chunk = thread_index(); chunk * 4 < row_vocab; chunk += n_threads()) {
        vec4 v = row4(chunk);
        for (uint e = 0; e < 4; e++) {
            if (chunk * 4 + e < row_vocab && v[e] > own) n_higher++;
        }
    }
    uint rank = uint(sum_of_all(uint64_t(n_higher))) + 1;
    uint64_t to = p.logprobs + uint64_t(i) * 172;
    uint n_wanted = min(rule.n_top, kTopTokensMax);
    if (thread_index() == 0) {
        FloatRef(to).v = own - result.log_sum_exp;
        UintRef(to + 4).v = rank;
        UintRef(to + 8).v = min(n_wanted, row_vocab);
    }
    if (n_wanted == 0) return;
    gather(n_wanted);
    for (uint mine = thread_index(); mine < n_top; mine += n_threads()) {
        uint token = top_tokens[mine], key = top_keys[mine], place = 0;
        for (uint other = 0; other < n_top; other++) {
            if (top_keys[other] < key || (top_keys[other] == key && top_tokens[other] < token)) place++;
        }
        UintRef(to + 12 + place * 4).v = token;
        FloatRef(to + 12 + (kTopTokensMax + place) * 4).v = FloatRef(row_logits + uint64_t(token) * 4).v - result.log_sum_exp;
    }
}
