# What is shipped (preset release) is built with these; deploy/check_hardening.py looks whether the program has them.
# Not for sanitizers, which bring their own checks.
option(LORAD_HARDEN "release builds get the flags of deploy/hardening.cmake" ON)
if(LORAD_SANITIZE OR LORAD_FUZZ OR NOT LORAD_HARDEN)
    return()
endif()
include(CheckCXXCompilerFlag)
check_cxx_compiler_flag(-fcf-protection=full LORAD_HAS_CET)
check_cxx_compiler_flag(-fstack-clash-protection LORAD_HAS_STACK_CLASH)
check_cxx_compiler_flag(-ftrivial-auto-var-init=zero LORAD_HAS_VAR_INIT)

# GCC 12 and clang 14 know level 3; older ones take it for 2. Distributions predefine a level.
target_compile_options(lorad_options INTERFACE
    $<$<CONFIG:Release>:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS -fPIE -fstack-protector-strong>
    $<$<AND:$<CONFIG:Release>,$<BOOL:${LORAD_HAS_STACK_CLASH}>>:-fstack-clash-protection>
    $<$<AND:$<CONFIG:Release>,$<BOOL:${LORAD_HAS_VAR_INIT}>>:-ftrivial-auto-var-init=zero>
    $<$<AND:$<CONFIG:Release>,$<BOOL:${LORAD_HAS_CET}>>:-fcf-protection=full>)
target_link_options(lorad_options INTERFACE $<$<CONFIG:Release>:-pie -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack -Wl,-z,separate-code>)
# The linker marks a program for shadow stacks only if every object says that it may have one. Those of Rust's own library say nothing, although
# they call and return like all others. Branch tracking is another matter: they lack its landing pads, so the program is not marked for it.
if(LORAD_HAS_CET AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_link_options(lorad_options INTERFACE $<$<CONFIG:Release>:-Wl,-z,shstk>)
endif()
