# Writes the C++ source of a function that gives the files of a folder (server/http/embedded_files.h):
# cmake -D FOLDER=server/console -D FUNCTION=console_files -D OUT=console_files.cpp -P embed_files.cmake
set(types ".html=text/html| charset=utf-8" ".css=text/css| charset=utf-8" ".js=text/javascript| charset=utf-8"
    ".svg=image/svg+xml| charset=utf-8" ".json=application/json")
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
            string(REPLACE "|" ";" type "${CMAKE_MATCH_1}")
        endif()
    endforeach()
    if(NOT type)
        message(FATAL_ERROR "${name}: no content type is known for ${extension}")
    endif()
    file(READ ${file} text)
    file(SHA256 ${file} digest)
    string(SUBSTRING ${digest} 0 32 digest)
    string(APPEND texts "constexpr std::string_view kText${n} = R\"lorad_file(${text})lorad_file\";\n")
    string(APPEND table "    {\"${name}\", \"${type}\", \"\\\"${digest}\\\"\", kText${n}},\n")
    math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "// Made by server/cmake/embed_files.cmake.
#include \"server/http/embedded_files.h\"

namespace lorad::server {
namespace {

${texts}
constexpr EmbeddedFile kFiles[] = {
${table}};

}  // namespace

std::span<const EmbeddedFile> ${FUNCTION}() { return kFiles; }

}  // namespace lorad::server
")
