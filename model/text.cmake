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
set(text_cargo_dir ${LORAD_CARGO_DIR})
set(text_library ${text_cargo_dir}/release/liblorad_text.a)
set(text_flags "")
set(text_environment "")
if(LORAD_FUZZ)
    # libFuzzer sees which branches of the libraries an input takes. With --target the flags are not those of programs that run during the build.
    execute_process(COMMAND ${LORAD_RUSTC} -vV OUTPUT_VARIABLE rustc_says COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCH "host: ([^\n]+)" ignored "${rustc_says}")
    set(text_cargo_dir ${LORAD_CARGO_DIR}-fuzz)
    set(text_library ${text_cargo_dir}/${CMAKE_MATCH_1}/release/liblorad_text.a)
    set(text_flags --target ${CMAKE_MATCH_1})
    string(JOIN " " text_rustflags -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares)
    set(text_environment "RUSTFLAGS=${text_rustflags}")
endif()
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
    COMMAND ${CMAKE_COMMAND} -E env RUSTC=${LORAD_RUSTC} "CFLAGS=${text_cflags}" ${text_environment} ${LORAD_CARGO} build --quiet --release ${locked}
        ${text_flags} --manifest-path ${text_dir}/Cargo.toml --target-dir ${text_cargo_dir}
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
