// Reads from an adapter's files how chats with it are written, and which tokens end an answer.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "adapters/files/source.h"
#include "adapters/files/source_folder.h"
#include "adapters/store/catalogue.h"
#include "model/text/text.h"
#include "proto/base/ids.h"
#include "proto/base/result.h"

namespace lorad::adapters {

// Returns true for the names of chat files: kTemplateFile, additional_chat_templates/NAME.jinja, kTokenizerConfigFile
// and kGenerationConfigFile.
bool is_chat_file(std::string_view name);
uint64_t chat_file_bytes_max(std::string_view name);

// Reads a folder's chat files under those names: templates, also those in tokenizer_config.json, and from both configs
// only what ends an answer. A config without end tokens is left out.
Result<std::vector<SourceFile>> read_chat_files(const SourceFolder& folder);

// The templates, as transformers finds them: in files, else in tokenizer_config.json. {name, text} of each file.
std::vector<model::NamedTemplate> chat_templates(std::span<const std::pair<std::string_view, std::string_view>> files);

ChatEnds chat_ends(std::span<const std::pair<std::string_view, std::string_view>> files);

// The chat files of a registered adapter.
struct ChatFiles {
    std::string digest;  // of the template files; empty: there are none
    std::vector<FileRecord> templates;
    ChatEnds ends;
};
ChatFiles chat_files_of(const GenerationRecord& record);

}  // namespace lorad::adapters
