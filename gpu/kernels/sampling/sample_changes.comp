// sample_changes: bias, penalties and bans of ends on the logits of outputs whose rule has kRuleAdjusts, in place
//   STAGE 0, as the step begins: rule.last_token = the row's own token, where the step before has chosen it; grid
//       (ceil(rows / workgroup))
//   STAGE 1, before sample_draw: logits[token] = changed_logit(), the logit before goes to TokenChange.original; grid
//       (1, rows)
//   STAGE 2, after it: the logits from before, for sample_logprobs; grid (1, rows)
// The same as model::change_logits: docs/adr/0010. Moves 24 bytes per change.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "gpu/kernels/common.glsl"
#include "gpu/kernels/sampling/sample_choice.params.h"
#include "gpu/kernels/sampling/sample_math.h"

layout(constant_id = 1) const uint kStage = 1;
layout(push_constant, scalar) uniform Push { SampleChoiceParams p; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer RuleRef { ChoiceRule v; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer ChangeRef { TokenChange v; };

shared uint last_is_listed;

FloatRef logit_of(uint i, uint token) { return FloatRef(p.logits + (uint64_t(i) * p.logits_stride + token) * 4); }

uint held_once_more(uint state) { return (state | kChangeIsHeld) + 1; }

void find_last_token() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= UintRef(p.step + 4).v) return;  // StepHeader.n_logit_rows
    RuleRef rule = RuleRef(p.rules + uint64_t(i) * kRuleBytes);
    if ((rule.v.what & kRuleAdjusts) == 0) return;
    int token = step_row(p.step, LogitRowRef(p.logit_rows + uint64_t(i) * 8).v.row).v.token;
    rule.v.last_token = token < 0 ? IntRef(p.sampled + uint64_t(~token) * 4).v : -1;
}

float changed(ChoiceRule rule, float logit, float bias, uint state) {
    if ((rule.what & kRuleBansEnds) == 0) state &= ~kChangeIsEnd;
    return changed_logit(logit, bias, state, rule.repetition, rule.inverse_repetition, rule.frequency, rule.presence);
}

void main() {
    if (kStage == 0) {
        find_last_token();
        return;
    }
    uint i = gl_WorkGroupID.y;
    if (i >= UintRef(p.step + 4).v) return;
    RuleRef place = RuleRef(p.rules + uint64_t(i) * kRuleBytes);
    ChoiceRule rule = place.v;
    if ((rule.what & kRuleAdjusts) == 0) return;
    if (gl_LocalInvocationIndex == 0) last_is_listed = 0;
    barrier();
    for (uint j = gl_LocalInvocationIndex; j < rule.n_changes; j += gl_WorkGroupSize.x) {
        ChangeRef entry = ChangeRef(p.step + uint64_t(rule.change_begin + j) * 16);
        TokenChange change = entry.v;
        if (change.token >= p.vocab) continue;
        FloatRef logit = logit_of(i, change.token);
        if (kStage == 2) {
            logit.v = change.original;
            continue;
        }
        bool is_last = int(change.token) == rule.last_token;
        if (is_last) last_is_listed = 1;
        entry.v.original = logit.v;
        logit.v = changed(rule, logit.v, change.bias, is_last ? held_once_more(change.state) : change.state);
    }
    barrier();
    if (gl_LocalInvocationIndex != 0 || rule.last_token < 0) return;
    FloatRef logit = logit_of(i, uint(rule.last_token));
    if (kStage == 2) {
        if (rule.last_is_saved != 0) logit.v = rule.last_original;
        return;
    }
    place.v.last_is_saved = last_is_listed == 0 ? 1 : 0;
    if (last_is_listed != 0) return;
    place.v.last_original = logit.v;
    logit.v = changed(rule, logit.v, 0.0, held_once_more(0));
}
