// A trained adapter as PEFT's save_pretrained() writes it.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "adapters/files/source.h"
#include "adapters/files/tensor_names.h"
#include "adapters/plan/trainable.h"
#include "adapters/store/file_system.h"
#include "model/quant/matrix_decoder.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {
namespace {

using model::TrainedTensor;

// A module that has a pair, and what the config says of it.
struct TrainedModule {
    std::string name;        // "model.layers.0.self_attn.q_proj"
    std::string short_name;  // "q_proj"
    std::optional<uint32_t> layer;
    uint32_t rank = 0;
    double alpha = 0;
};

std::string last_part(const std::string& name) { return name.substr(name.rfind('.') + 1); }

// Returns an expression that matches only this name.
std::string quoted(const std::string& name) {
    std::string text;
    for (const char c : name) text += c == '.' ? std::string("\\.") : std::string(1, c);
    return text;
}

// The value that most modules have; of several the first.
template <typename Get>
auto most_common(const std::vector<TrainedModule>& modules, const Get& get) {
    auto best = get(modules.front());
    std::ptrdiff_t n_best = 0;
    for (const TrainedModule& module : modules) {
        const auto n = std::ranges::count(modules, get(module), get);
        if (n > n_best) best = get(module), n_best = n;
    }
    return best;
}

class ConfigWriter {
  public:
    ConfigWriter(const model::TrainableAdapter& adapter, const BaseModel& base, const PeftFileOptions& options)
        : adapter_(adapter), base_(base), options_(options) {
        for (const model::TrainedLinear& linear : adapter.linears) add_module(linear.pair, linear.layer);
        if (adapter.embedding) add_module(*adapter.embedding, std::nullopt);
        if (adapter.head) add_module(*adapter.head, std::nullopt);
    }

    std::string write() {
        const bool has_modules = !modules_.empty();
        const uint32_t rank = has_modules ? most_common(modules_, rank_of) : 8;
        const double alpha = has_modules ? most_common(modules_, alpha_of) : 8;
        const bool use_dora = std::ranges::any_of(
            adapter_.linears, [](const model::TrainedLinear& linear) { return linear.pair.magnitude.has_value(); });
        json_.begin_object();
        json_.key("alpha_pattern").begin_object();
        pattern(alpha, alpha_of);
        json_.end_object();
        json_.field("base_model_name_or_path", options_.base_name)
            .field("bias", bias_kind())
            .field("fan_in_fan_out", false)
            .field("inference_mode", true)
            .field("init_lora_weights", true);
        layers();
        json_.key("lora_alpha");
        number(alpha);
        const bool has_b_biases = std::ranges::any_of(
            adapter_.linears, [](const model::TrainedLinear& linear) { return linear.pair.b_bias.has_value(); });
        json_.field("lora_bias", has_b_biases).field("lora_dropout", 0.0);
        saved_modules();
        json_.field("peft_type", "LORA").field("r", rank);
        json_.key("rank_pattern").begin_object();
        pattern(rank, rank_of);
        json_.end_object();
        json_.key("target_modules").begin_array();
        for (const std::string& name : targets_) json_.value(name);
        json_.end_array();
        json_.field("task_type", "CAUSAL_LM")
            .field("use_dora", use_dora)
            .field("use_rslora", options_.use_rslora)
            .end_object();
        return json_.take();
    }

  private:
    // Of what is there: all, where a module without a pair has one.
    const char* bias_kind() const {
        if (adapter_.biases.empty()) return "none";
        const bool is_all = std::ranges::any_of(adapter_.biases, [](const model::TrainedBias& bias) {
            return bias.bias.name.find(".base_layer.") == std::string::npos;
        });
        return is_all ? "all" : "lora_only";
    }

    static uint32_t rank_of(const TrainedModule& module) { return module.rank; }
    static double alpha_of(const TrainedModule& module) { return module.alpha; }

    void add_module(const model::TrainedPair& pair, std::optional<uint32_t> layer) {
        const ParsedName name = parse_tensor_name(pair.a.name, base_.config);
        const std::string module = name_of(name.place, name.prefix);
        const double rank = pair.rank(), root = options_.use_rslora ? std::sqrt(rank) : rank;
        // The least digits that give the same scale again.
        double alpha = static_cast<double>(pair.scale) * root;
        const double rounded = std::round(alpha * 1e4) / 1e4;
        if (static_cast<float>(rounded / root) == pair.scale) alpha = rounded;
        modules_.push_back({module, last_part(module), layer, pair.rank(), alpha});
    }

    void number(double value) {
        if (value == std::floor(value) && std::abs(value) < 1e15) {
            json_.value(static_cast<int64_t>(value));
        } else {
            json_.value(value);
        }
    }

    // Short names where every layer that has one of them has all of them; else each module by its whole name, which
    // PEFT takes whatever the layers are.
    void layers() {
        std::set<std::string> short_names;
        std::set<uint32_t> layers;
        bool has_outer = false;
        for (const TrainedModule& module : modules_) {
            short_names.insert(module.short_name);
            if (module.layer) layers.insert(*module.layer);
            has_outer |= !module.layer;
        }
        const size_t n_inner = static_cast<size_t>(
            std::ranges::count_if(modules_, [](const TrainedModule& module) { return module.layer.has_value(); }));
        const size_t n_outer = modules_.size() - n_inner;
        const bool is_regular = n_inner == layers.size() * (short_names.size() - n_outer),
                   is_everywhere = layers.size() == base_.config.n_layers;
        json_.key("layers_to_transform");
        if (is_regular && (is_everywhere || layers.empty() || !has_outer)) {
            targets_.assign(short_names.begin(), short_names.end());
            if (is_everywhere || layers.empty()) {
                json_.null();
            } else {
                json_.begin_array();
                for (const uint32_t layer : layers) json_.value(layer);
                json_.end_array();
            }
            return;
        }
        json_.null();
        for (const TrainedModule& module : modules_) targets_.push_back(module.name);
        std::ranges::sort(targets_);
    }

    // Writes the values that differ from `usual`: by the short name if all its modules agree.
    template <typename Get, typename Value>
    void pattern(const Value& usual, const Get& get) {
        std::map<std::string, std::vector<const TrainedModule*>> by_name;
        for (const TrainedModule& module : modules_) by_name[module.short_name].push_back(&module);
        for (const auto& [short_name, modules] : by_name) {
            const Value first = get(*modules.front());
            if (std::ranges::all_of(modules, [&](const TrainedModule* module) { return get(*module) == first; })) {
                if (first == usual) continue;
                json_.key(short_name);
                number(static_cast<double>(first));
                continue;
            }
            for (const TrainedModule* module : modules) {
                if (get(*module) == usual) continue;
                json_.key(quoted(module->name));
                number(static_cast<double>(get(*module)));
            }
        }
    }

    // A short name where no other module ends so and all layers have it.
    void saved_modules() {
        json_.key("modules_to_save");
        if (adapter_.wholes.empty()) {
            json_.null();
            return;
        }
        std::map<std::string, std::vector<std::string>> by_name;
        for (const model::TrainedWhole& whole : adapter_.wholes) {
            const ParsedName name = parse_tensor_name(whole.weight.name, base_.config);
            by_name[last_part(name_of(name.place, name.prefix))].push_back(name_of(name.place, name.prefix));
        }
        json_.begin_array();
        for (const auto& [short_name, names] : by_name) {
            const bool is_unique = short_name == "embed_tokens" || short_name == "lm_head";
            if (is_unique || (short_name != "norm" && names.size() == base_.config.n_layers)) {
                json_.value(short_name);
            } else {
                for (const std::string& name : names) json_.value(name);
            }
        }
        json_.end_array();
    }

    const model::TrainableAdapter& adapter_;
    const BaseModel& base_;
    const PeftFileOptions& options_;
    JsonWriter json_;
    std::vector<TrainedModule> modules_;
    std::vector<std::string> targets_;
};

// One tensor of a file.
struct WrittenTensor {
    const TrainedTensor* tensor = nullptr;
    model::DType type = model::DType::kF32;
    std::vector<std::byte> bytes;
};

// Writes in the wished type, or in f32 if a number is too large for it.
WrittenTensor written(const TrainedTensor& tensor, model::DType type) {
    WrittenTensor made{&tensor, type, std::vector<std::byte>(tensor.values.size() * model::bytes_of(type))};
    const bool fits =
        type != model::DType::kF32 &&
        model::narrow(tensor.values, static_cast<gpu::ScalarType>(model::weight_type_of(type)), made.bytes.data());
    if (fits) return made;
    const auto bytes = std::as_bytes(std::span(tensor.values));
    return {&tensor, model::DType::kF32, {bytes.begin(), bytes.end()}};
}

std::vector<std::byte> tensors_of(const model::TrainableAdapter& adapter, const BaseModel& base, model::DType type) {
    std::vector<WrittenTensor> tensors;
    for (const TrainedTensor* tensor : adapter.tensors()) tensors.push_back(written(*tensor, type));
    std::ranges::sort(tensors, {}, [](const WrittenTensor& tensor) { return tensor.tensor->name; });
    JsonWriter json;
    json.begin_object().key("__metadata__").begin_object().field("format", "pt");
    if (!base.fingerprint.empty()) json.field(kFingerprintKey, base.fingerprint);
    json.end_object();
    uint64_t end = 0;
    for (const WrittenTensor& tensor : tensors) {
        json.key(tensor.tensor->name)
            .begin_object()
            .field("dtype", model::name_of(tensor.type))
            .key("shape")
            .begin_array();
        for (const uint64_t size : tensor.tensor->shape) json.value(size);
        const uint64_t begin = end;
        end += tensor.bytes.size();
        json.end_array().key("data_offsets").begin_array().value(begin).value(end).end_array().end_object();
    }
    json.end_object();
    std::string header = json.take();
    while (header.size() % 8 != 0) header += ' ';
    const uint64_t length = header.size();
    std::vector<std::byte> bytes(model::kSafetensorsLengthBytes + header.size() + end);
    std::memcpy(bytes.data(), &length, sizeof(length));
    std::memcpy(bytes.data() + sizeof(length), header.data(), header.size());
    std::byte* at = bytes.data() + sizeof(length) + header.size();
    for (const WrittenTensor& tensor : tensors) at = std::ranges::copy(tensor.bytes, at).out;
    return bytes;
}

}  // namespace

PeftFiles peft_files(const model::TrainableAdapter& adapter, const BaseModel& base, const PeftFileOptions& options) {
    CHECK(model::is_weight_type(options.type));
    return {ConfigWriter(adapter, base, options).write(), tensors_of(adapter, base, options.type)};
}

Status write_peft_folder(const PeftFiles& files, const std::filesystem::path& folder) {
    TRY_ASSIGN(const std::unique_ptr<FileSystem> disk, open_file_system(folder));
    const auto write = [&](std::string_view name, std::span<const std::byte> bytes) {
        const std::string beside = std::string(name) + ".new";
        (void)disk->remove(beside);  // left by a run that was killed
        return replace_file(*disk, std::string(name), beside, bytes);
    };
    TRY(write(kPeftFile, files.tensors));
    return write(kConfigFile, std::as_bytes(std::span(std::string_view(files.config))));
}

}  // namespace lorad::adapters
