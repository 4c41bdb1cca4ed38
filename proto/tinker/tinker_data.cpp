#include "proto/tinker/tinker_data.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "proto/base/format.h"
#include "proto/json/json.h"
#include "proto/tinker/protobuf.h"

namespace lorad::proto {
namespace {

enum DataType : uint64_t { kFloat32 = 1, kInt64 = 2, kInt32 = 3 };

struct Tensor {
    std::string_view bytes;
    uint64_t type = 0;
    std::vector<uint64_t> shape;
    bool is_sparse = false;
};

// Calls take(field) for each field of a message.
template <typename Take>
Status each_field(std::string_view bytes, std::string_view name, Take take) {
    ProtoReader reader(bytes, name);
    while (true) {
        TRY_ASSIGN(const std::optional<ProtoField> field, reader.next());
        if (!field) return ok_status();
        TRY(take(reader, *field));
    }
}

Result<std::string_view> bytes_of(const ProtoReader& reader, const ProtoField& field) {
    if (field.is_bytes) return field.bytes;
    return reader.error(field, "expected bytes, found a number");
}

Result<uint64_t> number_of(const ProtoReader& reader, const ProtoField& field) {
    if (!field.is_bytes) return field.value;
    return reader.error(field, "expected a number, found bytes");
}

Result<Tensor> parse_tensor(std::string_view bytes, std::string_view name) {
    Tensor tensor;
    TRY(each_field(bytes, name, [&](const ProtoReader& reader, const ProtoField& field) -> Status {
        if (field.number == 1) {
            TRY_ASSIGN(tensor.bytes, bytes_of(reader, field));
        } else if (field.number == 2) {
            tensor.is_sparse = true;
        } else if (field.number == 3) {
            TRY_ASSIGN(tensor.type, number_of(reader, field));
        } else if (field.number == 4 && field.is_bytes) {
            // Packed, each as many bytes as it needs; a number of its own is read as a field is.
            for (size_t at = 0; at < field.bytes.size();) {
                uint64_t value = 0;
                uint32_t shift = 0;
                for (; at < field.bytes.size() && shift < 64; shift += 7) {
                    const auto byte = static_cast<uint8_t>(field.bytes[at++]);
                    value |= uint64_t{byte & 0x7fu} << shift;
                    if (byte < 0x80) break;
                }
                tensor.shape.push_back(value);
                if (tensor.shape.size() > 8) return reader.error(field, "more than 8 dimensions");
            }
        } else if (field.number == 4) {
            tensor.shape.push_back(field.value);
        }
        return tensor.shape.size() <= 8 ? ok_status() : Status(reader.error(field, "more than 8 dimensions"));
    }));
    return tensor;
}

template <typename T>
Result<std::vector<T>> numbers_of(std::string_view bytes, std::string_view name) {
    if (bytes.size() % sizeof(T) != 0)
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: {} bytes: expected a multiple of {}", name, bytes.size(), sizeof(T)));
    std::vector<T> numbers(bytes.size() / sizeof(T));
    if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
}

Status check_dense(const Tensor& tensor, std::string_view name, uint64_t n) {
    if (tensor.is_sparse)
        return make_error(ErrorCode::kUnsupportedParameter, format("{}: a sparse tensor is not read", name));
    if (tensor.shape.size() > 1)
        return make_error(
            ErrorCode::kUnsupportedParameter,
            format("{}: {} dimensions: several targets of a position are not trained on", name, tensor.shape.size()));
    const uint64_t width = tensor.type == kInt64 ? 8 : 4;
    if (tensor.bytes.size() != n * width)
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: {} values: expected {}, one for each token of model_input", name,
                                 tensor.bytes.size() / width, n));
    return ok_status();
}

Result<std::vector<float>> floats_of(const Tensor& tensor, std::string_view name, uint64_t n) {
    TRY(check_dense(tensor, name, n));
    if (tensor.type == kFloat32) return numbers_of<float>(tensor.bytes, name);
    if (tensor.type != kInt64)
        return make_error(ErrorCode::kInvalidRequest, format("{}: expected a tensor of float32", name));
    TRY_ASSIGN(const std::vector<int64_t> whole, numbers_of<int64_t>(tensor.bytes, name));
    return std::vector<float>(whole.begin(), whole.end());
}

Result<std::vector<TokenId>> tokens_of(const Tensor& tensor, std::string_view name, uint64_t n) {
    TRY(check_dense(tensor, name, n));
    if (tensor.type == kInt32) return numbers_of<TokenId>(tensor.bytes, name);
    if (tensor.type != kInt64)
        return make_error(ErrorCode::kInvalidRequest, format("{}: expected a tensor of int64", name));
    TRY_ASSIGN(const std::vector<int64_t> whole, numbers_of<int64_t>(tensor.bytes, name));
    std::vector<TokenId> tokens;
    tokens.reserve(whole.size());
    for (const int64_t token : whole) {
        if (token < 0 || token > std::numeric_limits<TokenId>::max())
            return make_error(ErrorCode::kInvalidRequest, format("{}: {} is no token", name, token));
        tokens.push_back(static_cast<TokenId>(token));
    }
    return tokens;
}

Status add_chunk(std::string_view bytes, std::string_view name, std::vector<TokenId>& tokens) {
    return each_field(bytes, name, [&](const ProtoReader& reader, const ProtoField& chunk) -> Status {
        if (chunk.number != 1)
            return make_error(ErrorCode::kUnsupportedParameter,
                              format("{}: {} are not trained on", name, chunk.number == 2 ? "images" : "sounds"));
        TRY_ASSIGN(const std::string_view text, bytes_of(reader, chunk));
        return each_field(text, name, [&](const ProtoReader& inner, const ProtoField& field) -> Status {
            if (field.number != 1) return ok_status();
            TRY_ASSIGN(const std::string_view packed, bytes_of(inner, field));
            TRY_ASSIGN(const std::vector<TokenId> more, numbers_of<TokenId>(packed, name));
            tokens.insert(tokens.end(), more.begin(), more.end());
            return ok_status();
        });
    });
}

using Inputs = std::map<std::string, Tensor, std::less<>>;

Status add_input(std::string_view bytes, const std::string& name, Inputs& inputs) {
    std::string key;
    Tensor value;
    TRY(each_field(bytes, name, [&](const ProtoReader& reader, const ProtoField& field) -> Status {
        if (field.number == 1) {
            TRY_ASSIGN(const std::string_view text, bytes_of(reader, field));
            key = std::string(text.substr(0, 64));
        } else if (field.number == 2) {
            TRY_ASSIGN(const std::string_view tensor, bytes_of(reader, field));
            TRY_ASSIGN(value, parse_tensor(tensor, name));
        }
        return ok_status();
    }));
    if (inputs.size() >= 16)
        return make_error(ErrorCode::kInvalidRequest, format("{}: more than 16 loss_fn_inputs", name));
    inputs.insert_or_assign(std::move(key), value);
    return ok_status();
}

Result<TinkerDatum> datum_of(const std::vector<TokenId>& tokens, const Inputs& inputs, TinkerLoss loss,
                             const std::string& name) {
    const bool is_sampled = loss == TinkerLoss::kImportanceSampling;
    const auto wanted = [&](std::string_view key) {
        return key == "target_tokens" || (is_sampled ? key == "logprobs" || key == "advantages" : key == "weights");
    };
    for (const auto& [key, tensor] : inputs) {
        // "mask" comes with data of the cookbook; what it says, the advantages say too.
        if (wanted(key) || key == "mask") continue;
        return make_error(ErrorCode::kInvalidRequest,
                          format("{}: loss_fn_inputs: {}: {} takes {}", name, json_quote_short(key),
                                 is_sampled ? "importance_sampling" : "cross_entropy",
                                 is_sampled ? "target_tokens, logprobs and advantages" : "target_tokens and weights"));
    }
    const auto input = [&](std::string_view key) -> Result<Tensor> {
        const auto found = inputs.find(key);
        if (found != inputs.end()) return found->second;
        return make_error(ErrorCode::kInvalidRequest, format("{}: loss_fn_inputs: {} is missing", name, key));
    };
    const std::string place = name + ": loss_fn_inputs: ";
    if (tokens.empty()) return make_error(ErrorCode::kInvalidRequest, format("{}: model_input: no tokens", name));
    TinkerDatum datum;
    datum.tokens = tokens;
    TRY_ASSIGN(const Tensor targets, input("target_tokens"));
    TRY_ASSIGN(datum.targets, tokens_of(targets, place + "target_tokens", tokens.size()));
    if (!is_sampled && !inputs.contains("weights")) {
        datum.weights.assign(tokens.size(), 1.0f);
        return datum;
    }
    const std::string_view weights_name = is_sampled ? "advantages" : "weights";
    TRY_ASSIGN(const Tensor weights, input(weights_name));
    TRY_ASSIGN(datum.weights, floats_of(weights, place + std::string(weights_name), tokens.size()));
    if (!is_sampled) return datum;
    TRY_ASSIGN(const Tensor sampled, input("logprobs"));
    TRY_ASSIGN(datum.sampled, floats_of(sampled, place + "logprobs", tokens.size()));
    return datum;
}

Result<TinkerDatum> parse_datum(std::string_view bytes, TinkerLoss loss, const std::string& name) {
    std::vector<TokenId> tokens;
    Inputs inputs;
    TRY(each_field(bytes, name, [&](const ProtoReader& reader, const ProtoField& field) -> Status {
        if (field.number > 2) return ok_status();  // where the tokens come from, which changes no loss
        TRY_ASSIGN(const std::string_view part, bytes_of(reader, field));
        return field.number == 1 ? add_chunk(part, name, tokens) : add_input(part, name, inputs);
    }));
    return datum_of(tokens, inputs, loss, name);
}

Result<TinkerLoss> loss_named(std::string_view name) {
    if (name == "cross_entropy") return TinkerLoss::kCrossEntropy;
    if (name == "importance_sampling") return TinkerLoss::kImportanceSampling;
    return make_error(ErrorCode::kUnsupportedParameter,
                      format("loss_fn: {} is not there: expected \"cross_entropy\" or \"importance_sampling\"",
                             json_quote_short(name)),
                      "loss_fn");
}

Status take_data(TinkerForwardBackward& request, std::string_view loss_name, bool has_config,
                 const std::vector<std::string_view>& data) {
    TRY_ASSIGN(request.loss, loss_named(loss_name));
    if (has_config)
        return make_error(ErrorCode::kUnsupportedParameter,
                          format("loss_fn_config: {} has no settings", json_quote_short(loss_name)), "loss_fn_config");
    if (data.empty()) return make_error(ErrorCode::kInvalidRequest, "data: no sequences");
    for (size_t i = 0; i < data.size(); ++i) {
        TRY_ASSIGN(TinkerDatum datum, parse_datum(data[i], request.loss, format("data[{}]", i)));
        request.data.push_back(std::move(datum));
    }
    return ok_status();
}

template <typename T>
std::string_view packed(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

Result<TinkerForwardBackward> parse_tinker_forward_backward(std::string_view bytes) {
    TinkerForwardBackward request;
    std::string_view loss_name;
    std::vector<std::string_view> data;
    bool has_config = false;
    TRY(each_field(bytes, "the request", [&](const ProtoReader& reader, const ProtoField& field) -> Status {
        switch (field.number) {
            case 1: {
                TRY_ASSIGN(const std::string_view id, bytes_of(reader, field));
                request.model_id = std::string(id.substr(0, 256));
                break;
            }
            case 2: {
                TRY_ASSIGN(request.seq_id, number_of(reader, field));
                if (request.seq_id > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
                    return reader.error(field, "seq_id: expected a number from 0 to 2147483647");
                break;
            }
            case 3: {
                TRY_ASSIGN(const std::string_view datum, bytes_of(reader, field));
                if (data.size() == kTinkerDataMax)
                    return reader.error(field, format("data: more than {} sequences", kTinkerDataMax));
                data.push_back(datum);
                break;
            }
            case 4: {
                TRY_ASSIGN(loss_name, bytes_of(reader, field));
                break;
            }
            case 5:
            case 7: has_config = true; break;
            case 6: {
                TRY_ASSIGN(const uint64_t flag, number_of(reader, field));
                request.is_forward_only = flag != 0;
                break;
            }
            default: break;
        }
        return ok_status();
    }));
    if (const Status taken = take_data(request, loss_name, has_config, data); !taken.ok()) {
        request.data.clear();
        request.refusal = taken.error();
    }
    return request;
}

std::string tinker_forward_backward_output(const std::vector<std::vector<float>>& log_probabilities,
                                           const std::map<std::string, double>& metrics) {
    std::vector<float> all;
    std::vector<int64_t> offsets = {0};
    for (const std::vector<float>& of_datum : log_probabilities) {
        all.insert(all.end(), of_datum.begin(), of_datum.end());
        offsets.push_back(static_cast<int64_t>(all.size() * sizeof(float)));
    }
    const std::string tensor = ProtoWriter().bytes(1, packed(all)).bytes(2, packed(offsets)).number(3, kFloat32).take();
    const std::string entry = ProtoWriter().bytes(1, "logprobs").bytes(2, tensor).take();
    ProtoWriter out;
    out.bytes(1, "ArrayRecord");
    out.bytes(2, ProtoWriter().bytes(2, entry).number(3, log_probabilities.size()).take());
    for (const auto& [name, value] : metrics) out.bytes(3, ProtoWriter().bytes(1, name).number_f64(2, value).take());
    return out.take();
}

std::string tinker_sample_output(const std::vector<TinkerSample>& samples,
                                 const std::vector<float>& prompt_log_probabilities, size_t first_scored,
                                 uint64_t n_cached_tokens) {
    ProtoWriter out;
    for (const TinkerSample& sample : samples) {
        out.bytes(1, ProtoWriter()
                         .number(1, sample.is_stopped ? 0 : 1)
                         .bytes(2, packed(sample.tokens))
                         .bytes(3, packed(sample.log_probabilities))
                         .take());
    }
    if (!prompt_log_probabilities.empty()) {
        std::vector<float> told = {std::nanf("")};  // nothing is in front of the first token
        told.insert(told.end(), prompt_log_probabilities.begin(), prompt_log_probabilities.end());
        for (size_t i = 0; i < std::min(first_scored, told.size()); ++i) told[i] = std::nanf("");
        out.bytes(2, packed(told));
    }
    return out.number(4, n_cached_tokens).take();
}

}  // namespace lorad::proto
