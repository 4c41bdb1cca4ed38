// The console: static files that are part of the program. Any thread.
#pragma once

#include <span>
#include <string_view>

#include "server/http/http.h"

namespace lorad::server {

struct ConsoleFile {
    std::string_view name;  // "index.html"
    std::string_view content_type;
    std::string_view etag;  // of the content, in quotes
    std::string_view content;
};
// Every file of server/console, by name.
std::span<const ConsoleFile> console_files();

// GET /console and /console/FILE: the file, or 304 where the client has it already. Works while the
// model is still being loaded.
void add_console_routes(Router& router);

}  // namespace lorad::server
