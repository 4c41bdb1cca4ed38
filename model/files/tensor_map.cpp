#include "model/files/tensor_map.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "model/files/expert_tensors.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::model {
namespace {

// longest first where one begins another
constexpr std::array<std::string_view, 4> kPrefixes = {"model.language_model.", "language_model.model.",
                                                       "language_model.", "model."};

struct Tower {
    std::string_view prefix, what;
};
constexpr std::string_view kPictures = "pictures are not read", kSound = "sound is not read";
constexpr std::array<Tower, 10> kTowers = {{{"visual.", kPictures},
                                            {"vision_tower.", kPictures},
                                            {"vision_model.", kPictures},
                                            {"vision_embedder.", kPictures},
                                            {"multi_modal_projector.", kPictures},
                                            {"embed_vision.", kPictures},
                                            {"audio_tower.", kSound},
                                            {"embed_audio.", kSound},
                                            {"mtp.", "several tokens at once are not drafted"},
                                            {"model.mtp.", "several tokens at once are not drafted"}}};

const Tower* tower_of(std::string_view name) {
    constexpr std::string_view kModel = "model.";
    if (name.starts_with(kModel)) name.remove_prefix(kModel.size());
    const auto* found =
        std::ranges::find_if(kTowers, [&](const Tower& tower) { return name.starts_with(tower.prefix); });
    return found == kTowers.end() ? nullptr : found;
}

// `part` where it stands in `name` as whole words between points, replaced.
std::string with_part(std::string_view name, std::string_view part, std::string_view by) {
    for (size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
        const size_t end = at + part.size();
        if ((at != 0 && name[at - 1] != '.') || (end != name.size() && name[end] != '.')) continue;
        return std::string(name.substr(0, at)) + std::string(by) + std::string(name.substr(end));
    }
    return std::string(name);
}

// Returns true if the tensor, under our name, is unused because its layer reads the keys and values of another one.
bool is_of_shared_keys(std::string_view name, const ModelConfig& config) {
    for (uint32_t layer = 0; layer < config.layers.size(); ++layer) {
        if (!config.layers[layer].attention.kv_from) continue;
        const std::string prefix = format("model.layers.{}.self_attn.", layer);
        if (!name.starts_with(prefix)) continue;
        const std::string_view module = name.substr(prefix.size());
        return module.starts_with("k_proj.") || module.starts_with("v_proj.") || module.starts_with("k_norm.");
    }
    return false;
}

struct LeftOut {
    uint32_t n = 0;
    uint64_t n_bytes = 0;
};

}  // namespace

std::string_view decoder_prefix_of(std::string_view name) {
    for (const std::string_view prefix : kPrefixes) {
        if (name.starts_with(prefix)) return prefix;
    }
    return {};
}

bool is_other_tower(std::string_view name) { return tower_of(name) != nullptr; }

std::string name_from_files(std::string_view name, const ModelConfig& config) {
    std::string ours(name);
    for (const Spelling& spelling : config.spellings) ours = with_part(ours, spelling.file, spelling.ours);
    return ours;
}

std::string name_in_files(std::string_view ours, const ModelConfig& config) {
    std::string name(ours);
    for (const Spelling& spelling : config.spellings) name = with_part(name, spelling.ours, spelling.file);
    return name;
}

Result<TensorFiles> map_tensors(TensorFiles files, const ModelConfig& config) {
    constexpr std::string_view kModel = "model.", kHead = "lm_head.";
    std::map<std::string_view, LeftOut> left_out;  // by what is not done without them
    std::vector<Tensor> mapped;
    const auto leave_out = [&](std::string_view why, const Tensor& tensor) {
        ++left_out[why].n;
        left_out[why].n_bytes += tensor.data.size();
    };
    for (const Tensor& tensor : files.tensors()) {
        if (const Tower* tower = tower_of(tensor.name)) {
            leave_out(tower->what, tensor);
            continue;
        }
        const std::string_view prefix = decoder_prefix_of(tensor.name),
                               rest = std::string_view(tensor.name).substr(prefix.size());
        Tensor ours = tensor;
        // language_model.lm_head. is no part of the decoder; nor is what has no prefix.
        if (!prefix.empty())
            ours.name = (rest.starts_with(kHead) ? std::string() : std::string(kModel)) + std::string(rest);
        ours.name = name_from_files(ours.name, config);
        if (is_of_shared_keys(ours.name, config))
            leave_out("their layers read those of another one", ours);
        else
            mapped.push_back(std::move(ours));
    }
    TRY(map_expert_tensors(mapped, config));
    std::ranges::sort(mapped, {}, &Tensor::name);
    const auto twice = std::ranges::adjacent_find(mapped, {}, &Tensor::name);
    if (twice != mapped.end())
        return make_error(ErrorCode::kInvalidModel,
                          format("tensor {}: expected it once, found it under two names", json_quote(twice->name)));
    std::vector<std::string> notes;
    for (const auto& [why, of] : left_out)
        notes.push_back(format("{} tensors, {} bytes, are not loaded: {}", of.n, of.n_bytes, why));
    files.set_tensors(std::move(mapped), std::move(notes));
    return files;
}

}  // namespace lorad::model
