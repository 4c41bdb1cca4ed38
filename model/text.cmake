# lorad_text: the Rust static library of model/text, built by cargo and imported.

# Distributions that keep several Rusts beside each other put the version into the program's name.
find_program(LORAD_CARGO NAMES cargo cargo-1.91 cargo-1.89 cargo-1.88 cargo-1.87
    HINTS $ENV{HOME}/.cargo/bin)
if(NOT LORAD_CARGO)
    message(FATAL_ERROR "cargo not found; run deploy/install-deps.sh")
endif()
string(REGEX REPLACE "cargo([^/]*)$" "rustc\\1" LORAD_RUSTC ${LORAD_CARGO})

# One target folder for all presets and build folders: the crates are compiled once.
set(LORAD_CARGO_DIR ${CMAKE_SOURCE_DIR}/build/cargo CACHE PATH "where cargo puts what it builds")
set(text_dir ${CMAKE_CURRENT_SOURCE_DIR}/text)
set(text_library ${LORAD_CARGO_DIR}/release/liblorad_text.a)
file(GLOB_RECURSE text_sources CONFIGURE_DEPENDS ${text_dir}/src/*.rs)
set(locked "")
if(EXISTS ${text_dir}/Cargo.lock)
    set(locked --locked)
endif()

# Every build folder links its own copy, so that cargo in another one cannot change the library under a running linker.
set(text_copy ${CMAKE_BINARY_DIR}/model/liblorad_text.a)
# C code in it (Oniguruma) allocates as its Rust does: model/text/src/reserve_c.rs.
set(text_cflags $ENV{CFLAGS})
foreach(name malloc calloc realloc free)
    string(APPEND text_cflags " -D${name}=lorad_text_${name}")
endforeach()
add_custom_command(OUTPUT ${text_copy}
    COMMAND ${CMAKE_COMMAND} -E env RUSTC=${LORAD_RUSTC} "CFLAGS=${text_cflags}" ${LORAD_CARGO} build --quiet --release ${locked}
        --manifest-path ${text_dir}/Cargo.toml --target-dir ${LORAD_CARGO_DIR}
    COMMAND ${CMAKE_COMMAND} -E copy ${text_library} ${text_copy}
    DEPENDS ${text_sources} ${text_dir}/Cargo.toml
    COMMENT "cargo build model/text" USES_TERMINAL VERBATIM)
add_custom_target(lorad_text_build DEPENDS ${text_copy})
add_library(lorad_text STATIC IMPORTED GLOBAL)
set_target_properties(lorad_text PROPERTIES IMPORTED_LOCATION ${text_copy})
target_link_libraries(lorad_text INTERFACE Threads::Threads ${CMAKE_DL_LIBS} m)
# Its names are not those of other libraries in the process.
target_link_options(lorad_text INTERFACE LINKER:--exclude-libs,liblorad_text.a)
add_dependencies(lorad_text lorad_text_build)
