#include "model/config/config_rope.h"

#include <cmath>
#include <optional>

#include "model/config/rope.h"
#include "proto/base/format.h"

namespace lorad::model {
namespace {

Result<double> positive(const JsonValue& value) {
    TRY_ASSIGN(const double number, value.as_number());
    if (!(number > 0.0)) return value.error(format("expected a positive number, found {}", value.describe()));
    return number;
}

Result<double> positive_of(const JsonValue& object, std::string_view key) {
    TRY_ASSIGN(const auto value, object.require(key));
    return positive(value);
}

Result<double> positive_or(const JsonValue& object, std::string_view key, double fallback) {
    const auto value = object.find(key);
    if (!value) return fallback;
    return positive(*value);
}

Result<std::vector<double>> factors_of(const JsonValue& object, std::string_view key, uint32_t n) {
    TRY_ASSIGN(const auto list, object.require(key));
    TRY_ASSIGN(const auto values, list.as_array());
    if (values.size() != n)
        return list.error(format("expected {} numbers (half the rotary dimension), found {}", n, values.size()));
    std::vector<double> factors;
    for (const auto& value : values) {
        TRY_ASSIGN(const double factor, positive(value));
        factors.push_back(factor);
    }
    return factors;
}

// original_max_position_embeddings, beside the rope object (Phi-3), which counts first, or inside; 0: absent.
Result<uint32_t> original_positions(const JsonValue& root, const JsonValue& rope) {
    constexpr std::string_view kKey = "original_max_position_embeddings";
    auto value = root.find(kKey);
    if (!value) value = rope.find(kKey);
    if (!value) return 0u;
    TRY_ASSIGN(const int64_t n, value->as_int(1, 1u << 26));
    return static_cast<uint32_t>(n);
}

Result<RopeType> type_of(const JsonValue& rope) {
    auto value = rope.find("rope_type");
    if (!value) value = rope.find("type");
    if (!value) return RopeType::kDefault;
    TRY_ASSIGN(const auto name, value->as_string());
    if (name == "default") return RopeType::kDefault;
    if (name == "linear") return RopeType::kLinear;
    if (name == "llama3") return RopeType::kLlama3;
    if (name == "yarn") return RopeType::kYarn;
    if (name == "longrope" || name == "su") return RopeType::kLongRope;
    if (name == "proportional") return RopeType::kProportional;
    // stretches only texts that are longer than max_position_embeddings, which is the longest that is served
    if (name == "dynamic") {
        TRY(positive_of(rope, "factor"));
        return RopeType::kDefault;
    }
    return value->error(
        "rope scaling " + value->describe() +
        " is not supported; supported are default, dynamic, linear, llama3, yarn, longrope, proportional");
}

bool is_same_value(const JsonValue& a, const JsonValue& b) {
    if (a.is_number() && b.is_number()) return *a.as_number() == *b.as_number();
    if (!a.is_array() || !b.is_array() || a.size() != b.size()) return a.dump() == b.dump();
    const auto left = *a.as_array(), right = *b.as_array();
    for (size_t i = 0; i < left.size(); ++i) {
        if (!is_same_value(left[i], right[i])) return false;
    }
    return true;
}

// Every member of `rope` that is not null is in `other` as well; the type has two names, and theta and the rotary share
// may stand beside the objects.
Status check_all_in(const JsonValue& rope, const JsonValue& other, std::string_view other_name, const JsonValue& root) {
    TRY_ASSIGN(const auto members, rope.as_object());
    for (const auto& [key, value] : members) {
        if (!rope.find(key)) continue;
        auto found = other.find(key);
        if (!found && key == "rope_type") found = other.find("type");
        if (!found && key == "type") found = other.find("rope_type");
        if (!found && (key == "rope_theta" || key == "partial_rotary_factor")) found = root.find(key);
        if (found && is_same_value(*found, value)) continue;
        return rope.error(format("{}: expected the same in {}, or one of the two alone, found {} and {}", key,
                                 other_name, value.dump(), found ? found->dump() : "nothing"));
    }
    return ok_status();
}

// A rope_scaling that somebody added to a config with rope_parameters: transformers takes it and forgets the rest,
// theta among it, which nobody means.
Status check_older_spelling(const JsonValue& root, const JsonValue& parameters) {
    const auto scaling = root.find("rope_scaling");
    if (!scaling || (scaling->is_object() && scaling->size() == 0)) return ok_status();
    TRY(check_all_in(*scaling, parameters, "rope_parameters", root));
    return check_all_in(parameters, *scaling, "rope_scaling", root);
}

Status read_llama3(const JsonValue& rope, RopeConfig& to) {
    TRY_ASSIGN(to.factor, positive_of(rope, "factor"));
    TRY_ASSIGN(to.low_freq_factor, positive_of(rope, "low_freq_factor"));
    TRY_ASSIGN(to.high_freq_factor, positive_of(rope, "high_freq_factor"));
    if (to.high_freq_factor <= to.low_freq_factor) {
        return rope.error(format("high_freq_factor: expected more than low_freq_factor {}, found {}",
                                 to.low_freq_factor, to.high_freq_factor));
    }
    if (to.original_max_positions == 0) return rope.error("no original_max_position_embeddings");
    return ok_status();
}

double yarn_mscale(double scale, double mscale) { return scale <= 1.0 ? 1.0 : 0.1 * mscale * std::log(scale) + 1.0; }

Status read_yarn(const JsonValue& rope, uint32_t max_positions, RopeConfig& to) {
    TRY_ASSIGN(to.factor, positive_of(rope, "factor"));
    TRY_ASSIGN(to.beta_fast, positive_or(rope, "beta_fast", 32.0));
    TRY_ASSIGN(to.beta_slow, positive_or(rope, "beta_slow", 1.0));
    TRY_ASSIGN(to.truncate, rope.bool_or("truncate", true));
    if (to.original_max_positions == 0) to.original_max_positions = max_positions;
    TRY_ASSIGN(const double mscale, rope.number_or("mscale", 0.0));
    TRY_ASSIGN(const double mscale_all_dim, rope.number_or("mscale_all_dim", 0.0));
    const double usual = mscale != 0.0 && mscale_all_dim != 0.0
                             ? yarn_mscale(to.factor, mscale) / yarn_mscale(to.factor, mscale_all_dim)
                             : yarn_mscale(to.factor, 1.0);
    TRY_ASSIGN(to.attention_factor, positive_or(rope, "attention_factor", usual));
    return ok_status();
}

Status read_longrope(const JsonValue& rope, uint32_t max_positions, RopeConfig& to) {
    TRY_ASSIGN(to.short_factors, factors_of(rope, "short_factor", to.rotary_dim / 2));
    TRY_ASSIGN(to.long_factors, factors_of(rope, "long_factor", to.rotary_dim / 2));
    if (to.original_max_positions == 0) to.original_max_positions = max_positions;
    TRY_ASSIGN(to.factor, positive_or(rope, "factor", static_cast<double>(max_positions) / to.original_max_positions));
    const double usual =
        to.factor <= 1.0
            ? 1.0
            : std::sqrt(1.0 + std::log(to.factor) / std::log(static_cast<double>(to.original_max_positions)));
    TRY_ASSIGN(to.attention_factor, positive_or(rope, "attention_factor", usual));
    return ok_status();
}

}  // namespace

namespace {

// One table. `rope`: its object, if there is one; `root` has what stands beside it.
Result<RopeConfig> read_table(const JsonValue& root, const std::optional<JsonValue>& rope, uint32_t head_dim,
                              uint32_t max_positions, const RopeDefaults& defaults) {
    RopeConfig to;
    TRY_ASSIGN(to.theta, positive_or(root, "rope_theta", defaults.theta));
    TRY_ASSIGN(double rotary_share, positive_or(root, "partial_rotary_factor", defaults.rotary_share));
    if (rope) {
        TRY_ASSIGN(to.theta, positive_or(*rope, "rope_theta", to.theta));
        TRY_ASSIGN(rotary_share, positive_or(*rope, "partial_rotary_factor", rotary_share));
        TRY_ASSIGN(to.type, type_of(*rope));
    }
    if (!defaults.is_partial && rotary_share != 1.0) {
        const JsonValue& teller = rope && rope->has("partial_rotary_factor") ? *rope : root;
        return teller.error(format(
            "partial_rotary_factor: expected 1, as heads of this architecture turn whole, found {}", rotary_share));
    }
    to.rotary_dim = rotary_share > 1.0 ? 0 : static_cast<uint32_t>(head_dim * rotary_share);
    if (to.type == RopeType::kProportional) {
        // That share of the pairs is rotated: their elements are half a head apart, and their frequencies are the first
        // of a whole head's.
        to.type = RopeType::kDefault;
        to.rotary_dim = rotary_share > 1.0 ? 0 : 2 * static_cast<uint32_t>(head_dim * rotary_share / 2.0);
        to.pair_stride = head_dim / 2;
        to.exponent_dim = head_dim;
        TRY_ASSIGN(to.factor, positive_or(*rope, "factor", 1.0));
        if (to.factor != 1.0) to.type = RopeType::kLinear;
    }
    if (to.rotary_dim == 0 || to.rotary_dim % 2 != 0) {
        return root.error(format(
            "partial_rotary_factor {} of head_dim {} gives {} rotary dimensions, expected an even number of 2 to {}",
            rotary_share, head_dim, to.rotary_dim, head_dim));
    }
    if (!rope || to.pair_stride != 0) return to;
    TRY_ASSIGN(to.original_max_positions, original_positions(root, *rope));
    // A config class with a default has it beside the rope object, which counts first.
    if (defaults.original_positions != 0 && !root.find("original_max_position_embeddings"))
        to.original_max_positions = defaults.original_positions;
    switch (to.type) {
        case RopeType::kDefault:
        case RopeType::kProportional: break;
        case RopeType::kLinear: {
            TRY_ASSIGN(to.factor, positive_of(*rope, "factor"));
            break;
        }
        case RopeType::kLlama3: TRY(read_llama3(*rope, to)); break;
        case RopeType::kYarn: TRY(read_yarn(*rope, max_positions, to)); break;
        case RopeType::kLongRope: TRY(read_longrope(*rope, max_positions, to)); break;
    }
    return to;
}

bool is_by_layer_type(const std::optional<JsonValue>& rope) {
    return rope && (rope->has("full_attention") || rope->has("sliding_attention"));
}

}  // namespace

Result<std::optional<JsonValue>> rope_object(const JsonValue& root) {
    auto rope = root.find("rope_parameters");
    if (rope) TRY(check_older_spelling(root, *rope));
    if (!rope) rope = root.find("rope_scaling");
    if (rope && !rope->is_object()) return rope->error("expected an object or null, found " + rope->describe());
    return rope;
}

Result<RopeConfig> read_rope(const JsonValue& root, uint32_t head_dim, uint32_t max_positions,
                             const RopeDefaults& defaults) {
    TRY_ASSIGN(const std::optional<JsonValue> rope, rope_object(root));
    if (is_by_layer_type(rope))
        return rope->error("rotary parameters that differ between layer types are not supported");
    return read_table(root, rope, head_dim, max_positions, defaults);
}

Result<RopePair> read_rope_pair(const JsonValue& root, uint32_t full_head_dim, uint32_t sliding_head_dim,
                                uint32_t max_positions, const RopeDefaults& defaults) {
    TRY_ASSIGN(const std::optional<JsonValue> rope, rope_object(root));
    RopeDefaults of_sliding = defaults;
    of_sliding.theta = defaults.sliding_theta;
    of_sliding.rotary_share = 1.0;
    RopePair pair;
    if (is_by_layer_type(rope)) {
        const auto table = [&](std::string_view key, uint32_t head_dim,
                               const RopeDefaults& with) -> Result<RopeConfig> {
            TRY_ASSIGN(const JsonValue own, rope->require(key));
            if (!own.is_object()) return own.error("expected an object, found " + own.describe());
            return read_table(own, own, head_dim, max_positions, with);
        };
        TRY_ASSIGN(pair.full, table("full_attention", full_head_dim, defaults));
        TRY_ASSIGN(pair.sliding, table("sliding_attention", sliding_head_dim, of_sliding));
    } else {
        TRY_ASSIGN(pair.full, read_table(root, rope, full_head_dim, max_positions, defaults));
        pair.sliding.rotary_dim = sliding_head_dim;
        TRY_ASSIGN(pair.sliding.theta, positive_or(root, "rope_local_base_freq", of_sliding.theta));
        if (!root.find("rope_local_base_freq") && defaults.sliding_theta == defaults.theta)
            pair.sliding.theta = pair.full.theta;
    }
    for (const RopeConfig* one : {&pair.full, &pair.sliding}) {
        if (one->type == RopeType::kLongRope)
            return rope->error("longrope in a model with several rotary tables is not supported");
    }
    return pair;
}

Status check_rope(const ModelConfig& config, std::string_view where) {
    bool is_finite = true;
    for (uint32_t rope = 0; rope < config.n_ropes(); ++rope) {
        is_finite = is_finite && std::isfinite(static_cast<float>(config.rope_of(rope).attention_factor));
        for (const bool is_long : {false, true}) {
            for (const double frequency : rope_frequencies(config.rope_of(rope), is_long)) {
                is_finite = is_finite &&
                            std::isfinite(static_cast<float>(frequency) * static_cast<float>(config.max_positions));
            }
        }
    }
    if (is_finite) return ok_status();
    return make_error(
        ErrorCode::kInvalidModel,
        format("{}: the rotary embedding's parameters (rope_theta {}, factor {}) give angles that are not finite",
               where, config.rope.theta, config.rope.factor));
}

}  // namespace lorad::model
