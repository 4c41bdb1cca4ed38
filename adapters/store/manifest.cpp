// The catalogue as one line of JSON: {"format":1,"sha256":"<of what follows>","registry":{...}}
#include "adapters/files/files.h"
#include "adapters/store/catalogue.h"
#include "adapters/store/store.h"
#include "proto/base/digest.h"
#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

constexpr std::string_view kManifestHead = "{\"format\":1,\"sha256\":\"";
constexpr std::string_view kManifestMiddle = "\",\"registry\":";
constexpr std::string_view kManifestTail = "}\n";
constexpr size_t kDigestDigits = 64;
constexpr size_t kManifestTextMax = size_t{1} << 30;
constexpr uint32_t kManifestValuesMax = 1u << 26;

std::string digest(std::string_view text) { return sha256_hex(std::as_bytes(std::span(text))); }

void write_target(JsonWriter& writer, const Target& target) {
    writer.begin_object().key("parts").begin_array();
    for (const Part& part : target.parts) {
        writer.begin_object().field("name", part.name).field("generation", part.generation);
        writer.field("scale", part.scale).end_object();
    }
    writer.end_array().field("path", target.path).field("since", target.since_s).end_object();
}

void write_generation(JsonWriter& writer, const GenerationRecord& record) {
    writer.begin_object().field("id", record.id).key("files").begin_array();
    for (const FileRecord& file : record.files) {
        writer.begin_object().field("name", file.name).field("sha256", file.sha256);
        writer.field("bytes", file.bytes).end_object();
    }
    writer.end_array().field("rank", record.rank).field("modules", record.n_modules);
    writer.field("device_bytes", record.device_bytes).field("replaces_parts", record.replaces_parts);
    writer.key("invocation_tokens").begin_array();
    for (const TokenId token : record.invocation_tokens) writer.value(token);
    writer.end_array();
    if (!record.ends.token.empty()) writer.field("end_token", record.ends.token);
    if (!record.ends.ids.empty()) {
        writer.key("end_token_ids").begin_array();
        for (const TokenId token : record.ends.ids) writer.value(token);
        writer.end_array();
    }
    writer.end_object();
}

Result<std::string> read_digest(const JsonValue& object, std::string_view key) {
    TRY_ASSIGN(const JsonValue value, object.require(key));
    TRY_ASSIGN(const std::string_view text, value.as_string());
    if (!is_sha256_hex(text)) return value.error("expected 64 hex digits");
    return std::string(text);
}

Result<std::string> read_text(const JsonValue& object, std::string_view key) {
    TRY_ASSIGN(const JsonValue value, object.require(key));
    TRY_ASSIGN(const std::string_view text, value.as_string());
    return std::string(text);
}

Result<uint64_t> read_number(const JsonValue& object, std::string_view key, uint64_t max) {
    TRY_ASSIGN(const JsonValue value, object.require(key));
    return value.as_uint(max);
}

Result<std::vector<JsonValue>> read_array(const JsonValue& object, std::string_view key) {
    TRY_ASSIGN(const JsonValue value, object.require(key));
    return value.as_array();
}

Result<std::vector<TokenId>> read_tokens(const JsonValue& object, std::string_view key) {
    TRY_ASSIGN(const std::vector<JsonValue> values, read_array(object, key));
    std::vector<TokenId> tokens;
    for (const JsonValue& value : values) {
        TRY_ASSIGN(const uint64_t id, value.as_uint(INT32_MAX));
        tokens.push_back(static_cast<TokenId>(id));
    }
    return tokens;
}

Result<Target> read_target(const JsonValue& value) {
    Target target;
    TRY_ASSIGN(const std::vector<JsonValue> parts, read_array(value, "parts"));
    for (const JsonValue& entry : parts) {
        Part part;
        TRY_ASSIGN(part.name, read_text(entry, "name"));
        TRY_ASSIGN(part.generation, read_digest(entry, "generation"));
        TRY_ASSIGN(const JsonValue scale, entry.require("scale"));
        TRY_ASSIGN(const double number, scale.as_number());
        part.scale = static_cast<float>(number);
        target.parts.push_back(std::move(part));
    }
    if (target.parts.empty()) return value.error("expected at least one part");
    TRY_ASSIGN(target.path, read_text(value, "path"));
    TRY_ASSIGN(const uint64_t since, read_number(value, "since", INT64_MAX));
    target.since_s = static_cast<int64_t>(since);
    return target;
}

Result<GenerationRecord> read_generation(const JsonValue& value) {
    GenerationRecord record;
    TRY_ASSIGN(record.id, read_digest(value, "id"));
    TRY_ASSIGN(const std::vector<JsonValue> files, read_array(value, "files"));
    for (const JsonValue& entry : files) {
        FileRecord file;
        TRY_ASSIGN(file.name, read_text(entry, "name"));
        TRY_ASSIGN(file.sha256, read_digest(entry, "sha256"));
        TRY_ASSIGN(file.bytes, read_number(entry, "bytes", INT64_MAX));
        record.files.push_back(std::move(file));
    }
    TRY_ASSIGN(const uint64_t rank, read_number(value, "rank", UINT32_MAX));
    TRY_ASSIGN(const uint64_t n_modules, read_number(value, "modules", UINT32_MAX));
    record.rank = static_cast<uint32_t>(rank);
    record.n_modules = static_cast<uint32_t>(n_modules);
    TRY_ASSIGN(record.device_bytes, read_number(value, "device_bytes", INT64_MAX));
    TRY_ASSIGN(const JsonValue replaces, value.require("replaces_parts"));
    TRY_ASSIGN(record.replaces_parts, replaces.as_bool());
    TRY_ASSIGN(record.invocation_tokens, read_tokens(value, "invocation_tokens"));
    TRY_ASSIGN(const std::string_view end_token, value.string_or("end_token", ""));
    record.ends.token = std::string(end_token);
    if (value.has("end_token_ids")) {
        TRY_ASSIGN(record.ends.ids, read_tokens(value, "end_token_ids"));
    }
    return record;
}

Result<Alias> read_alias(const JsonValue& value) {
    Alias alias;
    TRY_ASSIGN(const JsonValue target, value.require("target"));
    TRY_ASSIGN(alias.target, read_target(target));
    TRY_ASSIGN(const std::vector<JsonValue> history, read_array(value, "history"));
    for (const JsonValue& entry : history) {
        TRY_ASSIGN(Target past, read_target(entry));
        alias.history.push_back(std::move(past));
    }
    TRY_ASSIGN(const JsonValue mode, value.require("mode"));
    TRY_ASSIGN(const std::string_view mode_name, mode.as_string());
    const std::optional<ActivationMode> known = activation_mode_of(mode_name);
    if (!known) return mode.error("expected none, unmerged, merged or auto");
    alias.mode = *known;
    TRY_ASSIGN(const JsonValue pinned, value.require("pinned"));
    TRY_ASSIGN(alias.pinned, pinned.as_bool());
    return alias;
}

// Every generation that a name needs is there.
Status check_complete(const Catalogue& catalogue) {
    const auto check = [&](const std::string& name, const Target& target) -> Status {
        for (const Part& part : target.parts) {
            if (catalogue.generations.contains(part.generation)) continue;
            return make_error(ErrorCode::kIo, format("registry.json: {} stands for generation {}, which is not there",
                                                     json_quote(name), part.generation));
        }
        return ok_status();
    };
    for (const auto& [name, alias] : catalogue.aliases) {
        TRY(check(name, alias.target));
        for (const Target& past : alias.history) TRY(check(name, past));
    }
    return ok_status();
}

}  // namespace

std::string manifest_text(const Catalogue& catalogue) {
    JsonWriter writer;
    writer.begin_object().field("sequence", catalogue.sequence).key("generations").begin_array();
    for (const auto& [id, record] : catalogue.generations) write_generation(writer, record);
    writer.end_array().key("aliases").begin_array();
    for (const auto& [name, alias] : catalogue.aliases) {
        writer.begin_object().field("name", name).key("target");
        write_target(writer, alias.target);
        writer.key("history").begin_array();
        for (const Target& past : alias.history) write_target(writer, past);
        writer.end_array().field("mode", name_of(alias.mode)).field("pinned", alias.pinned).end_object();
    }
    writer.end_array().key("trash").begin_array();
    for (const std::string& sha256 : catalogue.trash) writer.value(sha256);
    writer.end_array().end_object();
    const std::string body = writer.take();
    return format("{}{}{}{}{}", kManifestHead, digest(body), kManifestMiddle, body, kManifestTail);
}

Result<Catalogue> parse_manifest(std::string_view text) {
    const auto damaged = [](std::string_view what) {
        return make_error(ErrorCode::kIo, format("registry.json: {}", what));
    };
    const size_t body_begin = kManifestHead.size() + kDigestDigits + kManifestMiddle.size();
    if (text.size() < body_begin + kManifestTail.size() || !text.starts_with(kManifestHead) ||
        !text.ends_with(kManifestTail) ||
        text.substr(kManifestHead.size() + kDigestDigits, kManifestMiddle.size()) != kManifestMiddle) {
        return damaged("not a registry of format 1, or cut off");
    }
    const std::string_view body = text.substr(body_begin, text.size() - body_begin - kManifestTail.size());
    if (digest(body) != text.substr(kManifestHead.size(), kDigestDigits)) return damaged("its digest does not match");

    const JsonParseOptions options{.name = "registry.json",
                                   .code = ErrorCode::kIo,
                                   .max_bytes = kManifestTextMax,
                                   .max_values = kManifestValuesMax};
    TRY_ASSIGN(const JsonDocument document, parse_json(body, options));
    const JsonValue root = document.root();
    Catalogue catalogue;
    TRY_ASSIGN(catalogue.sequence, read_number(root, "sequence", UINT64_MAX));
    TRY_ASSIGN(const std::vector<JsonValue> generations, read_array(root, "generations"));
    for (const JsonValue& entry : generations) {
        TRY_ASSIGN(GenerationRecord record, read_generation(entry));
        catalogue.generations.emplace(record.id, std::move(record));
    }
    TRY_ASSIGN(const std::vector<JsonValue> aliases, read_array(root, "aliases"));
    for (const JsonValue& entry : aliases) {
        TRY_ASSIGN(std::string name, read_text(entry, "name"));
        TRY_ASSIGN(Alias alias, read_alias(entry));
        catalogue.aliases.emplace(std::move(name), std::move(alias));
    }
    TRY_ASSIGN(const std::vector<JsonValue> trash, read_array(root, "trash"));
    for (const JsonValue& entry : trash) {
        TRY_ASSIGN(const std::string_view sha256, entry.as_string());
        if (!is_sha256_hex(sha256)) return entry.error("expected 64 hex digits");
        catalogue.trash.emplace(sha256);
    }
    TRY(check_complete(catalogue));
    return catalogue;
}

}  // namespace lorad::adapters
