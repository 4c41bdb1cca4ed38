// Static files that are part of the program: the console and the interface's description. Any thread.
#pragma once

#include <span>
#include <string_view>

#include "server/http/http.h"

namespace lorad::server {

struct EmbeddedFile {
    std::string_view name;  // "index.html"
    std::string_view content_type;
    std::string_view etag;  // of the content, in quotes
    std::string_view content;
};
// Every file of server/console and of server/openapi, by name; made by the build.
std::span<const EmbeddedFile> console_files();
std::span<const EmbeddedFile> openapi_files();

// GET / (which leads to it), /console, /console/FILE and /openapi.json: the file, or 304 where the client has it
// already.
// They work while the model is still being loaded.
void add_file_routes(Router& router);

}  // namespace lorad::server
