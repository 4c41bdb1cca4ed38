// GET /tokenizer_info: how the model's tokenizer is configured; vLLM's name.
#include "model/files/model_files.h"
#include "proto/tokenizer_info.h"
#include "server/http/routes.h"

namespace lorad::server {
namespace {

HttpReply show_tokenizer(ServerContext& context, const HttpRequest&) {
    if (!context.tokenizer_info.empty()) return json_reply(context.tokenizer_info);
    return error_reply(make_error(ErrorCode::kNotFound, "the served model has no tokenizer_config.json"));
}

constexpr ContextRoute kTokenizerRoutes[] = {{"GET", "/tokenizer_info", kGenerates, show_tokenizer}};

}  // namespace

Result<std::string> tokenizer_info_of(const model::ModelFiles& files) {
    TRY_ASSIGN(const model::ModelFiles::TokenizerConfig config, files.tokenizer_config());
    if (config.json.empty() && config.chat_template.empty()) return std::string();
    return proto::tokenizer_info(config.json, config.chat_template);
}

std::span<const ContextRoute> tokenizer_routes() { return kTokenizerRoutes; }

}  // namespace lorad::server
