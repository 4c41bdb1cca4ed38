#include "adapters/files/chat_files.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "proto/base/format.h"
#include "proto/json/json.h"

namespace lorad::adapters {

namespace {

using Files = std::span<const std::pair<std::string_view, std::string_view>>;

constexpr size_t kEndTokenBytesMax = 256;
constexpr size_t kEndIdsMax = 64;

std::string named_file(std::string_view name) {
    return format("{}/{}{}", model::kNamedTemplatesFolder, name, model::kTemplateSuffix);
}

// NAME of additional_chat_templates/NAME.jinja; empty for other names.
std::string_view template_name_of(std::string_view file) {
    if (!file.starts_with(model::kNamedTemplatesFolder) || !file.ends_with(model::kTemplateSuffix)) return {};
    file.remove_prefix(model::kNamedTemplatesFolder.size());
    if (!file.starts_with('/') || file.size() <= model::kTemplateSuffix.size() + 1) return {};
    const std::string_view name = file.substr(1, file.size() - 1 - model::kTemplateSuffix.size());
    return model::is_template_name(name) ? name : std::string_view();
}

std::optional<JsonDocument> parse_config(std::string_view text) {
    Result<JsonDocument> config = parse_json(text, {.allow_duplicate_keys = true});
    if (!config.ok() || !config->root().is_object()) return std::nullopt;
    return std::move(config).value();
}

std::string_view text_of(Files files, std::string_view name) {
    const auto found = std::ranges::find(files, name, &std::pair<std::string_view, std::string_view>::first);
    return found == files.end() ? std::string_view() : found->second;
}

// Reads one template without a name, a list of named ones, or an object of them.
std::vector<model::NamedTemplate> configured_templates(const JsonValue& config) {
    std::vector<model::NamedTemplate> templates;
    const std::optional<JsonValue> found = config.find("chat_template");
    if (!found) return templates;
    const auto add = [&](std::string_view name, const JsonValue& text) {
        if (text.is_string() && model::is_template_name(name) && templates.size() < model::kNamedTemplatesMax)
            templates.push_back({std::string(name), std::string(*text.as_string())});
    };
    if (found->is_string()) add(model::kDefaultTemplate, *found);
    if (found->is_object()) {
        for (const JsonMember& member : *found->as_object()) add(member.key, member.value);
    }
    if (found->is_array()) {
        for (const JsonValue& one : *found->as_array()) {
            const Result<std::string_view> name = one.string_or("name", "");
            const std::optional<JsonValue> text = one.find("template");
            if (name.ok() && text) add(*name, *text);
        }
    }
    return templates;
}

// A text, or an object with the text and its options.
std::string end_token_of(const JsonValue& config) {
    std::optional<JsonValue> token = config.find("eos_token");
    if (token && token->is_object()) token = token->find("content");
    if (!token || !token->is_string()) return {};
    const std::string_view text = *token->as_string();
    return text.size() <= kEndTokenBytesMax ? std::string(text) : std::string();
}

// A number, or a list of them.
std::vector<TokenId> end_ids_of(const JsonValue& config) {
    std::vector<TokenId> ids;
    const std::optional<JsonValue> found = config.find("eos_token_id");
    if (!found) return ids;
    const std::vector<JsonValue> values = found->is_array() ? *found->as_array() : std::vector{*found};
    for (const JsonValue& value : values) {
        const Result<uint64_t> id = value.as_uint(INT32_MAX);
        if (id.ok() && ids.size() < kEndIdsMax) ids.push_back(TokenId(*id));
    }
    return ids;
}

SourceFile made_file(std::string_view name, std::string_view text) {
    return {std::string(name), FileBytes::copy_of(std::as_bytes(std::span(text)))};
}

std::string ends_json(const ChatEnds& ends) {
    JsonWriter writer;
    writer.begin_object();
    if (!ends.token.empty()) writer.field("eos_token", ends.token);
    if (!ends.ids.empty()) {
        writer.key("eos_token_id").begin_array();
        for (TokenId id : ends.ids) writer.value(int64_t{id});
        writer.end_array();
    }
    return writer.end_object().take();
}

// Empty where it is not there or cannot be read; an error only for a link that is not followed.
Result<std::string> read_config_text(const SourceFolder& folder, std::string_view name) {
    if (!folder.has(name)) return std::string();
    const Result<FileBytes> bytes = folder.read(name, kConfigBytesMax);
    if (!bytes.ok() && bytes.error().code == ErrorCode::kAdapterPathForbidden) return bytes.error();
    return bytes.ok() ? std::string(bytes->text()) : std::string();
}

Status read_named_templates(const SourceFolder& folder, std::vector<SourceFile>& files) {
    if (!folder.has(model::kNamedTemplatesFolder)) return ok_status();
    TRY_ASSIGN(const SourceFolder named, folder.inner(model::kNamedTemplatesFolder));
    TRY_ASSIGN(std::vector<std::string> names, named.names_ending(model::kTemplateSuffix));
    std::ranges::sort(names);
    size_t n_read = 0;
    for (const std::string& name : names) {
        const std::string file = format("{}/{}", model::kNamedTemplatesFolder, name);
        if (template_name_of(file).empty() || n_read++ >= model::kNamedTemplatesMax) continue;
        TRY_ASSIGN(FileBytes bytes, named.read(name, kTemplateBytesMax));
        files.push_back({file, std::move(bytes)});
    }
    return ok_status();
}

}  // namespace

bool is_chat_file(std::string_view name) {
    return name == kTemplateFile || name == kTokenizerConfigFile || name == kGenerationConfigFile ||
           !template_name_of(name).empty();
}

uint64_t chat_file_bytes_max(std::string_view name) {
    return name == kTokenizerConfigFile || name == kGenerationConfigFile ? kConfigBytesMax : kTemplateBytesMax;
}

Result<std::vector<SourceFile>> read_chat_files(const SourceFolder& folder) {
    std::vector<SourceFile> files;
    if (folder.has(kTemplateFile)) {
        TRY_ASSIGN(FileBytes bytes, folder.read(kTemplateFile, kTemplateBytesMax));
        if (bytes.size > 0) files.push_back({std::string(kTemplateFile), std::move(bytes)});
    }
    TRY(read_named_templates(folder, files));
    TRY_ASSIGN(const std::string tokenizer, read_config_text(folder, kTokenizerConfigFile));
    TRY_ASSIGN(const std::string generation, read_config_text(folder, kGenerationConfigFile));
    const std::pair<std::string_view, std::string_view> configs[] = {{kTokenizerConfigFile, tokenizer},
                                                                     {kGenerationConfigFile, generation}};
    if (files.empty()) {
        for (const model::NamedTemplate& one : chat_templates(configs)) {
            const bool is_default = one.name == model::kDefaultTemplate;
            if (one.source.empty() || one.source.size() > kTemplateBytesMax) continue;
            files.push_back(made_file(is_default ? std::string(kTemplateFile) : named_file(one.name), one.source));
        }
    }
    const ChatEnds ends = chat_ends(configs);
    if (!ends.empty())
        files.push_back(made_file(ends.ids.empty() ? kTokenizerConfigFile : kGenerationConfigFile, ends_json(ends)));
    return files;
}

std::vector<model::NamedTemplate> chat_templates(Files files) {
    std::vector<model::NamedTemplate> templates;
    for (const auto& [name, text] : files) {
        if (name == kTemplateFile) templates.push_back({std::string(model::kDefaultTemplate), std::string(text)});
        if (const std::string_view named = template_name_of(name); !named.empty())
            templates.push_back({std::string(named), std::string(text)});
    }
    if (!templates.empty()) return templates;
    const std::optional<JsonDocument> config = parse_config(text_of(files, kTokenizerConfigFile));
    return config ? configured_templates(config->root()) : templates;
}

ChatEnds chat_ends(Files files) {
    ChatEnds ends;
    if (const auto config = parse_config(text_of(files, kGenerationConfigFile))) ends.ids = end_ids_of(config->root());
    if (!ends.ids.empty()) return ends;
    if (const auto config = parse_config(text_of(files, kTokenizerConfigFile)))
        ends.token = end_token_of(config->root());
    return ends;
}

ChatFiles chat_files_of(const GenerationRecord& record) {
    ChatFiles chat{.ends = record.ends};
    const auto is_template = [](const FileRecord& file) {
        return file.name == kTemplateFile || !template_name_of(file.name).empty();
    };
    std::ranges::copy_if(record.files, std::back_inserter(chat.templates), is_template);
    if (chat.templates.empty()) {
        const auto config = std::ranges::find(record.files, kTokenizerConfigFile, &FileRecord::name);
        if (config != record.files.end()) chat.templates.push_back(*config);
    }
    std::vector<std::pair<std::string, std::string>> digests;
    for (const FileRecord& file : chat.templates) digests.emplace_back(file.name, file.sha256);
    if (digests.size() == 1) {
        chat.digest = digests.front().second;
    } else if (!digests.empty()) {
        chat.digest = generation_of(std::move(digests));
    }
    return chat;
}

}  // namespace lorad::adapters
