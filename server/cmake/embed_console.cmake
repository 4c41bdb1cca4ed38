# Writes the C++ source that holds the files of the console: cmake -D FOLDER=server/console -D OUT=console_files.cpp -P embed_console.cmake
set(types ".html=text/html" ".css=text/css" ".js=text/javascript" ".svg=image/svg+xml")
file(GLOB files LIST_DIRECTORIES false ${FOLDER}/*)
list(SORT files)
set(texts "")
set(table "")
set(n 0)
foreach(file IN LISTS files)
    cmake_path(GET file FILENAME name)
    cmake_path(GET file EXTENSION LAST_ONLY extension)
    set(type "")
    foreach(pair IN LISTS types)
        if(pair MATCHES "^\\${extension}=(.*)$")
            set(type "${CMAKE_MATCH_1}")
        endif()
    endforeach()
    if(NOT type)
        message(FATAL_ERROR "${name}: no content type is known for ${extension}")
    endif()
    file(READ ${file} text)
    file(SHA256 ${file} digest)
    string(SUBSTRING ${digest} 0 32 digest)
    string(APPEND texts "constexpr std::string_view kText${n} = R\"lorad_file(${text})lorad_file\";\n")
    string(APPEND table "    {\"${name}\", \"${type}; charset=utf-8\", \"\\\"${digest}\\\"\", kText${n}},\n")
    math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "// Made from server/console by server/cmake/embed_console.cmake.
#include \"server/http/console.h\"

namespace lorad::server {
namespace {

${texts}
constexpr ConsoleFile kFiles[] = {
${table}};

}  // namespace

std::span<const ConsoleFile> console_files() { return kFiles; }

}  // namespace lorad::server
")
